"""A labelled set of examples, whole and in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lossalign.core import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Examples with one class label each.

    Args:
        name: what the set is called in messages and run folders.
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

    name: str
    inputs: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    class_names: tuple[str, ...]

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

    def __len__(self) -> int:
        return self.inputs.shape[0]

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return len(self.class_names)

    @property
    def counts(self) -> Tensor:
        """How many examples each class has [C]."""
        return torch.bincount(self.targets, minlength=self.num_classes)

    def subset(self, indices: Tensor | Sequence[int]) -> Dataset:
        """The examples at ``indices``, in their order, with the same classes.

        Example:
            >>> data = Dataset(
            ...     name="x", inputs=torch.eye(3), targets=torch.tensor([0, 1, 0]), class_names=("a", "b")
            ... )
            >>> data.subset([2, 1]).targets
            tensor([0, 1])
        """
        at = torch.as_tensor(indices, dtype=torch.int64, device=self.inputs.device)
        if at.numel() and (at.min() < 0 or at.max() >= len(self)):
            raise InputError(f"dataset {self.name!r}: indices must be 0 … {len(self) - 1}.")
        return replace(self, inputs=self.inputs[at], targets=self.targets[at])
