"""Choosing among candidates on samples that their fits did not see."""

from __future__ import annotations

from collections.abc import Sequence
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
_TOGETHER = 2**24


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
    candidates: Sequence[Candidate],
    probabilities: Tensor,
    targets: Tensor,
    folds: Folds,
    draws: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Scores [n, R, B] of the decisions of n candidates on samples that the fits did not see, on B resampled sets.

    A few labels alone cannot tell candidates apart: between two samples a threshold may lie anywhere. So each set sees
    the samples a little moved, with noise on the log-probabilities whose standard deviation is 1.5 / √(samples of a
    class), the same for all candidates; and to the counts of decisions against labels are added, as four samples of
    every class, those against the probabilities of the same fits.

    Args:
        score: the metric, more is better.
        candidates: what each fit found.
        probabilities: of each fit [F, V, C].
        targets: labels [V].
        folds: the cross-validations.
        draws: how often each sample counts in each set [B, V].
        generator: where the noise comes from.
    """
    classes = score.classes
    own = folds.own(probabilities)
    logs = own.clamp_min(1e-30).log()
    spread = _JITTER * (classes / len(targets)) ** 0.5
    weight = _PSEUDO * classes / len(targets) * targets.bincount(minlength=classes)[:, None]
    gains = torch.stack([each.gains for each in candidates])
    scores = []
    for some in draws.split(max(1, _TOGETHER // (own.numel() * len(gains)))):
        noise = torch.stack([torch.randn(logs.shape, generator=generator) for _ in some]).to(logs)
        moved = (logs + spread * noise).softmax(-1).transpose(0, 1)  # [R, B, V, C]
        predictions = _decided(moved, gains, folds)
        counts, expected = _tables(predictions, targets, own, some)
        expected = expected / expected.sum(-1, keepdim=True).clamp_min(1e-9) * weight
        scores.append(score(counts + expected))
    return torch.cat(scores, 2)


def _decided(moved: Tensor, gains: Tensor, folds: Folds) -> Tensor:
    """Decisions [n, R, B, V] on probabilities [R, B, V, C], each by the gains [n, F, C, C] that did not see it."""
    repeats, sets, samples = moved.shape[:3]
    number = (gains.shape[1] - 1) // repeats
    found = folds.fold.new_empty(len(gains), repeats, sets, samples)
    for fit in range(repeats * number):
        repeat, fold = divmod(fit, number)
        held = (folds.fold[repeat] == fold).nonzero().squeeze(1)
        seen = moved[repeat][:, held].flatten(0, 1)
        scores = seen @ gains[:, fit]  # [n, B · held, C]
        found[:, repeat, :, held] = scores.argmax(-1).view(len(gains), sets, -1)
    return found


def _tables(predictions: Tensor, targets: Tensor, own: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Counts of decisions [n, R, B, V] against labels and against probabilities, both [n, R, B, C, C]; rows: truth."""
    number, repeats, sets, _ = predictions.shape
    classes = own.shape[-1]
    flat = predictions.flatten(0, 2)
    at = torch.arange(len(flat), device=own.device)[:, None] * classes
    cells = (at + targets) * classes + flat
    times = draws.expand(number, repeats, -1, -1)
    counts = own.new_zeros(len(flat) * classes**2).scatter_add(0, cells.flatten(), times.flatten())
    probable = own[:, None].expand(number, -1, sets, -1, -1).flatten(0, 3)
    expected = own.new_zeros(len(flat) * classes, classes).index_add(0, (at + flat).flatten(), probable)
    shape = (number, repeats, sets, classes, classes)
    return counts.view(shape), expected.view(shape).mT


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
