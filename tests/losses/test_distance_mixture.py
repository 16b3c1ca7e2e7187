"""Eq. 8 and 9 equal plain loops, their functions have the shapes they must, and Φ means what it says."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lossalign.core import InputError
from lossalign.losses import DistanceMixtureLoss, distance_mixture_loss, pairwise_distances, triplet_loss
from lossalign.losses.distance_mixture import (
    NEGATIVE,
    NEGATIVE_SLOPES,
    POSITIVE,
    POSITIVE_SLOPES,
    kept_alive,
    mixture_statistics,
    negative_functions,
    positive_functions,
    rescaled,
    slope,
)

ALL = ("positive", "negative", "ratio")
FRAMEWORKS = pytest.mark.parametrize("framework", ["triplet", "margin"])
STARTS = pytest.mark.parametrize("start", ["default", "paper"])
WEIGHTS = st.lists(st.floats(0, 1), min_size=10, max_size=10).map(torch.tensor)
PLAIN_POSITIVE = (
    lambda d: d**2,
    lambda d: d**2.5,
    lambda d: d**1.5,
    lambda d: 0.5 * math.exp(0.6 * d**2) - 0.5,
    lambda d: 0.5 * math.exp(0.6 * d) - 0.5,
)
PLAIN_NEGATIVE = (
    lambda d: 0.5 / d,
    lambda d: 0.2 / d,
    lambda d: 0.1 / d**2,
    lambda d: -math.log(d),
    lambda d: -2 * math.log(d),
)


def batch(seed: int = 0, samples: int = 10, classes: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 5, generator=g), torch.randint(0, classes, (samples,), generator=g)


def plain_mixture(x: Tensor, y: Tensor, phi: list[float], framework: str) -> Tensor:
    """The docstring's formula in double precision, one anchor and one pair at a time."""
    d = pairwise_distances(x).double().tolist()
    samples, labels, dimensions = len(y), y.tolist(), x.shape[1]
    total = []
    for i in range(samples):
        pos = [d[i][j] for j in range(samples) if j != i and labels[j] == labels[i]]
        neg = [d[i][j] for j in range(samples) if labels[j] != labels[i]]
        if not pos or not neg:
            total.append(None)
            continue
        loss = sum(w * f(a) for a in pos for w, f in zip(phi[:5], PLAIN_POSITIVE, strict=True)) / len(pos)
        if framework == "triplet":
            picked = [min((n for n in neg if n > a), default=max(neg)) for a in pos]
            counts = [1 / len(pos)] * len(pos)
        else:
            picked = [n for n in neg if n < 1.4]
            near = [max(n, 0.5) for n in picked]
            odds = [n ** (2 - dimensions) * (1 - n * n / 4) ** ((3 - dimensions) / 2) for n in near]
            counts = [value / sum(odds) for value in odds]
        for n, count in zip(picked, counts, strict=True):
            loss += count * sum(w * f(n) for w, f in zip(phi[5:], PLAIN_NEGATIVE, strict=True))
        total.append(loss)
    usable = sum(value is not None for value in total)
    return torch.tensor([0.0 if value is None else value * samples / usable for value in total])


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0.1, 2)), min_size=1, max_size=5), WEIGHTS, st.floats(0, 1))
def test_equations_8_and_9_equal_plain_loops(pairs: list[tuple[float, float]], phi: Tensor, margin: float) -> None:
    d_pos, d_neg = torch.tensor(pairs).unbind(1)
    mixed, triplets = [], []
    for a, b in pairs:
        functions = [f(a) for f in PLAIN_POSITIVE] + [f(max(b, 0.1)) for f in PLAIN_NEGATIVE]
        mixed.append(sum(w * f for w, f in zip(phi.tolist(), functions, strict=True)))
        triplets.append(max(0.0, a**2 - b**2 + margin))
    torch.testing.assert_close(distance_mixture_loss(d_pos, d_neg, phi), torch.tensor(mixed), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(triplet_loss(d_pos, d_neg, margin), torch.tensor(triplets), rtol=1e-4, atol=1e-5)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(2, 10), st.integers(1, 4), WEIGHTS, st.sampled_from(["triplet", "margin"]))
def test_the_loss_of_a_batch_equals_a_plain_loop(
    seed: int, samples: int, classes: int, phi: Tensor, framework: str
) -> None:
    x, y = batch(seed, samples, classes)
    near = pairwise_distances(x) + 2 * torch.eye(samples) < 0.1
    loss = DistanceMixtureLoss(framework=framework)  # type: ignore[arg-type]
    assume(not near.any() and min(phi[:5].sum(), phi[5:].sum()) >= 0.05)
    torch.testing.assert_close(loss(x, y, phi), plain_mixture(x, y, phi.tolist(), framework), rtol=1e-4, atol=1e-5)


@settings(max_examples=30)
@given(st.floats(0, 2), st.floats(0, 2))
def test_positive_functions_rise_and_negative_ones_fall(a: float, b: float) -> None:
    near, far = sorted((a, b))
    assume(far - near > 1e-3)
    d = torch.tensor([near, far])
    assert (positive_functions(d)[1] > positive_functions(d)[0]).all()
    assert (negative_functions(d)[1] < negative_functions(d)[0]).all()


def slopes(functions: Callable[[Tensor], Tensor], d: Tensor) -> Tensor:
    """dF_i/dd [..., 5]."""
    return torch.func.vmap(torch.func.jacrev(functions))(d)


@settings(max_examples=30)
@given(st.lists(st.floats(0, 2), min_size=1, max_size=20))
def test_slopes_are_finite_up_to_both_ends_and_never_vanish_for_negatives(values: list[float]) -> None:
    d = torch.tensor([*values, 0.0, 0.1, 2.0])
    pull, push = slopes(positive_functions, d), slopes(negative_functions, d)
    assert (pull >= 0).all()
    assert (pull < 15).all()
    assert (push <= -0.02).all()
    assert (push >= -200.1).all()


def test_below_a_tenth_the_negative_functions_are_their_tangents() -> None:
    at = torch.tensor([0.1], dtype=torch.float64)
    tangent = slopes(negative_functions, at)
    torch.testing.assert_close(tangent, torch.tensor([[-50.0, -20, -200, -10, -20]], dtype=torch.float64))
    torch.testing.assert_close(negative_functions(at - 0.06), negative_functions(at) - 0.06 * tangent)


def test_the_slopes_at_one_are_those_of_the_functions() -> None:
    torch.testing.assert_close(slopes(positive_functions, torch.ones(1))[0], torch.tensor(POSITIVE_SLOPES))
    torch.testing.assert_close(slopes(negative_functions, torch.ones(1))[0], -torch.tensor(NEGATIVE_SLOPES))


@settings(max_examples=30)
@given(WEIGHTS.filter(lambda phi: bool(phi[:5].sum() > 0.05 and phi[5:].sum() > 0.05)), st.floats(-2, 2))
def test_rescaling_sets_the_ratio_and_the_size_and_leaves_the_shapes(phi: Tensor, ratio: float) -> None:
    for log_ratio, size in ((None, 3.0), (torch.tensor(ratio), None), (torch.tensor(ratio), 3.0)):
        new = rescaled(phi, log_ratio, size)
        before, after = ((slope(each[:5], POSITIVE_SLOPES), slope(each[5:], NEGATIVE_SLOPES)) for each in (phi, new))
        wanted = before[1] / before[0] if log_ratio is None else log_ratio.exp()
        torch.testing.assert_close(after[1] / after[0], wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(sum(after), sum(before) if size is None else torch.tensor(size))
        for side in (slice(0, 5), slice(5, 10)):
            torch.testing.assert_close(new[side] / new[side].sum(), phi[side] / phi[side].sum(), rtol=1e-4, atol=1e-5)


@settings(max_examples=30)
@given(WEIGHTS)
def test_neither_side_can_be_switched_off(phi: Tensor) -> None:
    for weights in (phi[:5], 0.01 * phi[5:], torch.zeros(5)):
        alive = kept_alive(weights)
        assert alive.sum() >= 0.05 - 1e-6
        assert torch.equal(alive[1:], weights[1:])
        assert weights.sum() < 0.05 or torch.equal(alive, weights)


@FRAMEWORKS
def test_with_all_weights_at_zero_it_still_pulls_and_pushes(framework: str) -> None:
    x, y = batch()
    loss = DistanceMixtureLoss(framework=framework)  # type: ignore[arg-type]
    start = torch.tensor([0.05, 0, 0, 0, 0, 0.05, 0, 0, 0, 0])
    assert torch.equal(loss(x, y, torch.zeros(10)), loss(x, y, start))


def test_the_starts() -> None:
    assert DistanceMixtureLoss(start="paper").spec.initial.tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert DistanceMixtureLoss().spec.initial.tolist() == [0.25, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert DistanceMixtureLoss(groups=("ratio",)).spec.initial.tolist() == [0]
    paper = DistanceMixtureLoss(groups=("ratio",), start="paper").spec.initial
    torch.testing.assert_close(paper, torch.tensor([0.25]).log())


@STARTS
@FRAMEWORKS
@pytest.mark.parametrize("groups", [("positive",), ("negative",), ("ratio",), ("positive", "negative"), ALL])
@pytest.mark.parametrize("normalised", [False, True])
def test_at_its_start_it_is_equation_9_whatever_may_move(
    start: str, framework: str, groups: tuple[str, ...], normalised: bool
) -> None:
    x, y = batch()
    options = {"framework": framework, "start": start}
    plain = DistanceMixtureLoss(**options)  # type: ignore[arg-type]
    loss = DistanceMixtureLoss(**options, groups=groups, normalised=normalised)  # type: ignore[arg-type]
    assert tuple(loss.spec.slices) == groups
    torch.testing.assert_close(loss(x, y, loss.spec.initial), plain(x, y, plain.spec.initial))


def test_groups_that_are_off_stay_at_their_start() -> None:
    loss, everything = DistanceMixtureLoss(groups=("negative",)), DistanceMixtureLoss()
    phi = torch.linspace(0.1, 0.9, 5)
    assert torch.equal(loss.weights(phi), everything.weights(torch.cat([everything.spec.initial[:5], phi])))


@settings(max_examples=30)
@given(WEIGHTS)
def test_normalised_the_sum_of_slopes_stays_that_of_the_start(phi: Tensor) -> None:
    for start, size in (("paper", 2.5), ("default", 1.0)):
        weights = DistanceMixtureLoss(start=start, normalised=True).weights(phi)  # type: ignore[arg-type]
        total = slope(weights[:5], POSITIVE_SLOPES) + slope(weights[5:], NEGATIVE_SLOPES)
        torch.testing.assert_close(total, torch.tensor(size), rtol=1e-4, atol=0)


@settings(max_examples=30)
@given(WEIGHTS, st.floats(-2, 2))
def test_the_ratio_group_sets_the_ratio_of_slopes_whatever_the_weights(phi: Tensor, ratio: float) -> None:
    weights = DistanceMixtureLoss(groups=ALL).weights(torch.cat([phi, torch.tensor([ratio])]))
    found = slope(weights[5:], NEGATIVE_SLOPES) / slope(weights[:5], POSITIVE_SLOPES)
    torch.testing.assert_close(found.log(), torch.tensor(ratio), rtol=1e-3, atol=1e-4)


def test_statistics_equal_a_plain_loop() -> None:
    x, y = batch(samples=14)
    d, labels = pairwise_distances(x).double().tolist(), y.tolist()
    pos = [[d[i][j] for j in range(14) if j != i and labels[j] == labels[i]] for i in range(14)]
    neg = [[d[i][j] for j in range(14) if labels[j] != labels[i]] for i in range(14)]
    everything = [[v for row in pos for v in row], [v for row in neg for v in row]]
    hardest = [[max(row) for row in pos if row], [min(row) for row in neg if row]]
    columns = []
    for pulled, pushed in (everything, hardest):
        column = [sum(f(v) for v in pulled) / len(pulled) for f in PLAIN_POSITIVE]
        column += [sum(f(v) - f(2.0) for v in pushed) / len(pushed) for f in PLAIN_NEGATIVE]
        column.append((sum(pushed) / len(pushed)) / (sum(pulled) / len(pulled)))
        columns.append([math.log1p(value) for value in column])
    table = torch.tensor(columns).T
    torch.testing.assert_close(mixture_statistics(x, y), table, rtol=1e-4, atol=1e-5)
    for groups, rows in ((ALL, slice(0, 11)), (("negative",), slice(5, 10)), (("ratio",), slice(10, 11))):
        statistics = DistanceMixtureLoss(groups=groups).statistics(x, y)
        torch.testing.assert_close(statistics, table[rows], rtol=1e-4, atol=1e-5)


def test_parameters_are_named_by_their_functions() -> None:
    positive, negative, ratio = DistanceMixtureLoss(groups=ALL, beta=0.05).spec.groups
    assert (positive.labels, negative.labels) == (POSITIVE, NEGATIVE)
    assert (positive.low, positive.high, positive.beta) == (0, 1, 0.05)
    assert (ratio.low, ratio.high, ratio.beta) == (-2, 2, 0.1)


def test_what_it_cannot_use() -> None:
    with pytest.raises(InputError, match="framework='pairs': choose from triplet, margin"):
        DistanceMixtureLoss(framework="pairs")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="start='zero': choose from default, paper"):
        DistanceMixtureLoss(start="zero")  # type: ignore[arg-type]
    for groups in ((), ("offsets",)):
        with pytest.raises(InputError, match=r"groups=.*: choose one or more from \('positive', 'negative', 'ratio'\)"):
            DistanceMixtureLoss(groups=groups)
