"""Rival losses of metric learning, whose parameters stay at their start."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lossalign.core import ParameterGroup, ParameterSpec
from lossalign.losses.distance_mixture import triplet_loss
from lossalign.losses.distances import (
    EmbeddingLoss,
    anchor_shares,
    check_embeddings,
    chosen_pairs,
    cosines,
    pair_masks,
    pair_mean,
    pairwise_distances,
    validation_pairs,
)
from lossalign.losses.focal_weighting import log_one_plus_sum
from lossalign.losses.registry import LOSSES, LossEntry


def margin_loss(d: Tensor, sign: float, margin: float | Tensor, boundary: float | Tensor) -> Tensor:
    """Wu et al. (ICCV 2017), of distances of any shape.

        l = max(0, α + y (d − β)),   y = 1 for positive and −1 for negative pairs

    Args:
        d: distances [...].
        sign: y.
        margin: α.
        boundary: β.

    Returns:
        l [...].

    Example:
        >>> margin_loss(torch.tensor([0.9, 1.2]), sign=1.0, margin=0.2, boundary=1.2)
        tensor([0.0000, 0.2000])
    """
    return (margin + sign * (d - boundary)).clamp(min=0)


def contrastive_loss(d: Tensor, positive: Tensor, negative: Tensor, margin: float | Tensor) -> Tensor:
    """Hadsell et al. (CVPR 2006), each side a mean over the anchor's pairs.

        l_i = mean_{j positive} d_ij² + mean_{j negative} max(0, m − d_ij)²

    Args:
        d: distances [A, B].
        positive: bool [A, B].
        negative: bool [A, B].
        margin: m.

    Returns:
        l [A].

    Example:
        >>> d, positive = torch.tensor([[0.5, 0.8, 2.0]]), torch.tensor([[True, False, False]])
        >>> contrastive_loss(d, positive, ~positive, margin=1.0)  # 0.25 + 0.04 / 2
        tensor([0.2700])
    """
    pull = (d.square() * positive).sum(-1) / positive.sum(-1).clamp(min=1)
    push = ((margin - d).clamp(min=0).square() * negative).sum(-1) / negative.sum(-1).clamp(min=1)
    return pull + push


def multi_similarity_loss(
    similarity: Tensor,
    positive: Tensor,
    negative: Tensor,
    alpha: float | Tensor = 2.0,
    beta: float | Tensor = 50.0,
    threshold: float = 0.5,
    slack: float = 0.1,
) -> Tensor:
    """Wang et al. (CVPR 2019), with their mining of pairs.

        l_i = 1/α · log[ 1 + Σ_{j ∈ P_i} e^{−α (s_ij − λ)} ] + 1/β · log[ 1 + Σ_{j ∈ N_i} e^{β (s_ij − λ)} ]
        P_i = { j positive: s_ij < max_{k negative} s_ik + ε },   N_i = { j negative: s_ij > min_{k positive} s_ik − ε }

    Args:
        similarity: cosines s [A, B].
        positive: bool [A, B].
        negative: bool [A, B].
        alpha: α.
        beta: β.
        threshold: λ.
        slack: ε.

    Returns:
        l [A]; 0 for an anchor without a positive or a negative.

    Example:
        >>> s, positive = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[True, False, False]])
        >>> multi_similarity_loss(s, positive, ~positive)  # log(2) / 2 + log(2) / 50; s = 0 is easy
        tensor([0.3604])
    """
    fixed = similarity.detach()
    hardest_negative = fixed.masked_fill(~negative, -torch.inf).amax(-1, keepdim=True)
    hardest_positive = fixed.masked_fill(~positive, torch.inf).amin(-1, keepdim=True)
    pulled = positive & (fixed < hardest_negative + slack)
    pushed = negative & (fixed > hardest_positive - slack)
    pull = log_one_plus_sum(-alpha * (similarity - threshold), pulled) / alpha
    return pull + log_one_plus_sum(beta * (similarity - threshold), pushed) / beta


class Rival(EmbeddingLoss):
    """A loss whose statistics are, for every parameter, the mean distances of positive and of negative pairs."""

    statistics_name = "Rival"

    def __init__(self, *groups: ParameterGroup) -> None:
        self.spec = ParameterSpec(groups)
        self._size = self.spec.size

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean distance of positive and of negative pairs, for every parameter [P, 2]."""
        d, positive, negative = validation_pairs(outputs, targets)
        return torch.stack([pair_mean(d, positive), pair_mean(d, negative)]).expand(self._size, 2)


class TripletLoss(Rival):
    """The triplet loss (Eq. 8) with semi-hard negatives, its mean over an anchor's positives.

    The mean includes triplets with a loss of 0. Group: ``margin`` (η ∈ [0, 1]).

    Args:
        margin: η, between squared distances.
        beta: β of η.

    Example:
        >>> loss = TripletLoss()
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1]), loss.spec.initial)
        tensor([0.2000, 0.2000, 0.2000, 0.2000])
    """

    def __init__(self, margin: float = 0.2, beta: float = 0.05) -> None:
        super().__init__(_one("margin", "η", margin, 0.0, 1.0, beta))

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every anchor [B], from embeddings [B, D] and labels [B]."""
        check_embeddings(outputs, targets)
        pairs = chosen_pairs(outputs, targets, "triplet")
        return (pairs.w_pos * triplet_loss(pairs.d_pos, pairs.d_neg, phi[0])).sum(-1)


class MarginLoss(Rival):
    """The margin loss (Wu et al. 2017) with one β for all classes, negatives weighted by distance.

    Negatives count as much as positives, each with its expected number of draws; the mean includes pairs with a loss
    of 0. Groups: ``margin`` (α ∈ [0, 1]) and ``boundary`` (β ∈ [0.2, 1.8]).

    Args:
        margin: α.
        boundary: β, the distance that separates positives from negatives.
        beta: how far one action moves α; β moves by twice as much.

    Example:
        >>> loss = MarginLoss(boundary=1.5)
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1]), loss.spec.initial)  # √2 − 1.3; negatives are beyond 1.4
        tensor([0.1142, 0.1142, 0.1142, 0.1142])
    """

    def __init__(self, margin: float = 0.2, boundary: float = 1.2, beta: float = 0.05) -> None:
        super().__init__(
            _one("margin", "α", margin, 0.0, 1.0, beta), _one("boundary", "β", boundary, 0.2, 1.8, 2 * beta)
        )

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every anchor [B], from embeddings [B, D] and labels [B]."""
        check_embeddings(outputs, targets)
        pairs = chosen_pairs(outputs, targets, "margin")
        pull, push = margin_loss(pairs.d_pos, 1.0, phi[0], phi[1]), margin_loss(pairs.d_neg, -1.0, phi[0], phi[1])
        return (pairs.w_pos * pull + pairs.w_neg * push).sum(-1)


class ContrastiveLoss(Rival):
    """The contrastive loss (Hadsell et al. 2006) over all pairs of a batch. Group: ``margin`` (m ∈ [0, 2]).

    Args:
        margin: m, the distance from which negatives have a loss of 0.
        beta: β of m.

    Example:
        >>> loss = ContrastiveLoss()
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1]), loss.spec.initial)
        tensor([2.0000, 2.0000, 2.0000, 2.0000])
    """

    def __init__(self, margin: float = 1.0, beta: float = 0.1) -> None:
        super().__init__(_one("margin", "m", margin, 0.0, 2.0, beta))

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every anchor [B], from embeddings [B, D] and labels [B]."""
        check_embeddings(outputs, targets)
        positive, negative = pair_masks(targets)
        loss = contrastive_loss(pairwise_distances(outputs), positive, negative, phi[0])
        return anchor_shares(positive, negative) * loss


class MultiSimilarityLoss(Rival):
    """The multi-similarity loss (Wang et al. 2019) with its mining. Group: ``sharpness`` (log α, log β ∈ [−1, 5]).

    Args:
        pull: α, of positives.
        push: β, of negatives.
        threshold: λ, the cosine that separates positives from negatives.
        slack: ε of the mining.
        beta: how far one action moves log α and log β.

    Example:
        >>> loss = MultiSimilarityLoss()
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1]), loss.spec.initial)  # log(1 + e) / 2
        tensor([0.6566, 0.6566, 0.6566, 0.6566])
    """

    def __init__(
        self,
        pull: float = 2.0,
        push: float = 50.0,
        threshold: float = 0.5,
        slack: float = 0.1,
        beta: float = 0.2,
    ) -> None:
        start = (math.log(pull), math.log(push))
        labels = ("log α", "log β")
        super().__init__(ParameterGroup(name="sharpness", labels=labels, initial=start, low=-1.0, high=5.0, beta=beta))
        self.threshold, self.slack = threshold, slack

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every anchor [B], from embeddings [B, D] and labels [B]."""
        check_embeddings(outputs, targets)
        positive, negative = pair_masks(targets)
        alpha, beta = phi.exp().unbind()
        similarity = cosines(outputs, outputs)
        loss = multi_similarity_loss(similarity, positive, negative, alpha, beta, self.threshold, self.slack)
        return anchor_shares(positive, negative) * loss


def _one(name: str, label: str, initial: float, low: float, high: float, beta: float) -> ParameterGroup:
    return ParameterGroup(name=name, labels=(label,), initial=initial, low=low, high=high, beta=beta)


def _fixed(kind: type[Rival], stream: str) -> LossEntry:
    return LossEntry(make=lambda run: kind(), embeds=True, stream=stream)


LOSSES.add("triplet", "triplet loss with semi-hard negatives, Eq. 8", _fixed(TripletLoss, "TripletLoss"))
LOSSES.add("margin", "margin loss (Wu et al. 2017)", _fixed(MarginLoss, "MarginLoss"))
LOSSES.add("contrastive", "contrastive loss (Hadsell et al. 2006)", _fixed(ContrastiveLoss, "ContrastiveLoss"))
LOSSES.add(
    "multi-similarity", "multi-similarity loss (Wang et al. 2019)", _fixed(MultiSimilarityLoss, "MultiSimilarityLoss")
)
