"""Helpers of the classification losses: labels, counts, groups of parameters, class pairs and their matrix."""

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
    if targets.dtype is not torch.long:  # bool and uint8 index as masks
        raise InputError(f"{name}: labels have type {targets.dtype}; {way_to_labels(targets)}.")
    if targets.ndim != 1:
        raise InputError(f"{name}: labels have shape {tuple(targets.shape)}; give one class index for each example.")
    low, high = map(int, targets.aminmax()) if targets.numel() else (0, 0)
    if low < 0 or high >= num_classes:
        wrong = targets[(targets < 0) | (targets >= num_classes)][0]
        raise InputError(
            f"{name}: label {int(wrong)} is out of range for num_classes={num_classes}; labels must be "
            f"0 … {num_classes - 1}."
        )


def way_to_labels(targets: Tensor) -> str:
    """How to get class indices from targets of another type; ``.long()`` would turn soft labels into zeros."""
    if targets.is_floating_point() and (targets.ndim != 1 or bool((targets != targets.round()).any())):
        return (
            "give class indices; for soft labels (mixup, label smoothing) mix the losses instead, e.g. "
            "λ * aligner(outputs, y_a) + (1 - λ) * aligner(outputs, y_b)"
        )
    return "convert them with .long()"


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
    """π: counts or frequencies as shares that sum to 1 [C]; ``name`` is the argument that gave them.

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


def class_group(
    name: str, classes: Pairs, *, low: float, high: float, beta: float, relative: bool = False, reading: str = ""
) -> ParameterGroup:
    """Parameters that start at 0, one for each entry of ``classes``, labelled ``i`` or ``i·j``."""
    return ParameterGroup(
        name=name,
        labels=tuple(f"{i}" if i == j else f"{i}·{j}" for i, j in classes),
        initial=0.0,
        low=low,
        high=high,
        beta=beta,
        classes=classes,
        relative=relative,
        reading=reading,
    )


def class_pairs(num_classes: int, *, diagonal: bool, pairs: bool) -> dict[str, Pairs]:
    """The classes that each parameter of a symmetric matrix belongs to, by group.

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
