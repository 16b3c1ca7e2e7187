"""What the classification losses share: labels, counts, groups of parameters, class pairs and their matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lossalign.core import InputError, ParameterGroup

Pairs = tuple[tuple[int, int], ...]


def check_labels(targets: Tensor, num_classes: int, name: str) -> None:
    """Refuse labels that are not whole numbers 0 … num_classes − 1.

    Example:
        >>> check_labels(torch.tensor([0, 3]), 3, "targets")
        Traceback (most recent call last):
        ...
        lossalign.core.errors.InputError: targets: label 3 is out of range for num_classes=3; labels must be 0 … 2.
    """
    if targets.dtype is not torch.long:  # bool and uint8 would index as a mask
        raise InputError(f"{name}: labels have type {targets.dtype}; convert them with .long().")
    if targets.ndim != 1:
        raise InputError(f"{name}: labels have shape {tuple(targets.shape)}; give one class index for each example.")
    if targets.numel() and (targets.min() < 0 or targets.max() >= num_classes):
        wrong = targets[(targets < 0) | (targets >= num_classes)][0]
        raise InputError(
            f"{name}: label {int(wrong)} is out of range for num_classes={num_classes}; labels must be "
            f"0 … {num_classes - 1}."
        )


def check_shapes(outputs: Tensor, targets: Tensor, num_classes: int) -> None:
    """Refuse outputs that are not one row of logits for every label.

    Example:
        >>> check_shapes(torch.zeros(3, 5), torch.zeros(3), 4)
        Traceback (most recent call last):
        ...
        lossalign.core.errors.InputError: outputs have shape (3, 5); for 3 labels and num_classes=4 they must be (3, 4).
    """
    if outputs.shape != (len(targets), num_classes):
        raise InputError(
            f"outputs have shape {tuple(outputs.shape)}; for {len(targets)} labels and num_classes={num_classes} they "
            f"must be ({len(targets)}, {num_classes})."
        )


def check_groups(groups: Sequence[str], known: Sequence[str], num_classes: int) -> None:
    """Refuse group names that a loss does not have, and fewer than two classes."""
    if num_classes < 2:
        raise InputError(f"num_classes={num_classes}: a classification loss needs at least 2 classes.")
    unknown = [name for name in groups if name not in known]
    if unknown or not groups:
        raise InputError(f"groups={tuple(groups)}: choose one or more from {tuple(known)}.")


def class_frequencies(counts: Sequence[float] | Tensor, num_classes: int, name: str) -> Tensor:
    """π: counts or frequencies as shares that sum to 1 [C]; ``name`` is the argument they came by.

    Example:
        >>> class_frequencies([30, 10], 2, "counts")
        tensor([0.7500, 0.2500])
    """
    given = torch.as_tensor(counts, dtype=torch.float32)
    if given.shape != (num_classes,) or not bool(((given > 0) & given.isfinite()).all()):
        raise InputError(
            f"{name}: give one positive, finite number for each of {num_classes} classes; got "
            f"{given.tolist() if given.numel() <= 20 else tuple(given.shape)}."
        )
    return given / given.sum()


def class_group(name: str, classes: Pairs, *, low: float, high: float, step: float) -> ParameterGroup:
    """Parameters that start at 0, one for each entry of ``classes``, labelled ``i`` or ``i·j``."""
    labels = tuple(f"{i}" if i == j else f"{i}·{j}" for i, j in classes)
    return ParameterGroup(name=name, labels=labels, initial=0.0, low=low, high=high, step=step, classes=classes)


def class_pairs(num_classes: int, *, diagonal: bool, pairs: bool) -> dict[str, Pairs]:
    """The classes each parameter of a symmetric matrix speaks of, by group.

    Example:
        >>> class_pairs(3, diagonal=True, pairs=True)
        {'diagonal': ((0, 0), (1, 1), (2, 2)), 'pairs': ((0, 1), (0, 2), (1, 2))}
    """
    layout: dict[str, Pairs] = {}
    if diagonal:
        layout["diagonal"] = tuple((i, i) for i in range(num_classes))
    if pairs:
        layout["pairs"] = tuple((i, j) for i in range(num_classes) for j in range(i + 1, num_classes))
    return layout


def symmetric(values: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """The symmetric matrix [C, C] with ``values`` [P] at ``classes`` [P, 2] and zeros elsewhere.

    Example:
        >>> symmetric(torch.tensor([1.0, 2.0]), torch.tensor([[0, 0], [0, 1]]), 2)
        tensor([[1., 2.],
                [2., 0.]])
    """
    i, j = classes.unbind(-1)
    # torch.zeros would be one tensor for all children under vmap, and inductor then adds them all into it (pytorch
    # issue 183986)
    empty = values.new_zeros(num_classes * num_classes)
    upper = empty.index_add(0, i * num_classes + j, values).view(num_classes, num_classes)
    return torch.triu(upper) + torch.triu(upper, 1).T
