"""Distance mixture (Eq. 9): five functions of d⁺ and five of d⁻, mixed by weights Φ; and the triplet loss (Eq. 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lossalign.core import InputError, ParameterGroup, ParameterSpec
from lossalign.losses.distances import (
    EmbeddingLoss,
    Framework,
    Start,
    check_choice,
    check_embeddings,
    chosen_pairs,
    pair_mean,
    validation_pairs,
)
from lossalign.losses.registry import LOSSES, LossEntry

POSITIVE = ("d²", "d^2.5", "d^1.5", "0.5e^(0.6d²)−0.5", "0.5e^(0.6d)−0.5")
NEGATIVE = ("0.5/d", "0.2/d", "0.1/d²", "−log d", "−2 log d")
POSITIVE_SLOPES = (2.0, 2.5, 1.5, 0.6 * math.exp(0.6), 0.3 * math.exp(0.6))
"""Of F⁺ at d = 1."""
NEGATIVE_SLOPES = (0.5, 0.2, 0.2, 1.0, 2.0)
"""Of −F⁻ at d = 1."""

_NEAR = 0.1
_LEAST_WEIGHT = 0.05
_GROUPS = {"positive": slice(0, 5), "negative": slice(5, 10), "ratio": slice(10, 11)}


def triplet_loss(d_pos: Tensor, d_neg: Tensor, margin: float | Tensor) -> Tensor:
    """Eq. 8 (Schroff et al., CVPR 2015), of distances of any one shape.

        l = max(0, (d⁺)² − (d⁻)² + η)

    Example:
        >>> triplet_loss(torch.tensor([1.0, 0.5]), torch.tensor([1.0, 1.0]), margin=0.2)
        tensor([0.2000, 0.0000])
    """
    return (d_pos.square() - d_neg.square() + margin).clamp(min=0)


def positive_functions(d: Tensor) -> Tensor:
    """F⁺_1 … F⁺_5 [..., 5] of distances [...]: d², d^2.5, d^1.5, 0.5e^{0.6d²} − 0.5, 0.5e^{0.6d} − 0.5.

    Example:
        >>> positive_functions(torch.tensor(1.0))
        tensor([1.0000, 1.0000, 1.0000, 0.4111, 0.4111])
    """
    squared, root = d.square(), d.clamp(min=1e-12).sqrt()  # a power is several times slower than a root
    bent = (torch.expm1(0.6 * squared) / 2, torch.expm1(0.6 * d) / 2)
    return torch.stack([squared, squared * root, d * root, *bent], -1)


def negative_functions(d: Tensor) -> Tensor:
    """F⁻_1 … F⁻_5 [..., 5] of distances [...]: 0.5/d, 0.2/d, 0.1/d², −log d, −2 log d.

    Below d = 0.1 each is extended linearly by its tangent. A clamp would have no gradient for the nearest negatives,
    and without either the slope is unbounded.

    Example:
        >>> negative_functions(torch.tensor([1.0, 0.1, 0.0]))
        tensor([[ 0.5000,  0.2000,  0.1000,  0.0000,  0.0000],
                [ 5.0000,  2.0000, 10.0000,  2.3026,  4.6052],
                [10.0000,  4.0000, 30.0000,  3.3026,  6.6052]])
    """
    far = d.clamp(min=_NEAR)
    nearer = (_NEAR - d).relu() / _NEAR
    inverse, log = 1 / far + nearer / _NEAR, nearer - far.log()
    return torch.stack(
        [0.5 * inverse, 0.2 * inverse, 0.1 / far.square() + 0.2 * nearer / _NEAR**2, log, 2 * log],
        -1,
    )


def distance_mixture_loss(d_pos: Tensor, d_neg: Tensor, phi: Tensor) -> Tensor:
    """Eq. 9, of distances of any one shape.

        l_Φ = Σ_{i=1..5} Φ_i F⁺_i(d⁺) + Σ_{i=1..5} Φ_{i+5} F⁻_i(d⁻)

    Args:
        d_pos: d⁺ [...].
        d_neg: d⁻ [...].
        phi: Φ [10], first the weights of :func:`positive_functions`, then those of :func:`negative_functions`.

    Returns:
        l [...].

    Example:
        >>> phi = torch.tensor([1.0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0])
        >>> distance_mixture_loss(torch.tensor([0.5]), torch.tensor([2.0]), phi)  # 0.5² + 0.5 / 2
        tensor([0.5000])
    """
    return mixed(positive_functions(d_pos), phi[:5]) + mixed(negative_functions(d_neg), phi[5:])


def mixed(functions: Tensor, weights: Tensor) -> Tensor:
    """Σ_i Φ_i F_i [...] of values [..., 5] and weights [5], added in a loop: with a sum over the last axis, Inductor
    (torch 2.13, CPU) gives the triplets' loss a wrong gradient under vmap.

    Example:
        >>> mixed(torch.tensor([[1.0, 2.0, 0.0, 0.0, 0.0]]), torch.tensor([1.0, 0.5, 0.0, 0.0, 0.0]))
        tensor([2.])
    """
    first, *others = (weight * values for weight, values in zip(weights.unbind(), functions.unbind(-1), strict=True))
    return sum(others, start=first)


def kept_alive(weights: Tensor) -> Tensor:
    """Weights of one side [5] whose sum is at least 0.05; the difference is added to the first, which the paper uses.

    Example:
        >>> kept_alive(torch.tensor([0.0, 0.0, 0.0, 0.0, 0.04]))
        tensor([0.0100, 0.0000, 0.0000, 0.0000, 0.0400])
    """
    missing = (_LEAST_WEIGHT - weights.sum()).clamp(min=0)
    return torch.cat([weights[:1] + missing, weights[1:]])


def slope(weights: Tensor, slopes: Sequence[float]) -> Tensor:
    """Σ_i Φ_i |F'_i(1)| of one side: how steep its mixture is at d = 1.

    Example:
        >>> slope(torch.tensor([0.25, 0.0, 0.0, 0.0, 0.0]), POSITIVE_SLOPES)
        tensor(0.5000)
    """
    return torch.stack([weight * each for weight, each in zip(weights.unbind(), slopes, strict=True)]).sum()


def rescaled(phi: Tensor, log_ratio: Tensor | None = None, size: float | None = None) -> Tensor:
    """Weights of the same shapes as Φ, with another ratio or another sum of the two sides' slopes at d = 1.

        Φ'_i = Φ_i · T (1 − ρ) / S⁺,   Φ'_{i+5} = Φ_{i+5} · T ρ / S⁻
        S⁺, S⁻ = slope of each side,   ρ = σ(r) or S⁻ / (S⁺ + S⁻),   T = the size or S⁺ + S⁻

    Args:
        phi: Φ [10], both slopes above 0.
        log_ratio: r, the log of the negative over the positive slope wanted; as it is if None.
        size: T, the sum of slopes wanted; as it is if None.

    Returns:
        Φ' [10].

    Example:
        >>> phi = torch.tensor([1.0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0])
        >>> rescaled(phi, log_ratio=torch.tensor(0.0), size=1.0)
        tensor([0.2500, 0.0000, 0.0000, 0.0000, 0.0000, 1.0000, 0.0000, 0.0000, 0.0000, 0.0000])
    """
    pull, push = slope(phi[:5], POSITIVE_SLOPES), slope(phi[5:], NEGATIVE_SLOPES)
    share = push / (pull + push) if log_ratio is None else log_ratio.sigmoid()
    total = pull + push if size is None else size
    return torch.cat([phi[:5] * (total * (1 - share) / pull), phi[5:] * (total * share / push)])


def mixture_statistics(outputs: Tensor, targets: Tensor) -> Tensor:
    """Statistics of validation embeddings for each of the ten functions, and for the ratio of slopes.

    For F_i: log(1 + its mean over the pairs of its side), then the same over each anchor's hardest pair, its farthest
    positive or its nearest negative. F⁻_i(2), its smallest value, is subtracted from F⁻_i, so that none is negative.
    For the ratio: log(1 + mean d⁻ / mean d⁺), of all and of the hardest pairs. Pairs are those of
    :func:`validation_pairs`.

    Args:
        outputs: embeddings [V, D].
        targets: class labels [V].

    Returns:
        Statistics [11, 2].

    Example:
        >>> mixture_statistics(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1]))[10]
        tensor([0.7917, 0.7599])
    """
    d, positive, negative = validation_pairs(outputs, targets)
    farthest, nearest = (d * positive).amax(1), d.masked_fill(~negative, 2.0).amin(1)
    columns = []
    for d_pos, d_neg, pulled, pushed in (
        (d, d, positive, negative),
        (farthest, nearest, positive.any(1), negative.any(1)),
    ):
        pull = pair_mean(positive_functions(d_pos), pulled)
        push = pair_mean(negative_functions(d_neg) - negative_functions(d_neg.new_full((), 2.0)), pushed)
        ratio = pair_mean(d_neg, pushed) / pair_mean(d_pos, pulled).clamp(min=1e-3)
        columns.append(torch.cat([pull, push, ratio[None]]).log1p())
    return torch.stack(columns, -1)


class DistanceMixtureLoss(EmbeddingLoss):
    """Distance mixture (Eq. 9) over the embeddings of a batch: how strongly pairs pull and push at each distance.

        l_i = Σ_j w⁺_ij Σ_k Φ_k F⁺_k(d⁺_ij) + Σ_j w⁻_ij Σ_k Φ_{k+5} F⁻_k(d⁻_ij),   pairs and w of ``chosen_pairs``

    The sum of each side's weights is at least 0.05 (:func:`kept_alive`), so Φ cannot turn off the positives or the
    negatives. Anchors without a positive or a negative have a loss of 0, and the others are scaled up so that the
    batch's mean is the mean over them (``anchor_shares``).

    Groups: ``positive`` and ``negative`` (Φ ∈ [0, 1]^5 each), ``ratio`` (r ∈ [−2, 2], the log of the negative over the
    positive slope at d = 1; it then sets the ratio, and the weights set only the shapes and the sum of slopes:
    :func:`rescaled`). A group that is off stays at its start.

    Args:
        framework: ``"triplet"``, semi-hard negatives, or ``"margin"``, negatives weighted by distance.
        start: Φ_0 selects d² and 0.5/d; ``"paper"``: both with weight 1; ``"default"``: d² with 0.25, whose slopes at
            d = 1 are equal.
        normalised: keep the sum of both sides' slopes at d = 1 at that of Φ_0 (T of :func:`rescaled`), so that Φ
            changes the shapes and the ratio, but not the size of the gradient: a control that Φ does not just act
            as a learning rate.
        groups: which groups the controller may move.
        beta: β; ``ratio`` moves by 2 β.

    Example:
        >>> loss = DistanceMixtureLoss(start="paper")
        >>> loss(torch.eye(3), torch.tensor([0, 0, 1]), loss.spec.initial)  # 1.5 · (√2² + 0.5 / √2)
        tensor([3.5303, 3.5303, 0.0000])
    """

    statistics_name = "DistanceMixtureLoss"

    def __init__(
        self,
        framework: Framework = "triplet",
        start: Start = "default",
        normalised: bool = False,
        groups: Sequence[str] = ("positive", "negative"),
        beta: float = 0.1,
    ) -> None:
        check_choice("framework", framework, Framework)
        check_choice("start", start, Start)
        if not groups or any(name not in _GROUPS for name in groups):
            raise InputError(f"groups={tuple(groups)}: choose one or more from {tuple(_GROUPS)}.")
        self.framework = framework
        first = 1.0 if start == "paper" else 0.25
        pull, push = (first, 0.0, 0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0, 0.0)
        ratio = math.log(NEGATIVE_SLOPES[0] / (first * POSITIVE_SLOPES[0]))
        known = (
            ParameterGroup(name="positive", labels=POSITIVE, initial=pull, low=0.0, high=1.0, beta=beta),
            ParameterGroup(name="negative", labels=NEGATIVE, initial=push, low=0.0, high=1.0, beta=beta),
            ParameterGroup(name="ratio", labels=("log ratio",), initial=ratio, low=-2.0, high=2.0, beta=2 * beta),
        )
        self.spec = ParameterSpec(tuple(group for group in known if group.name in groups))
        self._slices = self.spec.slices  # computed here: a compiler cannot trace the lock of a cached property
        self._first = {"positive": pull[0], "negative": push[0]}
        self._size = first * POSITIVE_SLOPES[0] + NEGATIVE_SLOPES[0] if normalised else None

    def weights(self, phi: Tensor) -> Tensor:
        """The weights of the ten functions [10] under ``phi`` [P]."""
        part = {name: phi[where] for name, where in self._slices.items()}
        sides = [part[name] if name in part else self._start(name, phi) for name in ("positive", "negative")]
        mixed = torch.cat([kept_alive(side) for side in sides])
        if "ratio" not in part and self._size is None:
            return mixed
        return rescaled(mixed, part["ratio"][0] if "ratio" in part else None, self._size)

    def _start(self, name: str, phi: Tensor) -> Tensor:
        """Φ_0 of a side [5]: its first function. Filled in place, as a captured iteration cannot copy from the CPU."""
        return torch.cat([phi.new_full((1,), self._first[name]), phi.new_zeros(4)])

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every anchor [B], from embeddings [B, D] and labels [B]."""
        check_embeddings(outputs, targets)
        weights = self.weights(phi)
        pairs = chosen_pairs(outputs, targets, self.framework)
        pull = mixed(positive_functions(pairs.d_pos), weights[:5])
        push = mixed(negative_functions(pairs.d_neg), weights[5:])
        return (pairs.w_pos * pull + pairs.w_neg * push).sum(-1)

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """:func:`mixture_statistics` of each parameter's function [P, 2]."""
        table = mixture_statistics(outputs, targets)
        return torch.cat([table[_GROUPS[name]] for name in self._slices])


_SIGNS = ("positive", "negative")


def _entry(start: Start | None = None, normalised: bool = False) -> LossEntry:
    return LossEntry(
        make=lambda run: DistanceMixtureLoss(
            run.framework, start or run.start, normalised=normalised, groups=_SIGNS if start else run.groups or _SIGNS
        ),
        groups=_SIGNS,
        embeds=True,
        stream="DistanceMixtureLoss",
    )


LOSSES.add("distance-mixture", "the paper's mixture of distance functions, Eq. 9", _entry())
LOSSES.add("scale-matched", "Eq. 9 with the size of the gradient held", _entry(normalised=True))
LOSSES.add("paper-mixture", "Eq. 9 from the paper's Φ_0", _entry("paper"))
LOSSES.add("light-mixture", "Eq. 9 from a lighter weight on positives", _entry("default"))
