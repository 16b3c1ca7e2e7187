"""Images from one folder for each class."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from lossalign.core import InputError
from lossalign.data.dataset import Dataset

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


def load_image_folder(path: str | Path, size: int | None = 32) -> Dataset:
    """Images from ``path/<class name>/*.png`` (or jpg, jpeg, bmp, webp), as RGB.

    An image's short side is scaled to ``size`` and its centre is cut out. Images that cannot be read are left out,
    and one warning names them. Classes are sorted by name; a folder without a readable image is not a class.

    Args:
        path: the folder that holds one folder for each class.
        size: side of the square crop, in pixels; None keeps images as they are, all of which must have one size.

    Returns:
        A set with inputs [n, 3, size, size], uint8, named after the folder.
    """
    path = Path(path)
    files = list_images(path, size)
    images: list[Tensor] = []
    unreadable: list[Path] = []
    for file in files:
        try:
            image = read_image(file, size)
        except UNREADABLE:
            unreadable.append(file)
            continue
        if images and image.shape != images[0].shape:
            raise InputError(
                f"{file}: {list(image.shape[1:])} pixels, {list(images[0].shape[1:])} before; give size to scale all "
                "images alike."
            )
        images.append(image)
    class_names, targets = label_images(path, files, unreadable)
    return Dataset(name=path.resolve().name, inputs=torch.stack(images), targets=targets, class_names=class_names)


def list_images(path: Path, size: int | None) -> list[Path]:
    """All image files of a folder, sorted, class by class; ``size`` is checked only."""
    if not path.is_dir():
        raise InputError(f"{path}: there is no such folder; check the path.")
    if size is not None and size < 1:
        raise InputError(f"size={size}: give a side in pixels, 1 or more, or None to keep images as they are.")
    folders = [folder for folder in _listed(path) if folder.is_dir() and not folder.name.startswith(".")]
    return sorted(file for folder in folders for file in _listed(folder) if file.suffix.lower() in _SUFFIXES)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: it cannot be read ({error.strerror}); change its permissions.") from error


def label_images(path: Path, files: list[Path], unreadable: list[Path]) -> tuple[tuple[str, ...], Tensor]:
    """Class names, and the class of every readable image; one warning names the images that are not."""
    if unreadable:
        shown = ", ".join(str(file.relative_to(path)) for file in unreadable[:10])
        more = ", …" if len(unreadable) > 10 else ""
        sentence = f"{path}: {len(unreadable)} images cannot be read and are left out: {shown}{more}."
        warnings.warn(sentence, stacklevel=3)
    left_out = set(unreadable)
    labels = [file.parent.name for file in files if file not in left_out]
    class_of = {name: index for index, name in enumerate(sorted(set(labels)))}
    if len(class_of) < 2:
        raise InputError(
            f"{path}: it has readable images of {len(class_of)} classes; give at least two folders, each named after "
            f"its class, with {', '.join(_SUFFIXES)} files."
        )
    return tuple(class_of), torch.tensor([class_of[label] for label in labels])


def read_image(file: Path, size: int | None) -> Tensor:
    """One upright RGB image [3, H, W], uint8."""
    if not file.is_file():
        raise OSError("not a file")  # a named pipe would never end
    with Image.open(file) as opened:
        image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I;16"):  # Pillow would clip 16 bits to white
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        image = image.convert("RGB")
    if size is not None:
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
