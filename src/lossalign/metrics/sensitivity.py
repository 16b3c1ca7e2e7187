"""What the metric would gain if one kind of error vanished."""

from __future__ import annotations

import torch
from torch import Tensor

from lossalign.metrics.base import Metric, error
from lossalign.metrics.confusion import ConfusionMetric, confusion_counts

_HELD = 2**23  # elements of corrected counts or outputs in memory at once, for each child


def class_sensitivity(metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor:
    """How much better the metric would be without the errors out of, or into, each class.

    A ``ConfusionMetric`` re-scores corrected counts. Any other metric re-scores 2 C corrected outputs, where the
    predicted and the true class of each wrong sample swap scores (a wrong sample that ties stays wrong). Can be
    lifted over children with vmap if ``metric.vectorised``.

    Args:
        metric: what is to gain.
        outputs: scores [V, C]. Binary outputs [V] or [V, 1] name no predicted class, and their sensitivity is 0.
        targets: labels [V].

    Returns:
        Improvements [C, 2], positive is better whatever the metric's direction. Column 0: the samples of class c that
        are predicted otherwise; column 1: those of other classes that are predicted c.

    Example:
        >>> from lossalign.metrics import ErrorRate
        >>> outputs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> class_sensitivity(ErrorRate(), outputs, torch.tensor([0, 1, 1, 1]))
        tensor([[0.0000, 0.2500],
                [0.2500, 0.0000]])
    """
    if outputs.ndim < 2 or outputs.shape[-1] < 2:
        return torch.zeros(2, 2, device=outputs.device)
    if isinstance(metric, ConfusionMetric):
        return gains_from_counts(metric, confusion_counts(outputs, targets))
    return gains_from_outputs(metric, outputs, targets)


def gains_from_counts(metric: ConfusionMetric, counts: Tensor) -> Tensor:
    """``class_sensitivity`` [C, 2] of confusion counts [C, C]."""
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


def gains_from_outputs(metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor:
    """``class_sensitivity`` [C, 2] of outputs [V, C] and labels [V], for any metric."""
    predicted = outputs.argmax(-1)
    both = torch.stack([predicted, targets], -1)
    right = outputs.scatter(-1, both, outputs.gather(-1, both).flip(-1))
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
