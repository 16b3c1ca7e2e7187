"""Eq. 10 equals a plain loop, tends to the hardest pair as Φ grows, and moves by factors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lossalign.core import InputError
from lossalign.losses import FocalWeightingLoss, focal_weighting_loss, pairwise_distances
from lossalign.losses.distances import distance_weights, pair_masks

DISTANCES = st.lists(st.floats(0, 2), min_size=1, max_size=6)
PHI = st.tuples(st.floats(0.1, 10), st.floats(0.1, 10))


def batch(seed: int = 0, samples: int = 10, classes: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 5, generator=g), torch.randint(0, classes, (samples,), generator=g)


def plain(pos: list[float], neg: list[tuple[float, float]], phi: tuple[float, float], offset: float) -> float:
    """Eq. 10 of one anchor, its negatives with how much each counts."""
    pull = math.log(1 + sum(math.exp(phi[0] * (d - offset)) for d in pos)) / phi[0]
    return pull + math.log(1 + sum(w * math.exp(-phi[1] * (d - offset)) for d, w in neg)) / phi[1]


@settings(max_examples=30)
@given(DISTANCES, DISTANCES, PHI, st.floats(0.5, 1.5))
def test_equation_10_equals_a_plain_loop(
    pos: list[float], neg: list[float], phi: tuple[float, float], offset: float
) -> None:
    ours = focal_weighting_loss(torch.tensor(pos), torch.tensor(neg), torch.tensor(phi), offset)
    expected = plain(pos, [(d, 1.0) for d in neg], phi, offset)
    torch.testing.assert_close(ours, torch.tensor(expected), rtol=1e-4, atol=1e-5)


@settings(max_examples=30)
@given(DISTANCES, DISTANCES, PHI, st.floats(0, 3))
def test_a_mask_leaves_pairs_out_and_a_weight_counts_them_so_often(
    pos: list[float], neg: list[float], phi: tuple[float, float], weight: float
) -> None:
    d_pos, d_neg = torch.tensor([*pos, 2.0]), torch.tensor([*neg, 0.0])
    mask = torch.arange(len(d_pos)) < len(pos)
    counts = torch.tensor([*[weight] * len(neg), 0.0])
    ours = focal_weighting_loss(d_pos, d_neg, torch.tensor(phi), 1.0, mask, counts)
    expected = plain(pos, [(d, weight) for d in neg], phi, 1.0)
    torch.testing.assert_close(ours, torch.tensor(expected), rtol=1e-4, atol=1e-5)


@settings(max_examples=30)
@given(DISTANCES, DISTANCES)
def test_tends_to_the_hinge_of_the_hardest_pair_as_phi_grows(pos: list[float], neg: list[float]) -> None:
    hinge = max(0.0, max(pos) - 1) + max(0.0, 1 - min(neg))
    ours = focal_weighting_loss(torch.tensor(pos), torch.tensor(neg), torch.tensor([2000.0, 2000.0]))
    assert hinge - 1e-5 <= float(ours) <= hinge + 2 * math.log(1 + 6) / 2000 + 1e-5


@settings(max_examples=30)
@given(DISTANCES, DISTANCES, PHI)
def test_the_slopes_of_each_side_have_their_sign_and_sum_to_less_than_one(
    pos: list[float], neg: list[float], phi: tuple[float, float]
) -> None:
    d_pos, d_neg = torch.tensor(pos, requires_grad=True), torch.tensor(neg, requires_grad=True)
    pull, push = torch.autograd.grad(focal_weighting_loss(d_pos, d_neg, torch.tensor(phi)), [d_pos, d_neg])
    assert (pull > 0).all()
    assert (push < 0).all()
    assert pull.sum() < 1 + 1e-6
    assert push.sum() > -1 - 1e-6


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(2, 10), st.integers(1, 4), PHI, st.sampled_from(["triplet", "margin"]))
def test_the_loss_of_a_batch_equals_a_plain_loop(
    seed: int, samples: int, classes: int, phi: tuple[float, float], framework: str
) -> None:
    x, y = batch(seed, samples, classes)
    d, (positive, negative) = pairwise_distances(x), pair_masks(y)
    weights = distance_weights(d, negative, x.shape[1])
    total: list[float | None] = []
    for i in range(samples):
        pos = d[i][positive[i]].tolist()
        counts = weights[i] * len(pos) if framework == "margin" else negative[i].float()
        neg = [(float(d[i, j]), float(counts[j])) for j in range(samples) if negative[i, j]]
        total.append(plain(pos, neg, phi, 1.0) if pos and neg else None)
    usable = sum(value is not None for value in total)
    expected = torch.tensor([0.0 if value is None else value * samples / usable for value in total])
    ours = FocalWeightingLoss(framework=framework)(x, y, torch.tensor(phi).log())  # type: ignore[arg-type]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_the_parameters_are_logarithms_with_the_papers_range() -> None:
    (group,) = FocalWeightingLoss().spec.groups
    assert (group.name, group.labels) == ("focus", ("positive", "negative"))
    torch.testing.assert_close((math.exp(group.low), math.exp(group.high)), (0.1, 10.0))
    torch.testing.assert_close(FocalWeightingLoss().spec.initial.exp(), torch.tensor([2.0, 10.0]))
    assert FocalWeightingLoss(start="paper").spec.initial.exp().tolist() == [1, 1]


def test_statistics_are_mean_and_spread_of_each_sides_distances() -> None:
    x, y = batch(samples=20)
    d = pairwise_distances(x)
    rows = [torch.stack([d[mask].mean(), d[mask].std(correction=0)]) for mask in pair_masks(y)]
    torch.testing.assert_close(FocalWeightingLoss().statistics(x, y), torch.stack(rows))


def test_what_it_cannot_use() -> None:
    with pytest.raises(InputError, match="framework='pairs': choose from triplet, margin"):
        FocalWeightingLoss(framework="pairs")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="start='zero': choose from default, paper"):
        FocalWeightingLoss(start="zero")  # type: ignore[arg-type]
