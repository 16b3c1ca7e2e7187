"""Choosing among candidates on samples that their fits did not see."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lossalign.decision.candidates import Candidate
from lossalign.decision.counts import CountsScore

_CAUTION = 1.0
"""Standard errors by which a candidate must beat ``none``."""
_LEVEL = 0.1
"""Standard errors within which a simpler candidate is as good as the best."""
_JITTER = 1.5
"""Standard deviation of the noise on log-probabilities, with one sample of every class."""
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
    score: CountsScore,
    candidate: Candidate,
    probabilities: Tensor,
    targets: Tensor,
    folds: Folds,
    draws: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Scores [R, B] of the decisions on samples that the fits did not see, on B resampled sets.

    A few labels alone cannot tell candidates apart: between two samples a threshold may lie anywhere. So each set sees
    the samples a little moved, with noise on the log-probabilities whose standard deviation is 1.5 / √(samples of a
    class); and to the counts of decisions against labels are added, as four samples of every class, those against the
    probabilities of the same fits.

    Args:
        score: the metric, more is better.
        candidate: what each fit found.
        probabilities: of each fit [F, V, C].
        targets: labels [V].
        folds: the cross-validations.
        draws: how often each sample counts in each set [B, V].
        generator: where the noise comes from.
    """
    classes, repeats = score.classes, len(folds.fold)
    own = folds.own(probabilities)
    logs = own.clamp_min(1e-30).log()
    gains = candidate.gains[:-1].view(repeats, -1, classes, classes)
    spread = _JITTER * (classes / len(targets)) ** 0.5
    weight = _PSEUDO * classes / len(targets) * targets.bincount(minlength=classes)[:, None]
    scores = []
    for times in draws:
        moved = (logs + spread * torch.randn(logs.shape, generator=generator).to(logs)).softmax(-1)
        decided = (moved[:, None] @ gains).argmax(-1)
        predictions = decided.gather(1, folds.fold[:, None]).squeeze(1)
        expected = own.mT @ torch.nn.functional.one_hot(predictions, classes).to(own)
        expected = expected / expected.sum(-1, keepdim=True).clamp_min(1e-9) * weight
        cells = targets * classes + predictions
        counts = own.new_zeros(repeats, classes**2).scatter_add(1, cells, times.expand(repeats, -1))
        scores.append(score(counts.view(repeats, classes, classes) + expected))
    return torch.stack(scores, 1)


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
