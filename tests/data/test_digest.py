"""Data are known again by their digests, whether they are in memory or on disk."""

import numpy as np
import pytest
import torch
from PIL import Image

from lossalign.data import Dataset, changed, load_image_folder, map_image_folder


@pytest.fixture
def rows():
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    return Dataset(name="rows", inputs=inputs, targets=torch.arange(12) % 3, class_names=("a", "b", "c"))


def made(data, **changes):
    return Dataset(**{**vars(data), **changes})


def test_equal_data_have_equal_digests(rows):
    assert made(rows, inputs=rows.inputs.clone(), name="copy").digests == rows.digests
    assert rows.subset(torch.arange(12)).digests == rows.digests


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("inputs", lambda data: {"inputs": data.inputs.clone().index_put_((torch.tensor(3),), torch.zeros(3))}),
        ("inputs", lambda data: {"inputs": data.inputs.roll(3, 0)}),
        ("inputs", lambda data: {"inputs": data.inputs[..., None]}),
        ("labels", lambda data: {"targets": data.targets.roll(1)}),
    ],
    ids=["a feature", "the order", "the shape", "labels"],
)
def test_a_change_shows_in_its_part_alone(rows, name, change):
    digests = made(rows, **change(rows)).digests
    assert [part for part in digests if digests[part] != rows.digests[part]] == [name]


def test_images_on_disk_have_the_digests_of_those_in_memory(tmp_path):
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(random.integers(0, 256, (6, 6, 3), dtype=np.uint8)).save(tmp_path / name / f"{i}.png")
    mapped, loaded = map_image_folder(tmp_path, 6), load_image_folder(tmp_path, 6)
    assert mapped.digests == loaded.digests
    assert mapped.subset([7, 2]).digests == loaded.subset([7, 2]).digests


def test_a_seed_that_one_side_lacks_is_a_change():
    split = {"train": {"inputs": "a", "labels": "b"}}
    assert changed({"0": split}, {"1": split}) == "inputs and labels of the train split (seed 0)"
