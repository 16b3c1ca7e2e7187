"""Labelled data sets: their interface, and those that are in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.data.digest import Digests, digest_of, row_digests


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples(ABC):
    """Examples with one class label each, with inputs in memory or on disk.

    Args:
        name: name of the set in messages and run folders.
        targets: class indices [n], int64.
        class_names: one name for each class; a class may be without examples.
    """

    name: str
    targets: Tensor = field(repr=False)
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return len(self.class_names)

    @property
    def counts(self) -> Tensor:
        """How many examples each class has [C]."""
        return torch.bincount(self.targets, minlength=self.num_classes)

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """Of one example: (C, H, W) or (F,)."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of the inputs: uint8 or float32."""

    @abstractmethod
    def subset(self, indices: Tensor | Sequence[int]) -> Examples:
        """The examples at ``indices``, in their order, with the same classes."""

    @abstractmethod
    def chunks(self, size: int) -> Iterator[Tensor]:
        """All inputs, at most ``size`` examples at a time."""

    @abstractmethod
    def load(self) -> Dataset:
        """The same examples, in memory."""

    def row_digests(self) -> Digests:
        """The digest of each input [n, 16]."""
        return row_digests(self.load().inputs)

    @property
    def digests(self) -> dict[str, str]:
        """Digests of the inputs and of the labels, in their order."""
        about = f"{self.dtype} {self.input_shape}".encode()
        return {
            "inputs": digest_of(about, self.row_digests().tobytes()),
            "labels": digest_of(self.targets.cpu().numpy().tobytes()),
        }

    def _checked(self, indices: Tensor | Sequence[int]) -> Tensor:
        at = torch.as_tensor(indices, dtype=torch.int64, device=self.targets.device)
        if at.numel() and (at.min() < 0 or at.max() >= len(self)):
            raise InputError(f"dataset {self.name!r}: indices must be 0 … {len(self) - 1}.")
        return at


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset(Examples):
    """Examples with one class label each.

    Args:
        name: name of the set in messages and run folders.
        inputs: the examples [n, ...]: images [n, C, H, W] or table rows [n, F], uint8 or float32.
        targets: class indices [n], int64.
        class_names: one name for each class; a class may be without examples.

    Example:
        >>> data = Dataset(
        ...     name="pets", inputs=torch.zeros(3, 2), targets=torch.tensor([0, 1, 1]), class_names=("cat", "dog")
        ... )
        >>> len(data), data.num_classes, data.counts
        (3, 2, tensor([1, 2]))
    """

    inputs: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        where = f"dataset {self.name!r}"
        if self.inputs.dtype not in (torch.uint8, torch.float32):
            raise InputError(f"{where}: inputs have type {self.inputs.dtype}; convert them to uint8 or float32.")
        if self.inputs.ndim < 2:
            raise InputError(f"{where}: inputs have shape {tuple(self.inputs.shape)}; give [n, features] or more axes.")
        if self.targets.dtype is not torch.int64:
            raise InputError(f"{where}: targets have type {self.targets.dtype}; convert them with .long().")
        if self.targets.shape != self.inputs.shape[:1]:
            raise InputError(
                f"{where}: targets have shape {tuple(self.targets.shape)} for {self.inputs.shape[0]} inputs; give one "
                "class index for each."
            )
        if not self.inputs.numel():
            raise InputError(f"{where}: inputs are empty; give at least one example with at least one value.")
        low, high = int(self.targets.min()), int(self.targets.max())
        if low < 0 or high >= self.num_classes:
            raise InputError(
                f"{where}: targets run from {low} to {high}, but class_names has {self.num_classes} classes; labels "
                f"must be 0 … {self.num_classes - 1}."
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one example: (C, H, W) or (F,)."""
        return tuple(self.inputs.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """Of the inputs: uint8 or float32."""
        return self.inputs.dtype

    def load(self) -> Dataset:
        """Itself."""
        return self

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All inputs, at most ``size`` examples at a time."""
        return iter(self.inputs.split(size))

    def subset(self, indices: Tensor | Sequence[int]) -> Dataset:
        """The examples at ``indices``, in their order, with the same classes.

        Example:
            >>> data = Dataset(
            ...     name="x", inputs=torch.eye(3), targets=torch.tensor([0, 1, 0]), class_names=("a", "b")
            ... )
            >>> data.subset([2, 1]).targets
            tensor([0, 1])
        """
        at = self._checked(indices)
        return replace(self, inputs=self.inputs[at], targets=self.targets[at])


class Pairs(NamedTuple):
    """Pairs of images to verify: of one person or not.

    Args:
        first: the row of one image of each pair [n], int64.
        second: the row of the other [n], int64.
        same: whether both show one person [n], bool.
        folds: which fold a pair belongs to [n], int64; all 0 where there are no folds.
    """

    first: Tensor
    second: Tensor
    same: Tensor
    folds: Tensor
