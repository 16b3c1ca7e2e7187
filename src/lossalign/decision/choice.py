"""Choosing among candidates on samples that their fits did not see."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lossalign.decision.candidates import Candidate
from lossalign.decision.counts import CountsScore

_HELD = 2**24
_CAUTION = 1.0
"""Standard errors by which a candidate must beat ``none``."""
_LEVEL = 0.1
"""Standard errors within which a simpler candidate is as good as the best."""
_PSEUDO = 4.0
"""Samples of every class that the expected confusions weigh in the judgement."""


class Folds(NamedTuple):
    """Cross-validations, R of them with K folds.

    Attributes:
        fold: which fold a sample is in [R, V].
        seen: which samples each fit sees [R·K + 1, V]; the last fit sees all.
    """

    fold: Tensor
    seen: Tensor

    def own(self, of_fits: Tensor) -> Tensor:
        """Of something of every fit and sample [F, V, …], that of the fit that did not see the sample [R, V, …]."""
        repeats, number = self.fold.shape
        per = (len(self.seen) - 1) // repeats
        fits = torch.arange(repeats, device=of_fits.device)[:, None] * per + self.fold
        return of_fits[fits, torch.arange(number, device=of_fits.device)]


def make_folds(targets: Tensor, number: int, repeats: int, generator: torch.Generator) -> Folds:
    """Folds over which every class is spread as evenly as possible.

    Example:
        >>> folds = make_folds(torch.tensor([0, 0, 1, 1]), 2, 1, torch.Generator().manual_seed(0))
        >>> folds.seen.shape, folds.seen.view(3, 2, 2).sum(-1)  # one of each class is held out
        (torch.Size([3, 4]), tensor([[1., 1.],
                [1., 1.],
                [2., 2.]]))
    """
    rows = []
    for _ in range(repeats):
        order = torch.randperm(len(targets), generator=generator).to(targets.device)
        order = order[targets[order].argsort(stable=True)]
        sizes = targets.bincount()
        within = torch.arange(len(targets), device=targets.device) - (sizes.cumsum(0) - sizes)[targets[order]]
        rows.append(torch.empty_like(targets).scatter(0, order, within % number))
    fold = torch.stack(rows)
    held = torch.nn.functional.one_hot(fold, number).movedim(-1, 1).flatten(0, 1)
    return Folds(fold, torch.cat([1 - held, torch.ones_like(held[:1])]).float())


def resampled(targets: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """How often each sample counts in ``number`` bootstrap samples of every class [number, V]; the first is as given.

    Example:
        >>> draws = resampled(torch.tensor([0, 0, 1]), 3, torch.Generator().manual_seed(0))
        >>> draws[0], draws[:, 2]
        (tensor([1., 1., 1.]), tensor([1., 1., 1.]))
    """
    order = targets.argsort(stable=True)
    sizes = targets.bincount()
    starts = (sizes.cumsum(0) - sizes)[targets]
    share = torch.rand(number - 1, len(targets), generator=generator, dtype=torch.double).to(targets.device)
    picked = order[starts + (share * sizes[targets]).long()]
    draws = torch.zeros(number, len(targets), device=targets.device)
    draws[0] = 1
    draws[1:].scatter_add_(1, picked, torch.ones_like(draws[1:]))
    return draws


def out_of_fold(
    score: CountsScore, candidate: Candidate, probabilities: Tensor, targets: Tensor, folds: Folds, draws: Tensor
) -> Tensor:
    """Scores [R, B] of the decisions on samples that the fits did not see, on B resampled sets.

    The counts of decisions against labels, plus, as four samples of every class, those against the probabilities of the
    same fits: a few labels alone cannot tell candidates apart.

    Args:
        score: the metric, more is better.
        candidate: what each fit found.
        probabilities: of each fit [F, V, C].
        targets: labels [V].
        folds: the cross-validations.
        draws: how often each sample counts in each set [B, V].
    """
    classes = score.classes
    predictions = folds.own((probabilities @ candidate.gains).argmax(-1))
    decided = torch.nn.functional.one_hot(predictions, classes).to(probabilities)
    expected = folds.own(probabilities).mT @ decided
    weight = _PSEUDO * classes / len(targets) * targets.bincount(minlength=classes)[:, None]
    expected = expected / expected.sum(-1, keepdim=True).clamp_min(1e-9) * weight
    repeats, size, cells = len(predictions), classes**2, targets * classes + predictions
    scores = []
    for some in draws.split(max(1, _HELD // (repeats * max(size, len(targets))))):
        counts = some.new_zeros(repeats, len(some), size)
        at, times = cells[:, None].expand(-1, len(some), -1), some.expand(repeats, -1, -1)
        counts = counts.scatter_add(2, at, times).view(repeats, len(some), classes, classes)
        scores.append(score(counts + expected[:, None]))
    return torch.cat(scores, 1)


class Choice(NamedTuple):
    """What is kept, and why.

    Attributes:
        kept: index of the candidate.
        gain: how much better than the first each is [n].
        error: standard error of the gain [n].
    """

    kept: int
    gain: Tensor
    error: Tensor


def choose(scores: Tensor) -> Choice:
    """The candidate to keep, from scores [n, R, B] out of fold, the simplest first and doing nothing before all.

    A candidate passes if its mean gain over doing nothing is more than a standard error of that paired difference.
    Among those that pass, the simplest that is within a tenth of a standard error of the best is kept.

    Example:
        >>> choose(torch.tensor([[[0.5, 0.6]], [[0.5, 0.59]], [[0.7, 0.8]]])).kept
        2
    """
    scores = scores.nan_to_num(neginf=-1e30)
    paired = (scores - scores[:1]).mean(1)
    gain, error = paired.mean(-1), paired.std(-1)
    passed = gain > _CAUTION * error + 1e-7
    if not bool(passed.any()):
        return Choice(0, gain, error)
    behind = paired[int(gain.where(passed, -torch.inf).argmax())] - paired
    level = passed & (behind.mean(-1) <= _LEVEL * behind.std(-1))
    return Choice(int(level.int().argmax()), gain, error)
