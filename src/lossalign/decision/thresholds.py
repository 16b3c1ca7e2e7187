"""Thresholds for several labels at once: shifts of each label's log-odds, searched for the metric of all labels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lossalign.core import generator
from lossalign.decision.candidates import calibrations
from lossalign.decision.choice import Folds, choose, make_folds
from lossalign.decision.counts import SURE
from lossalign.decision.fit import Row
from lossalign.metrics import Metric, error, score_children

_FOLDS, _ROUNDS, _GRID, _FAR, _SETS = 3, 2, 13, 4.0, 16
_SHRINKAGES = (0.5, 1.0)


class Thresholds(NamedTuple):
    """A fitted decision for several labels: label l is given if scale_l z_l + bias_l > threshold_l.

    Attributes:
        scale: [L].
        bias: [L].
        threshold: in calibrated log-odds [L].
        kept: index of the candidate in ``rows``.
        rows: all candidates.
    """

    scale: Tensor
    bias: Tensor
    threshold: Tensor
    kept: int
    rows: tuple[Row, ...]


def fit_thresholds(outputs: Tensor, targets: Tensor, metric: Metric) -> Thresholds:
    """The thresholds for ``metric``: as they are, calibrated at probability ½, or searched; chosen out of fold.

    A metric that is not vectorised is called at most 4 · 26 · L + 5 · 17 times.

    Args:
        outputs: log-odds of each label [V, L].
        targets: 0 or 1 for each label [V, L].
        metric: the metric.
    """
    draw = generator(0, "decision")
    folds = make_folds(torch.zeros(len(outputs), dtype=torch.long), min(_FOLDS, len(outputs)), 1, draw)
    scale, bias = _calibrated(outputs, targets, folds.seen)  # [F, L]
    odds = scale[:, None] * outputs + bias[:, None]
    searched = torch.stack([_searched(z[s > 0], targets[s > 0], metric) for z, s in zip(odds, folds.seen, strict=True)])
    found = [("none", 0.0, bias), ("prior", 0.0, torch.zeros_like(bias))]
    found += [("offsets", share, (1 - share) * bias + share * searched) for share in _SHRINKAGES]
    drawn = torch.randint(len(outputs), (_SETS, len(outputs)), generator=draw)
    drawn = torch.cat([torch.arange(len(outputs))[None], drawn])
    values = torch.stack([_judged(odds, threshold, targets, metric, folds, drawn) for _, _, threshold in found])
    kept, gain, error_ = choose(-error(metric, values)[:, None])
    table = zip(found, values.mean(-1).tolist(), gain.tolist(), error_.tolist(), strict=True)
    rows = tuple(Row(name, share, value, g, e) for (name, share, _), value, g, e in table)
    return Thresholds(scale[-1], bias[-1], found[kept][2][-1], kept, rows)


def _calibrated(outputs: Tensor, targets: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and bias [F, L] of the log-odds of every label."""
    each = [
        calibrations(torch.stack([torch.zeros_like(z), z], -1), y.long(), seen)
        for z, y in zip(outputs.unbind(-1), targets.unbind(-1), strict=True)
    ]
    return torch.stack([c.scale for c in each], -1), torch.stack([c.bias[:, 1] - c.bias[:, 0] for c in each], -1)


def _sure(odds: Tensor) -> Tensor:
    return torch.where(odds > 0, SURE, -SURE)


def _searched(odds: Tensor, targets: Tensor, metric: Metric) -> Tensor:
    """Thresholds [L] on log-odds [V, L] with the best metric: coordinate search."""
    threshold = torch.zeros_like(odds[0])
    moves = torch.linspace(-_FAR, _FAR, _GRID, device=odds.device)
    for round_ in range(_ROUNDS):
        for label in range(odds.shape[1]):
            tries = threshold.repeat(_GRID, 1)
            tries[:, label] += moves / 2**round_
            decided = _sure(odds - tries[:, None])
            errors = error(metric, score_children(metric, decided, targets.expand(_GRID, *targets.shape)))
            best = (errors <= errors.nan_to_num(nan=torch.inf).min() + 1e-7).nonzero().flatten()
            threshold = tries[best[len(best) // 2]] if len(best) else threshold
    return threshold


def _judged(odds: Tensor, threshold: Tensor, targets: Tensor, metric: Metric, folds: Folds, drawn: Tensor) -> Tensor:
    """The metric [B] of decisions out of fold, on the samples ``drawn`` [B, V]."""
    decided = folds.own(_sure(odds - threshold[:, None]))[0]
    return score_children(metric, decided[drawn], targets[drawn])
