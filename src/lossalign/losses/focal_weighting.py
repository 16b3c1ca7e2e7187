"""Focal weighting (Eq. 10): how much more the hard pairs of an anchor count than the easy ones."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lossalign.core import ParameterGroup, ParameterSpec
from lossalign.losses.distances import (
    EmbeddingLoss,
    Framework,
    Start,
    anchor_shares,
    check_choice,
    check_embeddings,
    distance_weights,
    pair_masks,
    pair_mean,
    pairwise_distances,
    validation_pairs,
)
from lossalign.losses.registry import LOSSES, LossEntry


def log_one_plus_sum(exponents: Tensor, weights: Tensor | None = None) -> Tensor:
    """log(1 + Σ_j w_j e^{a_j}) over the last axis, without overflow.

    Args:
        exponents: a [..., n].
        weights: w [..., n], or a bool mask; no gradient goes through them. All 1 if None.

    Returns:
        [...].

    Example:
        >>> log_one_plus_sum(torch.tensor([0.0, 500.0]), torch.tensor([True, False]))  # log 2
        tensor(0.6931)
    """
    if weights is not None:
        exponents = exponents + weights.detach().to(exponents.dtype).log()
    return torch.logsumexp(F.pad(exponents, (1, 0)), -1)


def focal_weighting_loss(
    d_pos: Tensor,
    d_neg: Tensor,
    phi: Tensor,
    offset: float = 1.0,
    positive: Tensor | None = None,
    negative: Tensor | None = None,
) -> Tensor:
    """Eq. 10.

        l_Φ = 1/Φ_1 · log[ 1 + Σ_j p_j exp(Φ_1 (d⁺_j − α)) ] + 1/Φ_2 · log[ 1 + Σ_j n_j exp(−Φ_2 (d⁻_j − α)) ]

    As Φ grows it tends to max(0, max_j d⁺_j − α) + max(0, α − min_j d⁻_j): the hardest pair alone. The slopes of each
    side sum to less than 1.

    Args:
        d_pos: d⁺ [..., P], distances of an anchor to its positives.
        d_neg: d⁻ [..., N], distances of an anchor to its negatives.
        phi: Φ [2], both above 0.
        offset: α.
        positive: p [..., P], which of ``d_pos`` are pairs: a bool mask, or weights. All 1 if None.
        negative: n [..., N], the same for ``d_neg``.

    Returns:
        l [...].

    Example:
        >>> d_pos, d_neg = torch.tensor([[0.5, 1.5]]), torch.tensor([[0.8, 1.2]])
        >>> focal_weighting_loss(d_pos, d_neg, torch.tensor([100.0, 100.0]))  # 0.5 + 0.2
        tensor([0.7000])
    """
    pull = log_one_plus_sum(phi[0] * (d_pos - offset), positive) / phi[0]
    push = log_one_plus_sum(-phi[1] * (d_neg - offset), negative) / phi[1]
    return pull + push


class FocalWeightingLoss(EmbeddingLoss):
    """Focal weighting (Eq. 10) over the embeddings of a batch.

    The sums run over all positives and negatives of an anchor in the batch. In the framework ``margin`` its negatives
    are weighted by ``distance_weights``; the weights sum to the number of its positives. Anchors without a positive or
    a negative have a loss of 0, and the others are scaled up so that the batch's mean is the mean over them
    (``anchor_shares``).

    Group: ``focus`` (log Φ_1 and log Φ_2, Φ ∈ [0.1, 10]), which moves Φ by factors.

    Args:
        framework: ``"triplet"``, all negatives with the same weight, or ``"margin"``, negatives weighted by distance.
        start: Φ_0; ``"paper"`` (1, 1), ``"default"`` (2, 10), the best fixed Φ of a small search.
        offset: α.
        beta: β of log Φ.

    Example:
        >>> loss = FocalWeightingLoss(start="paper")
        >>> loss(torch.eye(3), torch.tensor([0, 0, 1]), loss.spec.initial)  # 1.5 · (log(1 + e^0.41) + log(1 + e^−0.41))
        tensor([2.1433, 2.1433, 0.0000])
    """

    statistics_name = "FocalWeightingLoss"

    def __init__(
        self, framework: Framework = "triplet", start: Start = "default", offset: float = 1.0, beta: float = 0.2
    ) -> None:
        check_choice("framework", framework, Framework)
        check_choice("start", start, Start)
        self.framework = framework
        self.offset = offset
        first = (0.0, 0.0) if start == "paper" else (math.log(2), math.log(10))
        low, high = math.log(0.1), math.log(10)
        group = ParameterGroup(
            name="focus", labels=("positive", "negative"), initial=first, low=low, high=high, beta=beta
        )
        self.spec = ParameterSpec((group,))

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every anchor [B], from embeddings [B, D] and labels [B]."""
        check_embeddings(outputs, targets)
        d = pairwise_distances(outputs)
        positive, negative = pair_masks(targets)
        counts = negative
        if self.framework == "margin":
            counts = distance_weights(d, negative, outputs.shape[-1]) * positive.sum(-1, keepdim=True)
        loss = focal_weighting_loss(d, d, phi.exp(), self.offset, positive, counts)
        return anchor_shares(positive, negative) * loss

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean and standard deviation of the distances of positive and of negative pairs [2, 2]."""
        d, *masks = validation_pairs(outputs, targets)
        means = [pair_mean(d, mask) for mask in masks]
        spreads = [pair_mean((d - mean).square(), mask).sqrt() for mean, mask in zip(means, masks, strict=True)]
        return torch.stack([torch.stack(means), torch.stack(spreads)], -1)


LOSSES.add(
    "focal-weighting",
    "the paper's focal weighting of distances, Eq. 10",
    LossEntry(make=lambda run: FocalWeightingLoss(run.framework, run.start), groups=("focus",), embeds=True),
)
LOSSES.add(
    "sharp-focal",
    "Eq. 10 from (2, 10)",
    LossEntry(
        make=lambda run: FocalWeightingLoss(run.framework, "default"),
        groups=("focus",),
        embeds=True,
        stream="FocalWeightingLoss",
    ),
)
