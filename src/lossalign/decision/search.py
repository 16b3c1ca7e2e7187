"""Searches for a decision: gains by Frank–Wolfe, offsets by coordinate descent."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lossalign.decision.counts import CountsScore, confusions
from lossalign.decision.elicitation import elicit

_FAR = 4.0
_GRID = 33


class Evidence(NamedTuple):
    """What F fits see.

    Attributes:
        probabilities: calibrated probabilities [F, V, C].
        truth: how much of each sample is of each class, times whether the fit sees the sample [F, V, C].
        draws: how often each sample counts in B resampled sets [B, V], over which scores are averaged.
    """

    probabilities: Tensor
    truth: Tensor
    draws: Tensor

    def decided(self, gains: Tensor) -> Tensor:
        """Confusion counts [F, B, C, C] of the decisions argmax_j Σ_i p_i G_ij, for gains [F, C, C]."""
        return confusions((self.probabilities @ gains).argmax(-1), self.truth, self.draws)


def frank_wolfe(score: CountsScore, evidence: Evidence, start: Tensor, steps: int = 12) -> Tensor:
    """Gains [F, C, C] whose decisions have the best score: Frank–Wolfe on the confusion counts R.

    With the gains G_t = mean over resampled sets of the score's gradient at R_t, and R(G) the counts of the decisions
    argmax_j Σ_i p_i G_ij: R_{t+1} = R_t + 2/(t+2) · (R(G_t) − R_t) (Narasimhan et al., ICML 2015; JMLR 2024). The
    gains of the step whose decisions score best are kept.

    Args:
        score: the metric, more is better.
        evidence: what the fits see.
        start: gains [F, C, C] of the first decisions.
        steps: gradients that are taken.

    Example:
        >>> from lossalign.metrics import MeanCost
        >>> p = torch.tensor([[[0.8, 0.2], [0.4, 0.6]]])
        >>> evidence = Evidence(p, p, torch.ones(1, 2))
        >>> costs = MeanCost(torch.tensor([[0.0, 1.0], [9.0, 0.0]]))
        >>> gains = frank_wolfe(CountsScore(costs, 2, 2), evidence, torch.eye(2)[None])
        >>> (p @ gains).argmax(-1)  # a mistake on class 1 costs nine times as much
        tensor([[1, 1]])
    """
    best, counts = start, evidence.decided(start)
    highest = score(counts).mean(-1)
    for step in range(steps):
        gains = standardised(elicit(score, counts).mean(1))
        decided = evidence.decided(gains)
        reached = score(decided).mean(-1)
        better = reached > highest + 1e-9
        best = torch.where(better[:, None, None], gains, best)
        highest = torch.where(better, reached, highest)
        counts = counts + 2 / (step + 2) * (decided - counts)
    return best


def standardised(gains: Tensor) -> Tensor:
    """Gains [..., C, C] on a common scale: the mean distance of the diagonal from the other cells is 1.

    Rows lose a constant, which changes no decision: the mean of their other cells.

    Example:
        >>> standardised(torch.tensor([[3.0, 1.0], [1.0, 5.0]]))
        tensor([[0.6667, 0.0000],
                [0.0000, 1.3333]])
    """
    classes = gains.shape[-1]
    others = (gains.sum(-1) - gains.diagonal(dim1=-2, dim2=-1)) / (classes - 1)
    gains = gains - others[..., None]
    size = gains.diagonal(dim1=-2, dim2=-1).mean(-1).abs()
    size = torch.where(size > 1e-12, size, gains.abs().amax((-2, -1)).clamp_min(1e-12))
    return gains / size[..., None, None]


def search_offsets(score: CountsScore, evidence: Evidence, start: Tensor, rounds: int = 3, grid: int = _GRID) -> Tensor:
    """Offsets [F, C] on the log-probabilities whose decisions have the best score: coordinate search.

    Each class in turn tries ``grid`` moves between −4 and 4, halved in every round, and keeps the middle of the best
    ones.

    Args:
        score: the metric, more is better.
        evidence: what the fits see.
        start: the first offsets [F, C].
        rounds: passes over the classes.
        grid: moves that are tried.

    Example:
        >>> from lossalign.metrics import ErrorRate
        >>> p, truth = torch.tensor([[[0.8, 0.2], [0.7, 0.3]]]), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
        >>> evidence = Evidence(p, truth, torch.ones(1, 2))
        >>> offsets = search_offsets(CountsScore(ErrorRate(), 2, 2), evidence, torch.zeros(1, 2))
        >>> (p.log() + offsets[:, None]).argmax(-1)
        tensor([[0, 1]])
    """
    offsets, logs = start.clone(), evidence.probabilities.clamp_min(1e-30).log()
    tried = torch.linspace(-_FAR, _FAR, grid, device=logs.device)
    for round_ in range(rounds):
        for c in range(logs.shape[-1]):
            moves = offsets[:, c, None] + tried / 2**round_
            found = score(_moved_counts(logs + offsets[:, None], logs[..., c], c, moves, evidence)).mean(-1)
            best = found >= found.amax(-1, keepdim=True) - 1e-7
            rank = best.cumsum(-1)
            middle = best & (rank == rank[:, -1:] // 2 + 1)
            offsets[:, c] = moves.gather(1, middle.int().argmax(-1, keepdim=True)).squeeze(1)
        offsets = offsets - offsets.mean(-1, keepdim=True)
    return offsets


def _moved_counts(scores: Tensor, logs: Tensor, c: int, moves: Tensor, evidence: Evidence) -> Tensor:
    """Counts [F, M, B, C, C] if class c's offset is each of ``moves`` [F, M], ascending; ``logs`` [F, V] are its own.

    A sample is of class c from the first move above its margin on, and of its best other class before.
    """
    rest = scores.clone()
    rest[..., c] = -torch.inf
    highest, rival = rest.max(-1)
    first = torch.searchsorted(moves.contiguous(), (highest - logs).contiguous(), right=True)
    fits, number, classes, sets = len(moves), moves.shape[1], scores.shape[-1], len(evidence.draws)
    weighted = evidence.truth[:, None] * evidence.draws[..., None]  # [F, B, V, C]
    at = torch.arange(fits * sets, device=moves.device).view(fits, sets, 1) * (number + 1)
    cells = (at + first[:, None]) * classes + rival[:, None]
    table = weighted.new_zeros(fits * sets * (number + 1) * classes, classes)
    table = table.index_add(0, cells.flatten(), weighted.flatten(0, 2)).view(fits, sets, number + 1, classes, classes)
    taken = table.cumsum(2)[:, :, :-1]  # of every move: rival, true class
    counts = (table.sum(2, keepdim=True) - taken).mT
    counts[..., c] += taken.sum(-2)
    return counts.transpose(1, 2)


def fit_offsets(outputs: Tensor, targets: Tensor, error: Callable[[Tensor, Tensor], Tensor], rounds: int = 3) -> Tensor:
    """Per-class offsets [C] that, added to the logits, minimise a metric on these samples.

    Coordinate descent: each class in turn tries a grid of moves and keeps the middle of the best ones; three rounds, on
    grids that halve.

    Args:
        outputs: logits of one child [V, C].
        targets: labels [V].
        error: the metric as an error, lower is better, batched over a leading axis: ([G, V, C], [V]) → [G].
        rounds: passes over the classes.

    Example:
        >>> outputs = torch.tensor([[2.0, 1.5], [2.0, 0.0]])
        >>> wrong = lambda outputs, targets: (outputs.argmax(-1) != targets).float().mean(-1)
        >>> offsets = fit_offsets(outputs, torch.tensor([1, 0]), wrong)
        >>> wrong((outputs + offsets)[None], torch.tensor([1, 0]))
        tensor([0.])
    """
    num_classes = outputs.shape[1]
    offsets = outputs.new_zeros(num_classes)
    grid = torch.linspace(-_FAR, _FAR, _GRID, device=outputs.device, dtype=outputs.dtype)
    for round_ in range(rounds):
        for c in range(num_classes):
            tries = offsets.repeat(len(grid), 1)
            tries[:, c] += grid / 2**round_
            errors = error(outputs + tries[:, None], targets)
            best = (errors <= errors.min() + 1e-9).nonzero().flatten()
            offsets = tries[best[len(best) // 2]]
    return offsets
