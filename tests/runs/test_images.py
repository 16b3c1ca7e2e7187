"""A run on an image folder that is streamed from disk gives the numbers of one in memory."""

import numpy as np
import pytest
from PIL import Image

from lossalign import fit
from lossalign.data import Dataset, MappedImages
from lossalign.experiments import build, configure

SMALL = {
    "image_size": 8,
    "model": "mlp-8",
    "batch_size": 8,
    "iterations": 20,
    "every": 5,
    "children": 2,
    "methods": ("fixed", "ala"),
    "device": "cpu",
}


@pytest.fixture
def pets(tmp_path):
    random = np.random.default_rng(0)
    for brightness, name in ((100, "cat"), (150, "dog")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(20):
            pixels = random.integers(brightness - 60, brightness + 60, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{i}.png")
    return tmp_path / "pets"


def test_a_set_beyond_the_limit_streams_from_disk_and_gives_the_same_numbers(pets, tmp_path):
    task = f"images:{pets}"
    assert isinstance(build(configure(task, SMALL)).data[0].train, Dataset)
    streaming = {**SMALL, "in_memory_gb": 0.0, "image_cache": str(tmp_path / "cache")}
    assert isinstance(build(configure(task, streaming)).data[0].train, MappedImages)
    in_memory = fit(task, out=tmp_path / "a", final=True, **SMALL)
    streamed = fit(task, out=tmp_path / "b", final=True, **streaming)
    assert streamed.rows == in_memory.rows
    assert (tmp_path / "a" / "metrics.jsonl").read_text() == (tmp_path / "b" / "metrics.jsonl").read_text()
    assert (tmp_path / "cache" / "pets").is_dir()
