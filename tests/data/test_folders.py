import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lossalign.core import InputError
from lossalign.data import load_image_folder

RED, BLUE = (200, 0, 0), (0, 0, 200)


def save(path, colour=RED, size=(8, 8), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, **options)


@pytest.fixture
def pets(tmp_path):
    root = tmp_path / "pets"
    save(root / "dog" / "1.png", BLUE)
    save(root / "cat" / "2.bmp", RED)
    save(root / "cat" / "1.PNG", RED, size=(40, 20))
    return root


def test_every_folder_is_a_class_and_every_image_a_square(pets):
    data = load_image_folder(pets, size=6)
    assert data.name == "pets"
    assert data.class_names == ("cat", "dog")
    assert data.targets.tolist() == [0, 0, 1]
    assert data.inputs.shape == (3, 3, 6, 6)
    assert data.inputs.dtype is torch.uint8
    assert torch.equal(data.inputs[2], torch.tensor(BLUE, dtype=torch.uint8)[:, None, None].expand(3, 6, 6))


@pytest.mark.parametrize("suffix", ["png", "jpg", "jpeg", "bmp", "webp"])
def test_the_usual_formats_are_read(pets, suffix):
    save(pets / "eel" / f"1.{suffix}", BLUE)
    data = load_image_folder(pets, size=8)
    assert data.class_names == ("cat", "dog", "eel")
    assert (data.inputs[3].float().mean((1, 2)) - torch.tensor(BLUE)).abs().max() < 4


def test_the_short_side_is_scaled_and_the_centre_kept(pets):
    wide = np.zeros((4, 12, 3), dtype=np.uint8)
    wide[:, 4:8] = 255
    Image.fromarray(wide).save(pets / "cat" / "0.png")
    assert (load_image_folder(pets, size=4).inputs[0] == 255).all()
    Image.fromarray(wide.transpose(1, 0, 2)).save(pets / "cat" / "0.png")
    assert (load_image_folder(pets, size=4).inputs[0] == 255).all()


def test_grey_transparent_palette_and_16_bit_images_become_rgb(pets):
    (pets / "odd").mkdir()
    Image.new("L", (8, 8), 100).save(pets / "odd" / "1.png")
    Image.new("RGBA", (8, 8), (100, 100, 100, 50)).save(pets / "odd" / "2.png")
    Image.new("RGB", (8, 8), (100, 100, 100)).quantize().save(pets / "odd" / "3.png")
    Image.fromarray(np.full((8, 8), 100 * 256 + 7, dtype=np.uint16)).save(pets / "odd" / "4.png")
    data = load_image_folder(pets, size=8)
    assert (data.inputs[data.targets == 2] == 100).all()


def test_photographs_are_turned_upright(pets):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90° clockwise to see it upright
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[:4] = 255
    Image.fromarray(pixels).save(pets / "cat" / "0.png", exif=exif)
    upright = load_image_folder(pets, size=8).inputs[0]
    assert (upright[:, :, 4:] == 255).all()
    assert (upright[:, :, :4] == 0).all()


def test_unreadable_images_are_left_out_and_named_once(pets):
    (pets / "cat" / "bad.jpg").write_bytes(b"no image")
    whole = (pets / "dog" / "1.png").read_bytes()
    (pets / "dog" / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match="2 images cannot be read") as caught:
        data = load_image_folder(pets)
    assert len(caught) == 1
    assert "bad.jpg" in str(caught[0].message)
    assert "cut.png" in str(caught[0].message)
    assert len(data) == 3


def test_other_files_and_hidden_folders_are_ignored(pets):
    (pets / "readme.txt").write_text("x")
    (pets / "dog" / "notes.txt").write_text("x")
    (pets / "empty").mkdir()
    save(pets / ".thumbnails" / "1.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_image_folder(pets).class_names == ("cat", "dog")


def test_without_a_size_images_stay_as_they_are_and_must_be_alike(pets):
    with pytest.raises(InputError, match=r"2\.bmp: \[8, 8\] pixels, \[20, 40\] before; give size"):
        load_image_folder(pets, size=None)
    (pets / "cat" / "1.PNG").unlink()
    assert load_image_folder(pets, size=None).inputs.shape == (2, 3, 8, 8)


def test_fewer_than_two_classes_are_refused(tmp_path):
    with pytest.raises(InputError, match="images of 0 classes"):
        load_image_folder(tmp_path)
    save(tmp_path / "cat" / "1.png")
    with pytest.raises(InputError, match="images of 1 classes"):
        load_image_folder(tmp_path)


def test_a_missing_folder_and_a_senseless_size_are_refused(pets):
    with pytest.raises(InputError, match="no such folder"):
        load_image_folder(pets / "absent")
    with pytest.raises(InputError, match="size=0"):
        load_image_folder(pets, size=0)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_a_named_pipe_is_left_out_and_named(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name / "0.png")
    os.mkfifo(tmp_path / "cat" / "1.png")
    with pytest.warns(UserWarning, match="1 images cannot be read.*cat/1.png"):
        assert len(load_image_folder(tmp_path, 4)) == 2


def test_a_class_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    for name in ("cat", "dog", "owl"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name / "0.png")
    iterdir = Path.iterdir

    def locked(folder):
        if folder.name == "owl":
            raise PermissionError(13, "Permission denied")
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", locked)
    with pytest.raises(InputError, match=r"owl: it cannot be read \(Permission denied\); change"):
        load_image_folder(tmp_path, 4)
