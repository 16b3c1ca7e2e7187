"""Omniglot: handwritten characters of 50 alphabets, each drawn by the same 20 people (Lake et al. 2015)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from lossalign.core import InputError
from lossalign.data.dataset import Dataset
from lossalign.data.folders import load_image_folder
from lossalign.data.registry import DATA_SOURCES, with_test


def load_omniglot(folder: str | Path, size: int = 28) -> tuple[Dataset, Dataset]:
    """Omniglot as published: ``images_background/`` and ``images_evaluation/``, in each
    ``<alphabet>/character<NN>/<id>_<drawer>.png``.

    A class is one character, named ``<alphabet>/character<NN>``; no alphabet, so no class, is in both sets. Images that
    cannot be read are left out, and one warning for each alphabet names them.

    Args:
        folder: the folder that holds the two folders.
        size: side of an image in pixels; the published images have 105 and are averaged; ink is 255, paper 0.

    Returns:
        The background set (964 characters, 19,280 images) and the evaluation set (659 characters, 13,180 images),
        uint8 images [n, 1, size, size].
    """
    if size < 1:
        raise InputError(f"size={size}: give a side in pixels, 1 or more.")
    background, evaluation = (
        _load(Path(folder) / f"images_{part}", part, size) for part in ("background", "evaluation")
    )
    return background, evaluation


def _load(path: Path, part: str, size: int) -> Dataset:
    """One of the two sets; every alphabet is an image folder."""
    if not path.is_dir():
        raise InputError(f"{path}: there is no such folder; unpack the published images_{part}.zip there.")
    names: list[str] = []
    images: list[Tensor] = []
    targets: list[Tensor] = []
    for alphabet in sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith(".")):
        characters = load_image_folder(alphabet, size=None)
        targets.append(characters.targets + len(names))
        names += [f"{alphabet.name}/{character}" for character in characters.class_names]
        images.append(_ink(characters.inputs, size))
    if not names:
        raise InputError(f"{path}: there are no alphabets in it; unpack the published images_{part}.zip there.")
    return Dataset(
        name=f"omniglot-{part}", inputs=torch.cat(images), targets=torch.cat(targets), class_names=tuple(names)
    )


def _ink(images: Tensor, size: int) -> Tensor:
    """How much of every pixel is ink [n, 1, size, size], from dark ink on white paper in three equal channels."""
    ink = 255.0 - images[:, :1]
    return F.interpolate(ink, (size, size), mode="area").round().to(torch.uint8)


DATA_SOURCES.add("omniglot", "Omniglot", lambda run: with_test(load_omniglot(run.path / "omniglot", run.image_size)))
