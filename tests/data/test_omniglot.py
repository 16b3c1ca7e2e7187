import numpy as np
import pytest
import torch
from PIL import Image

from lossalign.core import InputError
from lossalign.data import load_omniglot


def draw(root, part, character, drawer, pixels):
    path = root / f"images_{part}" / character / f"0001_{drawer:02d}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).convert("1").save(path)


def paper(side=105):
    return np.full((side, side), 255, dtype=np.uint8)


@pytest.fixture
def omniglot(tmp_path):
    names = {"background": ("Greek", "Latin"), "evaluation": ("Oriya",)}
    for part, alphabets in names.items():
        for alphabet in alphabets:
            for number in (1, 2):
                for drawer in (1, 2, 3):
                    draw(tmp_path, part, f"{alphabet}/character{number:02d}", drawer, paper())
    return tmp_path


def test_a_character_of_an_alphabet_is_a_class(omniglot):
    background, evaluation = load_omniglot(omniglot)
    greek, latin = (tuple(f"{name}/character0{i}" for i in (1, 2)) for name in ("Greek", "Latin"))
    assert background.class_names == greek + latin
    assert background.targets.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert evaluation.class_names == ("Oriya/character01", "Oriya/character02")
    assert (background.name, evaluation.name) == ("omniglot-background", "omniglot-evaluation")
    assert background.inputs.shape == (12, 1, 28, 28)
    assert background.inputs.dtype is torch.uint8


def test_ink_is_bright_on_dark_paper_and_averaged_over_areas(omniglot):
    pixels = paper()
    pixels[:3, 3:6] = 0  # one square of 3 pixels, and a third of the next
    pixels[3:6, 3:4] = 0
    draw(omniglot, "background", "Greek/character01", 1, pixels)
    image = load_omniglot(omniglot, size=35)[0].inputs[0, 0]
    expected = torch.zeros(35, 35, dtype=torch.uint8)
    expected[0, 1], expected[1, 1] = 255, 85
    assert torch.equal(image, expected)
    assert load_omniglot(omniglot, size=105)[0].inputs[0, 0, :6, :6].sum() == 12 * 255


def test_unreadable_images_are_left_out_and_named(omniglot):
    (omniglot / "images_background" / "Latin" / "character02" / "0001_02.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"1 images cannot be read.* character02/0001_02\.png") as caught:
        background, _ = load_omniglot(omniglot)
    assert len(caught) == 1
    assert background.counts.tolist() == [3, 3, 3, 2]


def test_what_is_not_there_is_named(omniglot, tmp_path_factory):
    with pytest.raises(
        InputError, match=r"images_background: there is no such folder; unpack .*images_background\.zip"
    ):
        load_omniglot(omniglot / "images_background")
    with pytest.raises(InputError, match="size=0"):
        load_omniglot(omniglot, size=0)
    empty = tmp_path_factory.mktemp("empty")
    (empty / "images_background").mkdir()
    with pytest.raises(InputError, match="there are no alphabets"):
        load_omniglot(empty)
