"""Stanford Online Products: photographs of products, a class for each product (Song et al. 2016)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from lossalign.core import InputError
from lossalign.data.folders import list_images
from lossalign.data.registry import DATA_SOURCES, with_test
from lossalign.data.streaming import MappedImages, map_image_folder

_COLUMNS = ["image_id", "class_id", "super_class_id", "path"]


def open_products(folder: str | Path, size: int, cache: str | Path | None = None) -> tuple[MappedImages, MappedImages]:
    """Stanford Online Products as published: ``<kind>_final/*.JPG``, ``Ebay_train.txt`` and ``Ebay_test.txt``.

    All images are decoded once, into one file that both sets read from; ``load()`` brings a set into memory. Images
    that cannot be read are left out, and one warning names them.

    Args:
        folder: the folder ``Stanford_Online_Products``.
        size: side of the square crop of every image, in pixels.
        cache: the folder for decoded images; see :func:`map_image_folder`.

    Returns:
        The training set (11,318 classes, 59,551 images) and the test set (11,316 other classes, 60,502 images); a
        class is named after its published class_id.
    """
    folder = Path(folder)
    lists = {name: _read_list(folder / f"Ebay_{name}.txt") for name in ("train", "test")}
    files = list_images(folder, size)
    missing = sorted({file for listed in lists.values() for file in listed}.difference(files))
    if missing:
        raise InputError(
            f"{folder}: {len(missing)} listed images are missing, e.g. {missing[0]}; unpack the archive again."
        )
    images = map_image_folder(folder, size, cache)
    readable = {files[row]: row for row in images.rows.tolist()}
    train, test = (_part(f"products-{name}", listed, images, readable) for name, listed in lists.items())
    return train, test


def _part(name: str, listed: dict[Path, int], images: MappedImages, readable: dict[Path, int]) -> MappedImages:
    """The listed images; ``readable`` is the row of each readable image among all images."""
    index = {class_id: i for i, class_id in enumerate(sorted(set(listed.values())))}
    kept = [file for file in listed if file in readable]
    return replace(
        images,
        name=name,
        targets=torch.tensor([index[listed[file]] for file in kept]),
        class_names=tuple(map(str, index)),
        rows=torch.tensor([readable[file] for file in kept]),
    )


def _read_list(file: Path) -> dict[Path, int]:
    """The class_id of every image of a list, in its order."""
    if not file.is_file():
        raise InputError(f"{file}: this list is missing; give the folder Stanford_Online_Products.")
    header, *lines = (line.split() for line in file.read_text(encoding="utf-8").splitlines() or [""])
    if header != _COLUMNS or not lines or any(len(line) != 4 or not line[1].isdecimal() for line in lines):
        raise InputError(f"{file}: its lines do not have the columns {' '.join(_COLUMNS)}; unpack the archive again.")
    return {file.parent / path: int(class_id) for _, class_id, _, path in lines}


DATA_SOURCES.add(
    "sop",
    "Stanford Online Products",
    lambda run: with_test(open_products(run.path / "Stanford_Online_Products", run.image_size, run.image_cache)),
)
