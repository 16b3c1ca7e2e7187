"""Images in one folder for each class."""

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
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


def load_image_folder(path: str | Path, size: int | None = 32) -> Dataset:
    """Images from ``path/<class name>/*.png`` (or jpg, jpeg, bmp, webp), as RGB.

    An image's short side is scaled to ``size`` and its centre is cut out. Images that cannot be read are left out,
    and one warning names them. Classes are sorted by name; a folder without a readable image is no class.

    Args:
        path: the folder that holds one folder for each class.
        size: the side of the square that is kept; None keeps images as they are, and they must be of one size.

    Returns:
        A set with inputs [n, 3, size, size], uint8, named after the folder.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path}: there is no such folder; check the path.")
    if size is not None and size < 1:
        raise InputError(f"size={size}: give a side in pixels, 1 or more, or None to keep images as they are.")
    files = sorted(f for f in path.glob("*/*") if f.suffix.lower() in _SUFFIXES and not f.parent.name.startswith("."))
    images: list[Tensor] = []
    labels: list[str] = []
    unreadable: list[str] = []
    for file in files:
        try:
            image = _read(file, size)
        except _UNREADABLE:
            unreadable.append(str(file.relative_to(path)))
            continue
        if images and image.shape != images[0].shape:
            raise InputError(
                f"{file}: {list(image.shape[1:])} pixels, {list(images[0].shape[1:])} before; give size to scale all "
                "images alike."
            )
        images.append(image)
        labels.append(file.parent.name)
    if unreadable:
        shown = ", ".join(unreadable[:10]) + (", …" if len(unreadable) > 10 else "")
        warnings.warn(f"{path}: {len(unreadable)} images cannot be read and are left out: {shown}.", stacklevel=2)
    class_names = tuple(sorted(set(labels)))
    if len(class_names) < 2:
        raise InputError(
            f"{path}: readable images of {len(class_names)} classes; give at least two folders, each named after its "
            f"class, with {', '.join(_SUFFIXES)} files."
        )
    return Dataset(
        name=path.resolve().name,
        inputs=torch.stack(images),
        targets=torch.tensor([class_names.index(label) for label in labels]),
        class_names=class_names,
    )


def _read(file: Path, size: int | None) -> Tensor:
    """One upright RGB image [3, H, W], uint8."""
    with Image.open(file) as opened:
        image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I;16"):  # Pillow would clip 16 bits to white
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        image = image.convert("RGB")
    if size is not None:
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
