"""What a metric of classes accepts. Shapes and types are checked always, values only outside of ``torch.func.vmap``."""

from __future__ import annotations

import torch
from torch import Tensor

from lossalign.core import InputError


def check_scores(metric: str, outputs: Tensor, targets: Tensor, classes: int) -> None:
    """Refuse outputs [V, …] and labels [V], or 0/1 labels [V, C], that would give a number without a meaning.

    Args:
        metric: its name, for errors.
        outputs: one row for each sample.
        targets: class indices below ``classes``; 0 and 1 if they have the shape of the outputs.
        classes: C.

    Example:
        >>> check_scores("error", torch.zeros(2, 3), torch.tensor([0, 3]), 3)
        Traceback (most recent call last):
        ...
        lossalign.core.errors.InputError: metric 'error': labels run from 0 to 3, and outputs have 3 classes; give class
        indices 0 … 2.
    """
    where = f"metric {metric!r}"
    several = targets.ndim == 2 and targets.shape == outputs.shape
    if len(outputs) != len(targets) or not (targets.ndim == 1 or several):
        raise InputError(
            f"{where}: outputs have shape {tuple(outputs.shape)} and targets {tuple(targets.shape)}; give one label "
            "for each row of the outputs."
        )
    if not outputs.numel():
        raise InputError(f"{where}: it has no samples; give at least one.")
    if not several and (targets.is_floating_point() or targets.dtype is torch.bool) and classes != 2:
        raise InputError(f"{where}: targets have type {targets.dtype}; give class indices, with .long().")
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, (outputs, targets))):
        return
    if not outputs.isfinite().all():
        rows = int((~outputs.reshape(len(outputs), -1).isfinite()).any(1).sum())
        raise InputError(f"{where}: outputs are NaN or inf in {rows} of {len(outputs)} samples; look at the model.")
    low, high, last = float(targets.min()), float(targets.max()), 1 if several else classes - 1
    if low < 0 or high > last:
        raise InputError(
            f"{where}: labels run from {low:g} to {high:g}, and outputs have {last + 1} classes; give class indices "
            f"0 … {last}."
        )


def check_classes(metric: str, outputs: Tensor, targets: Tensor) -> None:
    """``check_scores`` of outputs [V, C] and class indices [V]."""
    if outputs.ndim != 2 or targets.ndim != 1 or targets.is_floating_point() or targets.dtype is torch.bool:
        raise InputError(
            f"metric {metric!r}: outputs have shape {tuple(outputs.shape)}, targets {tuple(targets.shape)} and type "
            f"{targets.dtype}; give scores [V, C] and class indices [V]."
        )
    check_scores(metric, outputs, targets, outputs.shape[-1])
