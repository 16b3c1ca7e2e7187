"""Digests of examples, by which a run knows its data again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor

BYTES = 16
"""Of the digest of one example."""
Digests = npt.NDArray[np.uint8]


def row_digests(inputs: Tensor | npt.NDArray[np.uint8]) -> Digests:
    """The digest of each example [n, 16]: SHA-256 over its bytes, cut.

    Example:
        >>> import torch
        >>> one, other, again = row_digests(torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]]))
        >>> bool((one == again).all()), bool((one == other).all())
        (True, False)
    """
    array = inputs.detach().cpu().numpy() if isinstance(inputs, Tensor) else inputs
    rows = np.ascontiguousarray(array).reshape(len(array), -1)
    joined = b"".join(hashlib.sha256(row.data).digest()[:BYTES] for row in rows)
    return np.frombuffer(joined, np.uint8).reshape(-1, BYTES)


def digest_of(*parts: bytes) -> str:
    """SHA-256 over the parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


SplitDigests = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Digests of inputs and labels, by seed and split."""


def changed(before: SplitDigests, now: SplitDigests) -> str | None:
    """What differs, in words; None if nothing does.

    Example:
        >>> before = {"0": {"train": {"inputs": "a", "labels": "b"}, "test": {"inputs": "c", "labels": "d"}}}
        >>> now = {"0": {"train": {"inputs": "a", "labels": "x"}, "test": {"inputs": "y", "labels": "z"}}}
        >>> changed(before, now), changed(before, before)
        ('labels of the train split, inputs and labels of the test split (seed 0)', None)
    """
    for seed in {**before, **now}:
        old, new = before.get(seed, {}), now.get(seed, {})
        differ: dict[str, list[str]] = {}
        for split in {**old, **new}:
            mine, theirs = old.get(split, {}), new.get(split, {})
            names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
            if names:
                differ[split] = names
        if differ:
            words = ", ".join(f"{' and '.join(names)} of the {split} split" for split, names in differ.items())
            return f"{words} (seed {seed})"
    return None
