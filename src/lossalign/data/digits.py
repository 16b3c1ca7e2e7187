"""Handwritten digits that are part of the package, to try everything without a download."""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch

from lossalign.data.dataset import Dataset
from lossalign.data.registry import DATA_SOURCES, Loaded


def load_digits() -> Dataset:
    """1,797 handwritten digits of 8×8 pixels, scaled to 0 … 1.

    The test set of "Optical Recognition of Handwritten Digits" (Alpaydin & Kaynak 1998, UCI, CC BY 4.0,
    doi 10.24432/C50P49).

    Returns:
        A set with inputs [1797, 1, 8, 8], float32.

    Example:
        >>> digits = load_digits()
        >>> tuple(digits.inputs.shape), digits.counts.tolist()
        ((1797, 1, 8, 8), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    """
    with resources.files("lossalign.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    return Dataset(
        name="digits",
        inputs=torch.from_numpy(images)[:, None].float() / 16,
        targets=torch.from_numpy(labels).long(),
        class_names=tuple(map(str, range(10))),
    )


_WAYS = ("", " turned left", " upside down", " turned right")


def load_turned_digits() -> Dataset:
    """The same digits as 80 classes for metric learning: each image is turned or mirrored in one of eight ways.

    A digit in another orientation is another class. No image is in two classes, so whole classes can be held out.

    Returns:
        A set with inputs [1797, 1, 8, 8], float32, and 21 to 23 images of each class.

    Example:
        >>> turned = load_turned_digits()
        >>> turned.num_classes, int(turned.counts.min()), turned.class_names[13]
        (80, 21, '3 turned left')
    """
    digits = load_digits()
    ways = torch.empty_like(digits.targets)
    for c in range(digits.num_classes):
        members = digits.targets == c
        ways[members] = torch.arange(int(members.sum())) % 8
    turned = torch.empty_like(digits.inputs)
    for way in range(8):
        images = digits.inputs[ways == way].rot90(way % 4, (-2, -1))
        turned[ways == way] = images.flip(-1) if way >= 4 else images
    names = [name + mirrored for mirrored in ("", ", mirrored") for name in _WAYS]
    return Dataset(
        name="turned digits",
        inputs=turned,
        targets=digits.targets + digits.num_classes * ways,
        class_names=tuple(digit + name for name in names for digit in digits.class_names),
    )


DATA_SOURCES.add("digits", "8×8 digits in the package", lambda run: Loaded(examples=load_digits()))
DATA_SOURCES.add("turned-digits", "the digits as 80 classes", lambda run: Loaded(examples=load_turned_digits()))
