"""Handwritten digits that come with the package: enough to try everything without a download."""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch

from lossalign.data.dataset import Dataset


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
