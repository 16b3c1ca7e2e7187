"""Ranking metrics: exact areas under the precision-recall and the ROC curve.

One sort and a few cumulative sums, no loop and no data-dependent shape, so that both run for all classes at once and
can be lifted over children.
"""

from __future__ import annotations

from typing import Literal, final, get_args

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.metrics.base import Metric
from lossalign.metrics.check import check_scores
from lossalign.metrics.registry import METRICS, MetricEntry

Average = Literal["macro", "binary"]


def average_precision(scores: Tensor, positives: Tensor) -> Tensor:
    """Area under the precision-recall curve, AP = Σ_n (R_n − R_{n−1}) P_n over the thresholds n.

    Samples that tie share one threshold, as in scikit-learn: each positive counts with the precision among all
    samples that score as high as it or higher.

    Args:
        scores: [..., V].
        positives: which samples are positive, bool [..., V].

    Returns:
        AP [...]; NaN without positives, as recall then divides by their number.

    Example:
        >>> average_precision(torch.tensor([0.9, 0.5, 0.5]), torch.tensor([True, True, False]))  # (1 + 2/3) / 2
        tensor(0.8333)
    """
    ranked, order = scores.sort(-1, descending=True)
    hits = positives.gather(-1, order).float()
    last = _last_of_tie(ranked)
    precision = hits.cumsum(-1).gather(-1, last) / (last + 1)
    return (hits * precision).sum(-1) / hits.sum(-1)


def auroc(scores: Tensor, positives: Tensor) -> Tensor:
    """Area under the ROC curve: the probability that a positive outscores a negative; a tie counts one half.

    The same as with midranks, but summed as shares of the negatives, as rank sums can exceed the precision of float32.

    Args:
        scores: [..., V].
        positives: which samples are positive, bool [..., V].

    Returns:
        The area [...]; NaN without positives or without negatives.

    Example:
        >>> auroc(torch.tensor([0.9, 0.5, 0.5]), torch.tensor([True, True, False]))  # (1 + 1/2) / 2
        tensor(0.7500)
    """
    ranked, order = scores.sort(-1)
    hits = positives.gather(-1, order).float()
    misses = 1 - hits
    upto = misses.cumsum(-1)
    beaten_or_tied = upto.gather(-1, _last_of_tie(ranked))
    beaten = (upto - misses).gather(-1, _first_of_tie(ranked))
    wins = (beaten + beaten_or_tied) / 2 / misses.sum(-1, keepdim=True)
    return (hits * wins).sum(-1) / hits.sum(-1)


def _last_of_tie(ranked: Tensor) -> Tensor:
    """Position of the last sample that scores like each sample of a sorted row [..., V]."""
    return ranked.shape[-1] - 1 - _first_of_tie(ranked.flip(-1)).flip(-1)


def _first_of_tie(ranked: Tensor) -> Tensor:
    """Position of the first sample that scores like each sample of a sorted row [..., V]."""
    position = torch.arange(ranked.shape[-1], device=ranked.device)
    same = torch.nn.functional.pad(ranked[..., 1:] == ranked[..., :-1], (1, 0))
    return position.expand_as(ranked).masked_fill(same, 0).cummax(-1).values


def log_odds(logits: Tensor) -> Tensor:
    """log p_c − log(1 − p_c) = z_c − logsumexp_{j≠c} z_j: ranks like the probability p_c, and does not saturate.

    Args:
        logits: [V, C], C at least 2.

    Returns:
        [V, C].

    Example:
        >>> log_odds(torch.tensor([[60.0, 0.0], [50.0, 0.0]]))
        tensor([[ 60., -60.],
                [ 50., -50.]])
    """
    # Largest logit 0, sums in the order of size: samples with the same gaps between their logits tie exactly.
    logits = logits - logits.max(-1, keepdim=True).values
    ordered = logits.sort(-1, descending=True).values
    log_p = logits - ordered.logsumexp(-1, keepdim=True)
    p = log_p.exp()
    # Up to p = 1/2 log(1 − p) is exact; above it c is the likeliest class, and the sum runs over the others.
    others = ordered[..., 1:].logsumexp(-1, keepdim=True)
    return torch.where(p > 0.5, logits - others, log_p - (-p.clamp(max=0.5)).log1p())


def _one_vs_rest(metric: str, outputs: Tensor, targets: Tensor, average: Average) -> tuple[Tensor, Tensor]:
    """Scores and positives, [V] for ``binary``, [C, V] with a row for each class for ``macro``."""
    outputs = outputs.float()
    if average == "macro":
        if outputs.ndim != 2 or outputs.shape[-1] < 2:
            raise InputError(
                f"average='macro' needs outputs [V, C], got {tuple(outputs.shape)}; with one score a sample choose "
                "average='binary'."
            )
        check_scores(metric, outputs, targets, outputs.shape[-1])
        if targets.ndim == 2:
            return outputs.T, targets.T > 0
        classes = torch.arange(outputs.shape[-1], device=outputs.device)
        return log_odds(outputs).T, targets == classes[:, None]
    if outputs.ndim > 2 or (outputs.ndim == 2 and outputs.shape[-1] > 2):
        raise InputError(
            f"average='binary' needs outputs [V], [V, 1] or [V, 2], got {tuple(outputs.shape)}; choose average='macro'."
        )
    check_scores(metric, outputs, targets, 2)
    if outputs.ndim == 2:
        # The difference of two logits ranks like the probability of class 1, and does not saturate.
        outputs = outputs[:, 0] if outputs.shape[-1] == 1 else outputs[:, 1] - outputs[:, 0]
    return outputs, targets == 1


def _named(stem: str, average: str) -> str:
    if average not in get_args(Average):
        raise InputError(f"average={average!r}: choose from {get_args(Average)}.")
    return stem if average == "macro" else f"{stem}-{average}"


@final
class AUCPR(Metric):
    """Average precision, the area under the precision-recall curve.

    Args:
        average: ``macro``, the mean over classes of one against the rest by log-odds, classes without
            samples left out; or ``binary``, class 1 against class 0 from outputs [V], [V, 1] or [V, 2].

    Example:
        >>> AUCPR("binary")(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 1, 0]))
        tensor(0.8333)
    """

    higher_is_better = True
    percent = True
    vectorised = True
    ranks = True

    def __init__(self, average: Average = "macro") -> None:
        self.name = _named("aucpr", average)
        self.average = average

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The area, a scalar, of outputs [V, C] against labels [V], or with ``macro`` against 0/1 labels [V, C]."""
        return average_precision(*_one_vs_rest(self.name, outputs, targets, self.average)).nanmean()


@final
class AUROC(Metric):
    """Area under the ROC curve.

    Args:
        average: ``macro``, the mean over classes of one against the rest by log-odds, classes without
            samples, or with all of them, left out; or ``binary``, class 1 against class 0 from outputs [V], [V, 1] or
            [V, 2].

    Example:
        >>> AUROC("binary")(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 1, 0]))
        tensor(0.5000)
    """

    higher_is_better = True
    percent = True
    vectorised = True
    ranks = True

    def __init__(self, average: Average = "macro") -> None:
        self.name = _named("auroc", average)
        self.average = average

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The area, a scalar, of outputs [V, C] against labels [V], or with ``macro`` against 0/1 labels [V, C]."""
        return auroc(*_one_vs_rest(self.name, outputs, targets, self.average)).nanmean()


METRICS.add("aucpr", "area under the precision-recall curve, mean over classes", MetricEntry(make=AUCPR))
METRICS.add("aucpr-binary", "the same, of class 1 against class 0", MetricEntry(make=lambda: AUCPR("binary")))
METRICS.add("auroc", "area under the ROC curve, mean over classes", MetricEntry(make=AUROC))
METRICS.add("auroc-binary", "the same, of class 1 against class 0", MetricEntry(make=lambda: AUROC("binary")))
