"""Distances between the embeddings of a batch, its positive and negative pairs, and the choice of negatives.

Every distance is that of L2-normalised embeddings, so any network's outputs can be used. Pairs are formed within
the batch; with accumulation or several ranks, within its part. Nothing is random.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from lossalign.core import InputError
from lossalign.losses.base import AdaptiveLoss
from lossalign.losses.classes import way_to_labels

Framework = Literal["triplet", "margin"]
Start = Literal["default", "paper"]

_LEAST_DISTANCE = 1e-3  # keeps the gradient of the root finite; float32 cannot tell directions that are nearer
_LEAST_NORM = 1e-6  # of an embedding: keeps the gradient finite where a network outputs zeros
_WEIGHED_FROM, _LEFT_OUT_FROM = 0.5, 1.4  # Wu et al. 2017
_ANCHORS = 64


def cosines(embeddings: Tensor, others: Tensor) -> Tensor:
    """cos(x_i, y_j) [A, B] of embeddings x [A, D] and y [B, D], in float32, also under autocast.

    Example:
        >>> cosines(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0], [0.0, -1.0]]))
        tensor([[ 0.6000, -0.8000]])
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        x, y = (F.normalize(rows.float(), dim=-1, eps=_LEAST_NORM) for rows in (embeddings, others))
        return x @ y.mT


def pairwise_distances(embeddings: Tensor, others: Tensor | None = None) -> Tensor:
    """d_ij = ‖ x_i/‖x_i‖ − y_j/‖y_j‖ ‖ = √(2 − 2 cos(x_i, y_j)), limited to [0.001, 2].

    Args:
        embeddings: x [A, D], of any length.
        others: y [B, D]; x again if None.

    Returns:
        d [A, B] in float32, its gradient finite everywhere and 0 where two directions are the same.

    Example:
        >>> pairwise_distances(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0], [-3.0, 0.0]]))
        tensor([[1.4142, 2.0000]])
    """
    squared = 2 - 2 * cosines(embeddings, embeddings if others is None else others)
    return squared.clamp(_LEAST_DISTANCE**2, 4.0).sqrt()


def pair_masks(targets: Tensor, anchors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Which pairs are positive, of one class and not the same sample, and which are negative, of two classes.

    Args:
        targets: class labels [B].
        anchors: positions of the samples to pair with all [A]; all if None.

    Returns:
        Two bool masks [A, B].

    Example:
        >>> positive, negative = pair_masks(torch.tensor([7, 7, 3]))
        >>> positive.int().tolist(), negative.int().tolist()
        ([[0, 1, 0], [1, 0, 0], [0, 0, 0]], [[0, 0, 1], [0, 0, 1], [1, 1, 0]])
    """
    position = torch.arange(len(targets), device=targets.device)
    anchors = position if anchors is None else anchors
    same = targets[anchors][:, None] == targets
    return same & (anchors[:, None] != position), ~same


def semi_hard(d: Tensor, negative: Tensor) -> Tensor:
    """For every pair (i, j) the distance of i to its nearest negative that is farther than j.

    Where there is none, the distance to i's farthest negative, as in TensorFlow's ``triplet_semihard_loss``; the
    FaceNet paper does not define this case.

    Args:
        d: distances [A, B].
        negative: bool [A, B].

    Returns:
        Distances [A, B] that carry the gradient of the chosen negatives; meaningless in rows without negatives.

    Example:
        >>> d = torch.tensor([[0.0, 0.5, 0.4, 0.6, 0.9]])
        >>> semi_hard(d, torch.tensor([[False, False, True, True, True]]))[0, 1]
        tensor(0.6000)
    """
    fixed = d.detach()
    ranked, order = fixed.masked_fill(~negative, torch.inf).sort(-1)
    nearer = torch.searchsorted(ranked, fixed.contiguous(), right=True)
    last = negative.sum(-1, keepdim=True) - 1
    return d.gather(-1, order.gather(-1, torch.minimum(nearer, last).clamp(min=0)))


def distance_weights(d: Tensor, negative: Tensor, dimensions: int) -> Tensor:
    """Probability of each negative of an anchor under distance-weighted sampling (Wu et al., ICCV 2017).

        P(j) ∝ 1 / q(max(d_ij, 0.5)) for negatives j with d_ij < 1.4,
        log q(d) = (D − 2) log d + (D − 3)/2 · log(1 − d²/4)

    q is the density of distances between random points on the sphere. A loss weighted by P is the expected value of a
    sampled loss: its gradient has the same mean and less noise.

    Args:
        d: distances [A, B].
        negative: bool [A, B].
        dimensions: D, of the embeddings.

    Returns:
        P [A, B], without a gradient; rows sum to 1, or are 0 where no negative is nearer than 1.4.

    Example:
        >>> distance_weights(torch.tensor([[0.1, 0.5, 1.0, 1.5]]), torch.ones(1, 4, dtype=torch.bool), dimensions=3)
        tensor([[0.4000, 0.4000, 0.2000, 0.0000]])
    """
    fixed = d.detach()
    allowed = negative & (fixed < _LEFT_OUT_FROM)
    within = fixed.clamp(_WEIGHED_FROM, _LEFT_OUT_FROM)
    log_q = (dimensions - 2) * within.log() + (dimensions - 3) / 2 * torch.log1p(-within.square() / 4)
    weights = torch.softmax((-log_q).masked_fill(~allowed, -torch.inf), -1)
    return weights.masked_fill(~allowed, 0.0)


def anchor_shares(positive: Tensor, negative: Tensor) -> Tensor:
    """Weights under which a batch's mean is the mean over the anchors that have a positive and a negative.

    The weight of such an anchor is B over their number, of any other 0, so samples without a partner do not scale the
    loss. If all classes have the same number of samples, all weights are 1.

    Args:
        positive: bool [B, B].
        negative: bool [B, B].

    Returns:
        Weights [B].

    Example:
        >>> anchor_shares(*pair_masks(torch.tensor([7, 7, 3])))
        tensor([1.5000, 1.5000, 0.0000])
    """
    usable = positive.any(-1) & negative.any(-1)
    return usable * (len(usable) / usable.sum().clamp(min=1))


class Pairs(NamedTuple):
    """Which pairs a loss is summed over; for anchor i it is Σ_j w⁺_ij l⁺(d⁺_ij) + Σ_j w⁻_ij l⁻(d⁻_ij).

    Attributes:
        d_pos: distances of anchors to positives [B, B].
        w_pos: their weights [B, B], 0 where there is no pair.
        d_neg: distances of anchors to negatives [B, B].
        w_neg: their weights [B, B], 0 where there is no pair.
    """

    d_pos: Tensor
    w_pos: Tensor
    d_neg: Tensor
    w_neg: Tensor


def chosen_pairs(embeddings: Tensor, targets: Tensor, framework: Framework) -> Pairs:
    """All positives of every anchor, and the negatives that the framework picks.

    ``triplet``: for each positive the :func:`semi_hard` negative. ``margin``: for each positive the mean over the
    anchor's negatives under :func:`distance_weights`. Both sides are means over the anchor's positives, times
    :func:`anchor_shares`: anchors without a positive or a negative have weights of 0.

    Args:
        embeddings: [B, D].
        targets: class labels [B].
        framework: ``"triplet"`` or ``"margin"``.

    Example:
        >>> pairs = chosen_pairs(torch.eye(3), torch.tensor([0, 0, 1]), "triplet")
        >>> pairs.w_pos
        tensor([[0.0000, 1.5000, 0.0000],
                [1.5000, 0.0000, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    d = pairwise_distances(embeddings)
    positive, negative = pair_masks(targets)
    share = anchor_shares(positive, negative)[:, None]
    w_pos = share * positive / positive.sum(-1, keepdim=True).clamp(min=1)
    if framework == "triplet":
        return Pairs(d, w_pos, semi_hard(d, negative), w_pos)
    return Pairs(d, w_pos, d, share * distance_weights(d, negative, embeddings.shape[-1]))


def validation_pairs(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distances from 64 anchors, spread evenly over a validation set, to all of it, and the pair masks.

    The anchors are the same in every call, and each is paired with all samples, whatever their order.

    Args:
        outputs: embeddings [V, D].
        targets: class labels [V].

    Returns:
        Distances, positive pairs and negative pairs, each [A, V].

    Example:
        >>> [tuple(part.shape) for part in validation_pairs(torch.ones(5000, 2), torch.arange(5000) % 9)]
        [(64, 5000), (64, 5000), (64, 5000)]
    """
    size = len(targets)
    count = min(size, _ANCHORS)
    anchors = torch.arange(count, device=targets.device) * size // count
    return pairwise_distances(outputs[anchors], outputs), *pair_masks(targets, anchors)


def pair_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean [...] of values [*mask's shape, ...] where ``mask`` is true; 0 if it is true nowhere.

    Example:
        >>> pair_mean(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([False, True]))
        tensor([3., 6.])
    """
    every = tuple(range(mask.ndim))
    weights = mask.reshape(*mask.shape, *(1,) * (values.ndim - mask.ndim))
    return (values * weights).sum(every) / mask.sum().clamp(min=1)


class EmbeddingLoss(AdaptiveLoss):
    """Base class of losses on the embeddings [B, D] of a batch: labels [B] of any classes, and two statistics.

    The network's outputs are the embeddings; they need not be normalised.
    """

    num_statistics = 2

    def check_targets(self, targets: Tensor, name: str) -> None:
        """Refuse labels that are not whole numbers from 0 [B]."""
        if targets.is_floating_point() or targets.dtype is torch.bool:
            raise InputError(f"{name}: labels have type {targets.dtype}; {way_to_labels(targets)}.")
        if targets.ndim != 1:
            raise InputError(f"{name}: labels have shape {tuple(targets.shape)}; give one class for each example.")
        if (targets < 0).any():
            raise InputError(f"{name}: label {int(targets.min())} is negative; number the classes from 0.")

    def check_pairs(self, targets: Tensor, name: str) -> None:
        """Raise ``InputError`` if a validation set has no positive or no negative pair; a batch may have none."""
        classes, counts = targets.unique(return_counts=True)
        if len(classes) < 2 or counts.max() < 2:
            raise InputError(
                f"{name}: {len(targets)} samples of {len(classes)} classes make no positive and negative pairs; give "
                "at least two classes together, and two samples of at least one."
            )


def check_embeddings(outputs: Tensor, targets: Tensor) -> None:
    """Refuse outputs that are not one embedding for every label.

    Example:
        >>> check_embeddings(torch.zeros(3, 8), torch.zeros(4))
        Traceback (most recent call last):
        ...
        lossalign.core.errors.InputError: outputs have shape (3, 8) for 4 labels; give one embedding for each, (4, D).
    """
    if outputs.ndim != 2 or len(outputs) != len(targets):
        raise InputError(
            f"outputs have shape {tuple(outputs.shape)} for {len(targets)} labels; give one embedding for each, "
            f"({len(targets)}, D)."
        )


def check_choice(name: str, value: str, kind: object) -> None:
    """Raise ``InputError`` for a value that is not one of a ``Literal``'s.

    Example:
        >>> check_choice("framework", "quadruplet", Framework)
        Traceback (most recent call last):
        ...
        lossalign.core.errors.InputError: framework='quadruplet': choose from triplet, margin.
    """
    if value not in get_args(kind):
        raise InputError(f"{name}={value!r}: choose from {', '.join(get_args(kind))}.")
