"""Fitting gains: calibrate, find candidates, choose among them out of fold."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lossalign.core import generator
from lossalign.decision.candidates import BLACK_BOX, Calibrated, Candidate, Effort, calibrations, find_candidates
from lossalign.decision.choice import Folds, choose, make_folds, out_of_fold, resampled
from lossalign.decision.counts import CountsScore
from lossalign.metrics import MeanCost, Metric, error

COSTS = "costs"
"""Name of the decision by expected cost, which is not chosen but known."""

_FOLDS, _FOLDS_OF_A_BLACK_BOX = 5, 3
_MOST_REPEATS, _REPEATED = 5, 20_000
_SMOOTHED, _SMOOTHING = 2**22, 16
_JUDGED, _JUDGED_OF_A_BLACK_BOX, _JUDGEMENT = 40, 16, 2**31


class Row(NamedTuple):
    """One candidate in the table of a choice.

    Attributes:
        name: what it is.
        shrinkage: how far it goes from doing nothing, 0 … 1; of ``prior`` the power of the classes' shares.
        score: the metric out of fold, mean over resampled sets, in its own direction.
        gain: mean improvement over ``none``; positive is better, whatever the metric's direction.
        error: standard error of ``gain``.
    """

    name: str
    shrinkage: float
    score: float
    gain: float
    error: float


class Fitted(NamedTuple):
    """A fitted decision argmax_j Σ_i p_i G_ij, p = softmax(scale · z + bias).

    Attributes:
        scale: a scalar.
        bias: [C].
        gains: [C, C].
        kept: index of the candidate in ``rows``.
        rows: all candidates; none if nothing was chosen.
        calls: how often a black box was called.
    """

    scale: Tensor
    bias: Tensor
    gains: Tensor
    kept: int
    rows: tuple[Row, ...]
    calls: int = 0


def fit_gains(
    outputs: Tensor, targets: Tensor, metric: Metric, scale_free: bool = True, repeats: int | None = None
) -> Fitted:
    """The decision for ``metric``, a function of the confusion counts.

    Every candidate is fitted on the folds of cross-validations and on all samples; the choice is made on samples that
    the fits did not see, and the fit on all samples is returned. Costs leave no choice: their gains are −costs.

    Args:
        outputs: logits [V, C].
        targets: labels [V]; every class occurs.
        metric: the metric.
        scale_free: whether it is unchanged by more samples of the same shares.
        repeats: most cross-validations; None: 5, and fewer for many samples.
    """
    samples, classes = outputs.shape
    score, draw = CountsScore(metric, classes, samples, scale_free), generator(0, "decision")
    least = max(2, int(targets.bincount(minlength=classes).min()))
    number = min(_FOLDS if score.exact else _FOLDS_OF_A_BLACK_BOX, least)
    most = max(1, min(repeats or _MOST_REPEATS, _REPEATED // outputs.numel())) if score.exact else 1
    folds = make_folds(targets, number, most, draw)
    calibrated = calibrations(outputs, targets, folds.seen)
    found = (
        _costs(metric, calibrated)
        if isinstance(metric, MeanCost)
        else _searched(score, calibrated, targets, folds, draw)
    )
    sets = _JUDGED if score.exact else _JUDGED_OF_A_BLACK_BOX
    judged = resampled(targets, max(8, min(sets, _JUDGEMENT // (samples * classes**2))), draw)
    noise = generator(0, "decision", "noise")
    scores = out_of_fold(score, found, calibrated.probabilities, targets, folds, judged, noise)
    kept, rows = _chosen(scores, found, metric)
    gains = found[kept].gains[-1]
    return Fitted(calibrated.scale[-1], calibrated.bias[-1], gains, kept, rows, score.calls)


def _costs(metric: MeanCost, calibrated: Calibrated) -> list[Candidate]:
    """Deciding as the outputs do, and by expected cost."""
    nothing = torch.diag_embed((-calibrated.bias).exp())
    return [Candidate("none", 0.0, nothing), Candidate(COSTS, 1.0, -metric.costs.to(nothing).expand_as(nothing))]


def _searched(
    score: CountsScore, calibrated: Calibrated, targets: Tensor, folds: Folds, draw: torch.Generator
) -> list[Candidate]:
    """The candidates of a metric that does not say what it minds."""
    samples = len(targets)
    sets = max(1, min(_SMOOTHING, _SMOOTHED // calibrated.probabilities.numel())) if score.exact else 1
    draws = torch.empty(sets, samples).exponential_(generator=draw) if sets > 1 else torch.ones(1, samples)
    draws = draws.to(calibrated.probabilities)
    return find_candidates(score, calibrated, targets, folds.seen, draws, Effort() if score.exact else BLACK_BOX)


def _chosen(scores: Tensor, found: list[Candidate], metric: Metric) -> tuple[int, tuple[Row, ...]]:
    kept, gain, error_ = choose(scores)
    kept = next((at for at, each in enumerate(found) if each.name == COSTS), kept)
    values = -error(metric, scores.mean((1, 2)))
    table = zip(found, values.tolist(), gain.tolist(), error_.tolist(), strict=True)
    return kept, tuple(Row(each.name, each.shrinkage, value, g, e) for each, value, g, e in table)
