"""Where the offsets of one model begin: at zero or at logit adjustment, whichever the metric prefers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lossalign.control import RuleController
from lossalign.core import Controller, InputError, ParameterSpec, Ranks, generator
from lossalign.losses import AdaptiveLoss
from lossalign.metrics import Metric, error

RESAMPLES = 32
"""Bootstrap samples that tell whether the metric prefers a shift."""


def log_shares(counts: Tensor) -> Tensor:
    """log π of class counts [C], centred; a class that was never seen counts as seen once.

    Example:
        >>> log_shares(torch.tensor([100, 1]))
        tensor([ 2.3026, -2.3026])
    """
    shares = counts.double().clamp(min=1).log()
    return (shares - shares.mean()).float()


def prefers_adjusted(metric: Metric, outputs: Tensor, targets: Tensor, shift: Tensor) -> bool:
    """Whether the metric of ``outputs`` − ``shift`` is better than that of the outputs, by more than a standard error.

    A network trained on classes of shares π predicts with log π in its outputs; without it, it predicts as if the
    classes were equally frequent, as one trained with logit adjustment does. The standard error is that of the paired
    difference over bootstrap samples that keep the number of each class.

    Args:
        metric: the metric.
        outputs: logits of validation samples [V, C].
        targets: labels [V].
        shift: log π, centred [C].

    Example:
        >>> from lossalign.metrics import BalancedError, ErrorRate
        >>> outputs = torch.tensor([[3.0, 0.0]] * 30 + [[1.0, 0.0]] * 10)
        >>> targets, shift = torch.tensor([0] * 30 + [1] * 10), torch.tensor([0.8, -0.8])
        >>> prefers_adjusted(BalancedError(), outputs, targets, shift)
        True
        >>> prefers_adjusted(ErrorRate(), outputs, targets, -2 * shift)
        False
    """
    adjusted, draw = outputs - shift.to(outputs), generator(0, "start")
    order = targets.argsort(stable=True)
    sizes = targets.bincount().tolist()

    def gain(at: Tensor) -> float:
        before, after = (error(metric, metric(some[at], targets[at])) for some in (outputs, adjusted))
        return float(before - after)

    gains = torch.tensor([gain(order[_resampled(sizes, draw).to(order.device)]) for _ in range(RESAMPLES)])
    return bool(gain(order) > gains.std())


def _resampled(sizes: Sequence[int], draw: torch.Generator) -> Tensor:
    """Positions of a bootstrap sample of blocks of these sizes, drawn within each block."""
    starts = torch.tensor([0, *sizes]).cumsum(0)[:-1].tolist()
    drawn = [first + torch.randint(size, (size,), generator=draw) for first, size in zip(starts, sizes, strict=True)]
    return torch.cat(drawn)


class Start:
    """The start of the offsets: counts the labels that a model trains on, until the metric is first measured.

    Args:
        loss: whose offsets begin somewhere.
        given: training examples of each class [C]; None: count them.
    """

    def __init__(self, loss: AdaptiveLoss, given: Sequence[int] | Tensor | None) -> None:
        spec = loss.spec
        self._size = spec.slices["offsets"].stop - spec.slices["offsets"].start
        self._given = None if given is None else _checked(given, self._size)
        self.counts = torch.zeros(self._size)
        """Labels that were counted so far [C]."""

    def count(self, targets: Tensor) -> None:
        """Count a batch's labels; nothing is fetched from a GPU."""
        if self._given is None and targets.ndim == 1:
            if self.counts.device != targets.device:
                self.counts = self.counts.to(targets.device)
            ones = torch.ones(len(targets), device=targets.device)
            self.counts.index_add_(0, targets, ones)

    def phi(self, spec: ParameterSpec, metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Φ with its offsets at logit adjustment, if the metric prefers that; else None.

        Args:
            spec: the loss's parameters.
            metric: the metric.
            outputs: validation outputs of the model that was trained with the offsets at zero [V, C].
            targets: labels [V].
        """
        counts = self._given if self._given is not None else _of_all_ranks(self.counts.cpu())
        shift = log_shares(counts)
        if not bool(shift.any()) or not prefers_adjusted(metric, outputs, targets, shift):
            return None
        phi = spec.initial.clone()
        phi[spec.slices["offsets"]] = shift
        return phi.clamp(spec.low, spec.high)


def _of_all_ranks(counts: Tensor) -> Tensor:
    ranks = Ranks.current()
    return torch.stack(ranks.exchange(lambda: counts)).sum(0)


def _checked(given: Sequence[int] | Tensor, classes: int) -> Tensor:
    try:
        counts = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as cause:
        raise InputError(
            f"class_counts: it is of type {type(given).__name__}; give the number of training examples of each class."
        ) from cause
    if counts.shape != (classes,) or not bool((counts.isfinite() & (counts >= 0)).all()) or not counts.any():
        raise InputError(
            f"class_counts: {given!r} is not one number of training examples for each of {classes} classes; give "
            f"{classes} numbers, e.g. torch.bincount(labels, minlength={classes})."
        )
    return counts


def start_of(loss: AdaptiveLoss, controller: Controller, counts: Sequence[int] | Tensor | None) -> Start | None:
    """Where the offsets of ``loss`` begin, if a rule that follows the metric moves them; other counts are refused."""
    if isinstance(controller, RuleController) and controller.wants and "offsets" in loss.spec.slices:
        return Start(loss, counts)
    if counts is not None:
        raise InputError(
            "class_counts: they say where the offsets of a rule begin, and no rule moves offsets here; leave them out, "
            "or give controller='metric-gradient'."
        )
    return None
