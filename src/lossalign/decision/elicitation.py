"""The gradient of a metric in the confusion counts: which mistakes it minds, found by asking it."""

from __future__ import annotations

import torch
from torch import Tensor

from lossalign.decision.counts import CountsScore

_EVERY_CELL = 16
_CAP = 1e6


def elicit(score: CountsScore, counts: Tensor, step: float = 0.05) -> Tensor:
    """Gains G [..., C, C]: what the score gains if a sample of class i is predicted as j, per sample.

    For a ``ConfusionMetric`` G is the gradient ∂score/∂counts_ij by automatic differentiation. A black box is scored
    again after a share ``step`` of the samples of class i, at least one, is moved to prediction j:
    G_ij = (score(moved) − score) / (samples moved), for every cell up to 16 classes (C² calls), and for more classes
    with the gradient of a metric of class totals, δ_ij d_i + e_j (2 C calls). Both are centred to Σ_j n_ij G_ij = 0 in
    every row: a constant in row i changes no decision argmax_j Σ_i p_i G_ij.

    Args:
        score: the metric.
        counts: confusion counts [..., C, C], rows are true classes.
        step: share of a class that is moved.

    Example:
        >>> from lossalign.metrics import ErrorRate
        >>> elicit(CountsScore(ErrorRate(), 2, 4), torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
        tensor([[ 0.1250, -0.1250],
                [-0.2500,  0.0000]])
    """
    flat = counts.reshape(-1, *counts.shape[-2:])
    gains = _differentiated(score, flat) if score.exact else None
    if gains is None:
        scale = score.total / flat.sum((-2, -1), keepdim=True)
        moved = _every_cell if counts.shape[-1] <= _EVERY_CELL else _totals
        gains = torch.stack([moved(score, each, step) for each in flat * scale]) * scale
    gains = gains.nan_to_num(nan=0.0, posinf=_CAP, neginf=-_CAP).clamp(-_CAP, _CAP)
    return _centred(gains, flat).reshape(counts.shape)


def _centred(gains: Tensor, counts: Tensor) -> Tensor:
    shares = counts / counts.sum(-1, keepdim=True).clamp_min(1e-12)
    return gains - (shares * gains).sum(-1, keepdim=True)


def _differentiated(score: CountsScore, counts: Tensor) -> Tensor | None:
    """The gradient by autograd; None if the metric's code cuts it."""
    with torch.enable_grad():
        leaf = counts.detach().clone().requires_grad_()
        value = score(leaf)
        if not value.requires_grad:
            return None
        (gradient,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True)
    return gradient


def _moves(counts: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """Samples taken from every cell [C, C] when a share of its row moves, and how many of each row [C]."""
    sizes = counts.sum(-1)
    number = torch.maximum(step * sizes, torch.ones_like(sizes)).minimum(sizes)
    return counts * (number / sizes.clamp_min(1e-12))[:, None], number


def _every_cell(score: CountsScore, counts: Tensor, step: float) -> Tensor:
    """The gradient from C² moves: a share of row i, as it is spread, to column j."""
    classes = len(counts)
    taken, number = _moves(counts, step)
    rows = torch.eye(classes, device=counts.device)
    lost = rows[:, None, :, None] * taken
    gained = rows[:, None, :, None] * rows[None, :, None, :] * number[:, None, None, None]
    change: Tensor = score(counts - lost + gained) - score(counts)
    gains: Tensor = change / number.clamp_min(1e-12)[:, None]
    return gains


def _totals(score: CountsScore, counts: Tensor, step: float) -> Tensor:
    """The gradient δ_ij d_i + e_j from 2 C moves: a share of row i to its own column, of all other rows to column j."""
    classes = len(counts)
    taken, number = _moves(counts, step)
    rows = torch.eye(classes, device=counts.device)
    chosen = torch.cat([rows, 1 - rows])  # rows that move
    columns = torch.cat([rows, rows])  # where they move to
    change = chosen[:, :, None] * (number[:, None] * columns[:, None, :] - taken)
    gained = score(counts + change) - score(counts)
    design = torch.cat([change.diagonal(dim1=-2, dim2=-1), change.sum(-2)], -1)
    solved = torch.linalg.lstsq(design.double(), gained.double()[:, None], driver="gelsd").solution.flatten()
    right, predicted = solved.to(counts).split(classes)
    gains: Tensor = torch.diag(right) + predicted
    return gains
