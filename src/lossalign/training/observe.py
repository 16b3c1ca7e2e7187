"""From validation outputs to what a controller sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lossalign.core import InputError, NonFiniteError, Observation
from lossalign.losses import AdaptiveLoss, EmbeddingLoss
from lossalign.metrics import (
    ConfusionMetric,
    Metric,
    class_gradient,
    class_sensitivity,
    error,
    over_children,
    score_children,
)

Finite = Literal["training loss", "outputs", "metric"]


@dataclass(frozen=True)
class LabelledSet:
    """A validation set as tensors: inputs [V, …] ready for the network, and labels [V]."""

    inputs: Tensor
    targets: Tensor


def check_validation(loss: AdaptiveLoss, targets: Tensor, name: str) -> None:
    """Refuse validation labels that statistics cannot be computed from; ``name`` says whose they are.

    Example:
        >>> from lossalign.losses import AlignedLoss
        >>> check_validation(AlignedLoss(num_classes=3), torch.tensor([0, 1]), "val_loader")
        Traceback (most recent call last):
        ...
        lossalign.core.errors.InputError: val_loader: class 2 has no samples, and Eq. 7 divides by their number; add at
        least one of every class.
    """
    if targets.numel() < 2:
        raise InputError(f"{name}: it holds {targets.numel()} samples; a metric needs at least 2.")
    loss.check_targets(targets, name)
    if isinstance(loss, EmbeddingLoss):
        loss.check_pairs(targets, name)
    needed = loss.spec.classes
    present = targets.unique() if targets.ndim == 1 else targets.bool().any(0).nonzero()
    absent = sorted(set(needed[needed >= 0].tolist()) - set(present.flatten().tolist()))
    if absent:
        raise InputError(
            f"{name}: class {absent[0]} has no samples, and Eq. 7 divides by their number; add at least one of "
            "every class."
        )


_WAY_OUT: dict[Finite, str] = {
    "training loss": "lower the learning rate (a run resumes from its last good checkpoint with --resume)",
    "outputs": "lower the learning rate (a run resumes from its last good checkpoint with --resume)",
    "metric": "its outputs are finite, so look at the metric: does it divide by something that can be zero?",
}


def check_finite(values: Tensor, what: Finite, step: int) -> None:
    """Refuse NaN or inf in values of N children [N, …]; names the step and the child."""
    _refuse(~_finite(values), what, step)


def _finite(values: Tensor) -> Tensor:
    return torch.isfinite(values.reshape(len(values), -1)).all(1)


def _refuse(bad: Tensor, what: Finite, step: int) -> None:
    if bad.any():
        child = int(bad.nonzero()[0])
        are = "are" if what == "outputs" else "is"
        raise NonFiniteError(f"step {step}: the {what} of child {child} {are} not finite; {_WAY_OUT[what]}.", child)


def measure(metric: Metric, outputs: Tensor, targets: Tensor, step: int) -> Tensor:
    """The metric of every child, in its own direction, on the CPU [N]; fetched from the device together with the check.

    A user's metric that is not ``vectorised`` never sees outputs that are not finite.
    """
    if not metric.vectorised:
        check_finite(outputs, "outputs", step)
    scores = score_children(metric, outputs, targets).float()
    values, finite = torch.stack([scores, _finite(outputs).float()]).cpu().unbind()
    _refuse(finite == 0, "outputs", step)
    check_finite(values, "metric", step)
    return values


def observe(
    loss: AdaptiveLoss,
    metric: Metric | None,
    outputs: Tensor,
    targets: Tensor,
    errors: Tensor,
    progress: float,
    device: torch.device | str = "cpu",
    sensitivity: bool = True,
    gradient: Sequence[int] = (),
) -> Observation:
    """What controllers see of N children when a step ends.

    Args:
        loss: gives the statistics.
        metric: what children are judged by; None if it is more than a function of outputs: no sensitivity then.
        outputs: validation outputs [N, V, …].
        targets: [N, V], or [N, V, C] of 0 and 1.
        errors: M of Eq. 4, lower is better [N].
        progress: t over the number of steps.
        device: where statistics and sensitivity are wanted; they are computed where the outputs are.
        sensitivity: whether the sensitivity is wanted; zeros if not, and if a sample has several labels.
        gradient: the children for which the gradient is wanted; it is 0 for the others, and None if nobody wants it.
    """
    vectorised = getattr(loss, "vectorised", True)
    statistics = over_children(loss.statistics, vectorised, outputs, targets).float()
    gains = torch.zeros(*statistics.shape[:2], 2, device=outputs.device)
    slopes = torch.zeros(statistics.shape[:2], device=outputs.device) if gradient else None
    if metric is not None and _has_sensitivity(loss, outputs, targets):
        if sensitivity:
            per_class = over_children(lambda o, t: class_sensitivity(metric, o, t), metric.vectorised, outputs, targets)
            gains = _of_parameters(loss, per_class)
        if slopes is not None:
            rows = torch.tensor(gradient, device=outputs.device)
            slopes[rows] = _of_parameters(loss, _gradients(metric, outputs[rows], targets[rows])[..., None])[..., 0]
    return Observation(
        error=errors,
        statistics=statistics.to(device),
        sensitivity=gains.to(device),
        progress=progress,
        tie_breaker=None if metric is None else _tie_breaker(metric, outputs, targets),
        gradient=None if slopes is None else slopes.to(device),
    )


def _of_parameters(loss: AdaptiveLoss, per_class: Tensor) -> Tensor:
    """Values of classes [N, C, …] as those of parameters [N, P, …]: the mean of its two classes, 0 if it has none."""
    classes = loss.classes.to(per_class.device)
    about = classes.clamp(min=0)
    return (per_class[:, about[:, 0]] + per_class[:, about[:, 1]]) / 2 * (classes[:, :1] >= 0)


def _gradients(metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor:
    """``class_gradient`` of every child [N, C]; children of a metric that has to be scored again come one by one."""
    together = isinstance(metric, ConfusionMetric)
    return over_children(lambda o, t: class_gradient(metric, o, t), together, outputs, targets)


def _has_sensitivity(loss: AdaptiveLoss, outputs: Tensor, targets: Tensor) -> bool:
    of_classes = any(group.classes is not None for group in loss.spec.groups)
    return of_classes and outputs.ndim == 3 and targets.ndim == 2


def sensitivity_cost(loss: AdaptiveLoss, metric: Metric, outputs: Tensor, targets: Tensor) -> str | None:
    """What ``observe`` costs with sensitivity, as a sentence for the user; None if the metric is vectorised, and cheap.

    Args:
        loss: as for ``observe``.
        metric: what children are judged by.
        outputs: validation outputs [N, V, …].
        targets: [N, V], or [N, V, C] of 0 and 1.
    """
    if metric.vectorised or not _has_sensitivity(loss, outputs, targets) or outputs.shape[-1] < 2:
        return None
    calls = 2 * outputs.shape[-1] * outputs.shape[0]
    return (
        f"metric {metric.name!r} is called up to {calls} times more at every move of Φ, to measure what each class "
        "could still gain; if that is slow, turn it off with preset=lossalign.default(sensitivity=False), or with "
        "--sensitivity false on the command line."
    )


def _tie_breaker(metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor | None:
    """The tie-breaker of the metric, as an error on the CPU [N]; None if it has none."""
    tie_breaker = metric.tie_breaker
    if tie_breaker is None:
        return None
    return error(tie_breaker, score_children(tie_breaker, outputs, targets).float().cpu())
