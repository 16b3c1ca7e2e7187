"""Sensitivity: the gain of the metric if the errors out of, or into, a class vanished."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from lossalign.metrics.base import MeanMetric, Metric, error
from lossalign.metrics.confusion import ConfusionMetric, confusion_counts

_HELD = 2**23  # elements of corrected counts or outputs in memory at once, for each child
_SCORED = 2**28  # elements that are scored at one step, for each child: some seconds on one core


def class_sensitivity(metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor:
    """How much better the metric would be without the errors out of, or into, each class.

    A metric of class totals, ``MeanCost`` and a ``MeanMetric`` have short forms, for any number of classes. Another
    ``ConfusionMetric`` scores 2 C corrected counts [C, C], and any other metric 2 C corrected outputs [V, C], where the
    predicted and the true class of each wrong sample swap scores (a wrong sample that ties stays wrong). Where that is
    more than 2²⁸ numbers (counts of 512 classes; outputs of 160 classes and 5,000 samples) the sensitivity is 0, which
    means not known, with one warning. Can be lifted over children with vmap if ``metric.vectorised``.

    Args:
        metric: the metric.
        outputs: scores [V, C]. Binary outputs [V] or [V, 1] have no predicted class, and their sensitivity is 0.
        targets: labels [V].

    Returns:
        Improvements [C, 2], positive is better, whatever the metric's direction. Column 0: for the samples of class c
        that are predicted otherwise; column 1: for those of other classes that are predicted c.

    Example:
        >>> from lossalign.metrics import ErrorRate
        >>> outputs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> class_sensitivity(ErrorRate(), outputs, torch.tensor([0, 1, 1, 1]))
        tensor([[0.0000, 0.2500],
                [0.2500, 0.0000]])
    """
    if outputs.ndim < 2 or outputs.shape[-1] < 2:
        return torch.zeros(2, 2, device=outputs.device)
    if isinstance(metric, MeanMetric):
        return gains_from_samples(metric, outputs, targets)
    classes = outputs.shape[-1]
    if not isinstance(metric, ConfusionMetric):
        known = affordable(metric, classes, outputs.numel())
        return gains_from_outputs(metric, outputs, targets) if known else torch.zeros(classes, 2, device=outputs.device)
    counts = confusion_counts(outputs, targets)
    after = metric.corrected(counts)
    if after is not None:
        return error(metric, metric.from_counts(counts)) - error(metric, after)
    known = affordable(metric, classes, counts.numel())
    return gains_from_counts(metric, counts) if known else torch.zeros(classes, 2, device=outputs.device)


def affordable(metric: Metric, classes: int, elements: int, what: str = "sensitivity") -> bool:
    """Whether 2 C scorings of ``elements`` numbers are affordable, for the sensitivity or the gradient; warns once if
    not."""
    if 2 * classes * elements <= _SCORED:
        return True
    warnings.warn(
        f"metric {metric.name!r}: the {what} of {classes} classes is not computed, as it would take {2 * classes} "
        f"scorings of {elements:,} numbers at every step; write it as a lossalign.metrics.TotalsMetric "
        "or MeanMetric if it is one, or set sensitivity=False.",
        stacklevel=1,
    )
    return False


def gains_from_counts(metric: ConfusionMetric, counts: Tensor) -> Tensor:
    """``class_sensitivity`` [C, 2] of confusion counts [C, C], for any metric of counts."""
    classes = torch.arange(len(counts), device=counts.device)
    before = error(metric, metric.from_counts(counts))
    gains = []
    for some in classes.split(max(1, _HELD // (2 * counts.numel()))):
        mine = some[:, None] == classes
        out_of, into = mine[:, :, None].expand(-1, -1, len(counts)), mine[:, None, :].expand(-1, len(counts), -1)
        moved = counts * torch.stack([out_of, into], 1)
        corrected = counts - moved + torch.diag_embed(moved.sum(-1))
        gains.append(before - error(metric, metric.from_counts(corrected)))
    return torch.cat(gains)


def gains_from_samples(metric: MeanMetric, outputs: Tensor, targets: Tensor) -> Tensor:
    """``class_sensitivity`` [C, 2] of outputs [V, C] and labels [V], for a mean over samples."""
    predicted, right = _put_right(outputs, targets)
    gain = error(metric, metric.each(outputs, targets)) - error(metric, metric.each(right, targets))
    sums = torch.zeros(2, outputs.shape[-1], dtype=gain.dtype, device=gain.device)
    return sums.scatter_add(1, torch.stack([targets, predicted]), gain.expand(2, -1)).mT / len(targets)


def gains_from_outputs(metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor:
    """``class_sensitivity`` [C, 2] of outputs [V, C] and labels [V], for any metric."""
    predicted, right = _put_right(outputs, targets)
    before = error(metric, metric(outputs, targets))

    def gain(chosen: Tensor) -> Tensor:
        return before - error(metric, metric(torch.where(chosen[:, None], right, outputs), targets))

    classes = torch.arange(outputs.shape[-1], device=outputs.device)
    chosen = (torch.stack([targets, predicted]) == classes[:, None, None]).flatten(0, 1)
    if metric.vectorised:
        gains: Tensor = torch.func.vmap(gain, chunk_size=max(1, _HELD // outputs.numel()))(chosen)
    else:
        wrong = predicted != targets
        gains = torch.stack([gain(one) if bool((one & wrong).any()) else torch.zeros_like(before) for one in chosen])
    return gains.view(-1, 2)


def _put_right(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted classes [V], and outputs [V, C] whose predicted and true class have swapped scores."""
    predicted = outputs.argmax(-1)
    both = torch.stack([predicted, targets], -1)
    return predicted, outputs.scatter(-1, both, outputs.gather(-1, both).flip(-1))
