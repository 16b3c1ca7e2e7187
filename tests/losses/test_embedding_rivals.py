"""The fixed losses of metric learning equal their formulas, written as plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lossalign.core import InputError
from lossalign.losses import (
    AdaptiveLoss,
    ContrastiveLoss,
    MarginLoss,
    MultiSimilarityLoss,
    TripletLoss,
    pairwise_distances,
)
from lossalign.losses.distances import distance_weights, pair_masks

SHAPES = st.tuples(st.integers(0, 1000), st.integers(2, 10), st.integers(1, 4))


def batch(seed: int = 0, samples: int = 10, classes: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 5, generator=g), torch.randint(0, classes, (samples,), generator=g)


def anchor_by_anchor(x: Tensor, y: Tensor, of_anchor: Callable[[list[float], list[float], int], float]) -> Tensor:
    """A loss of an anchor's positive and negative distances; 0 without both, the others times B over their number."""
    d, (positive, negative) = pairwise_distances(x), pair_masks(y)
    pairs = [(d[i][positive[i]].tolist(), d[i][negative[i]].tolist()) for i in range(len(y))]
    usable = sum(bool(pos and neg) for pos, neg in pairs)
    return torch.tensor(
        [of_anchor(pos, neg, i) * len(y) / usable if pos and neg else 0.0 for i, (pos, neg) in enumerate(pairs)]
    )


def same(loss: AdaptiveLoss, x: Tensor, y: Tensor, plain: Callable[[list[float], list[float], int], float]) -> None:
    expected = anchor_by_anchor(x, y, plain)
    torch.testing.assert_close(loss(x, y, loss.spec.initial), expected, rtol=1e-3, atol=1e-4)


@settings(max_examples=30)
@given(SHAPES, st.floats(0, 1))
def test_triplet(shape: tuple[int, int, int], margin: float) -> None:
    def plain(pos: list[float], neg: list[float], _: int) -> float:
        picked = [min((n for n in neg if n > p), default=max(neg)) for p in pos]
        return sum(max(0.0, p**2 - n**2 + margin) for p, n in zip(pos, picked, strict=True)) / len(pos)

    same(TripletLoss(margin), *batch(*shape), plain)


@settings(max_examples=30)
@given(SHAPES, st.floats(0, 1), st.floats(0.2, 1.8))
def test_margin(shape: tuple[int, int, int], margin: float, boundary: float) -> None:
    x, y = batch(*shape)
    negative = pair_masks(y)[1]
    weights = distance_weights(pairwise_distances(x), negative, 5)

    def plain(pos: list[float], neg: list[float], i: int) -> float:
        pull = sum(max(0.0, margin + (d - boundary)) for d in pos) / len(pos)
        counts = weights[i][negative[i]].tolist()
        return pull + sum(w * max(0.0, margin - (d - boundary)) for d, w in zip(neg, counts, strict=True))

    same(MarginLoss(margin, boundary), x, y, plain)


def test_the_margin_losss_weights_are_the_mean_of_its_draws() -> None:
    x, y = batch(samples=8, classes=2)
    loss, d, (positive, negative) = MarginLoss(), pairwise_distances(x), pair_masks(y)
    weights = distance_weights(d, negative, 5)
    drawn = torch.multinomial(weights, 20_000, replacement=True, generator=torch.Generator().manual_seed(0))
    push = (0.2 - (d.gather(1, drawn) - 1.2)).clamp(min=0).mean(1)
    pull = ((0.2 + (d - 1.2)).clamp(min=0) * positive).sum(1) / positive.sum(1)
    torch.testing.assert_close(loss(x, y, loss.spec.initial), pull + push, rtol=0.02, atol=0.01)


@settings(max_examples=30)
@given(SHAPES, st.floats(0, 2))
def test_contrastive(shape: tuple[int, int, int], margin: float) -> None:
    def plain(pos: list[float], neg: list[float], _: int) -> float:
        return sum(d**2 for d in pos) / len(pos) + sum(max(0.0, margin - d) ** 2 for d in neg) / len(neg)

    same(ContrastiveLoss(margin), *batch(*shape), plain)


@settings(max_examples=30)
@given(SHAPES, st.floats(1, 10), st.floats(1, 60), st.floats(0.3, 1))
def test_multi_similarity(shape: tuple[int, int, int], alpha: float, beta: float, threshold: float) -> None:
    def plain(pos: list[float], neg: list[float], _: int) -> float:
        s_pos, s_neg = [1 - d * d / 2 for d in pos], [1 - d * d / 2 for d in neg]
        pulled = [s for s in s_pos if s < max(s_neg) + 0.1]
        pushed = [s for s in s_neg if s > min(s_pos) - 0.1]
        pull = math.log(1 + sum(math.exp(-alpha * (s - threshold)) for s in pulled)) / alpha
        return pull + math.log(1 + sum(math.exp(beta * (s - threshold)) for s in pushed)) / beta

    same(MultiSimilarityLoss(alpha, beta, threshold), *batch(*shape), plain)


def test_multi_similarity_leaves_easy_pairs_out() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.01], [-1.0, 0.0], [-1.0, 0.01]])
    loss = MultiSimilarityLoss()
    assert (loss(x, torch.tensor([0, 0, 1, 1]), loss.spec.initial) == 0).all()
    assert (loss(x, torch.tensor([0, 1, 0, 1]), loss.spec.initial) > 0).all()


@pytest.mark.parametrize("make", [TripletLoss, MarginLoss, ContrastiveLoss, MultiSimilarityLoss])
def test_statistics_are_the_mean_distances_for_every_parameter(make: Callable[[], AdaptiveLoss]) -> None:
    x, y = batch(samples=20)
    loss, d = make(), pairwise_distances(x)
    row = torch.stack([d[mask].mean() for mask in pair_masks(y)])
    torch.testing.assert_close(loss.statistics(x, y), row.expand(loss.spec.size, 2))


def test_parameters() -> None:
    assert {group.name: group.initial for group in MarginLoss().spec.groups} == {"margin": 0.2, "boundary": 1.2}
    torch.testing.assert_close(MultiSimilarityLoss().spec.initial.exp(), torch.tensor([2.0, 50.0]))
    with pytest.raises(InputError, match=r"ParameterGroup 'margin': initial must lie in \[0.0, 1.0\]"):
        TripletLoss(margin=3.0)
