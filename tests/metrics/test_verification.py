"""Verification agrees with scikit-learn's ROC curve, with trying every threshold, and with folds cut by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.spatial.distance import pdist
from sklearn.metrics import roc_curve
from sklearn.model_selection import KFold
from torch import Tensor

from lossalign.core import InputError
from lossalign.metrics import (
    EqualErrorRate,
    TARAtFAR,
    VerificationAccuracy,
    accept_rates,
    accuracy_at,
    all_pairs,
    best_balanced_accuracy,
    best_threshold,
    equal_error_rate,
    metric_named,
    tar_at_far,
    verification_accuracy,
)


@st.composite
def judged(draw: st.DrawFn, one_sided: bool = False) -> tuple[Tensor, Tensor]:
    """Distances, often tied or neighbouring floats; at least one pair is same and one different unless one-sided."""
    pairs = draw(st.integers(2, 40))
    close = st.sampled_from([0.5, float(np.nextafter(np.float32(0.5), np.float32(1)))])
    distances = draw(st.lists(st.integers(0, 5) | st.floats(0, 10, width=32) | close, min_size=pairs, max_size=pairs))
    rest = draw(st.lists(st.booleans(), min_size=pairs - 2, max_size=pairs - 2))
    first = [draw(st.booleans())] * 2 if one_sided else [True, False]
    return torch.tensor(distances, dtype=torch.float32), torch.tensor([*first, *rest])


def curve(distances: Tensor, same: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """FAR and TAR of scikit-learn, which accepts what scores high."""
    far, tar, _ = roc_curve(same.numpy(), -distances.numpy(), drop_intermediate=False)
    return far, tar


def tried(distances: Tensor, same: Tensor) -> list[float]:
    """The accuracy at every threshold that differs."""
    d, s = distances.numpy(), same.numpy()
    return [float(((d <= threshold) == s).mean()) for threshold in [-math.inf, *d]]


@given(judged())
def test_the_curve_is_that_of_scikit_learn(case: tuple[Tensor, Tensor]) -> None:
    ours = {(round(float(f), 5), round(float(t), 5)) for f, t in zip(*accept_rates(*case), strict=True)}
    assert ours == {(round(float(f), 5), round(float(t), 5)) for f, t in zip(*curve(*case), strict=True)}


@given(judged(), st.integers(0, 8), st.integers(1, 20))
def test_tar_at_far_equals_the_roc_curve_of_scikit_learn(case: tuple[Tensor, Tensor], false: int, of: int) -> None:
    far, tar = curve(*case)
    allowed = min(1.0, false / of)
    assert float(tar_at_far(*case, allowed)) == pytest.approx(tar[far <= allowed].max())


@given(judged())
def test_the_equal_error_rate_is_the_root_on_scikit_learns_curve(case: tuple[Tensor, Tensor]) -> None:
    far, tar = curve(*case)
    along = np.arange(len(far))
    root = brentq(lambda t: np.interp(t, along, far) + np.interp(t, along, tar) - 1, 0, len(far) - 1)
    assert float(equal_error_rate(*case)) == pytest.approx(np.interp(root, along, far), abs=1e-5)


@given(judged())
def test_the_best_balanced_accuracy_is_the_best_of_the_curve(case: tuple[Tensor, Tensor]) -> None:
    far, tar = curve(*case)
    assert float(best_balanced_accuracy(*case)) == pytest.approx(((tar + 1 - far) / 2).max())


@given(judged(one_sided=True))
def test_no_threshold_is_better_than_the_best(case: tuple[Tensor, Tensor]) -> None:
    assert float(accuracy_at(*case, best_threshold(*case))) == pytest.approx(max(tried(*case)))


def test_the_best_threshold_lies_midway_and_is_the_smallest_of_several() -> None:
    distances = torch.tensor([4.0, 1.0, 2.0, 3.0])
    assert best_threshold(distances, torch.tensor([False, True, True, False])) == 2.5
    assert best_threshold(distances, torch.tensor([True, True, False, False])) == 1.5
    assert best_threshold(distances, torch.tensor([True, False, True, False])) == -math.inf
    next_float = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    parted = torch.stack([torch.tensor(1.0), next_float])
    assert accuracy_at(parted, torch.tensor([True, False]), best_threshold(parted, torch.tensor([True, False]))) == 1


def test_pairs_of_one_kind_have_a_threshold_but_no_rates() -> None:
    distances, all_same = torch.tensor([0.3, 0.1, 0.2]), torch.ones(3, dtype=torch.bool)
    assert best_threshold(distances, all_same) == math.inf
    assert best_threshold(distances, ~all_same) == -math.inf
    for same in (all_same, ~all_same):
        assert verification_accuracy(distances, same, folds=3) == 1
        for rate in (best_balanced_accuracy, equal_error_rate, lambda d, s: tar_at_far(d, s, 0.1)):
            assert rate(distances, same).isnan()


def test_no_pairs_have_no_rates() -> None:
    none = torch.zeros(0), torch.zeros(0, dtype=torch.bool)
    for rate in (best_threshold, best_balanced_accuracy, equal_error_rate, lambda d, s: tar_at_far(d, s, 0.1)):
        assert rate(*none).isnan()
    assert accuracy_at(*none, 0.5).isnan()


@given(judged(one_sided=True), st.integers(2, 12))
def test_folds_are_those_of_kfold_and_their_thresholds_come_from_the_others(
    case: tuple[Tensor, Tensor], folds: int
) -> None:
    distances, same = case
    folds = min(folds, len(distances))
    expected = [
        float(accuracy_at(distances[test], same[test], best_threshold(distances[train], same[train])))
        for train, test in KFold(folds).split(distances)
    ]
    assert float(verification_accuracy(distances, same, folds)) == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("folds", [1, 5])
def test_folds_that_cannot_be_cut_are_refused(folds: int) -> None:
    with pytest.raises(InputError, match="choose from 2 to 4"):
        verification_accuracy(torch.rand(4), torch.tensor([True, False, True, False]), folds)


def test_all_pairs_are_those_of_scipy() -> None:
    g = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(30, 5, generator=g), torch.randint(0, 4, (30,), generator=g)
    distances, same = all_pairs(embeddings + 100, labels)
    np.testing.assert_allclose(distances, pdist(embeddings.numpy()), rtol=1e-4)
    np.testing.assert_array_equal(same, pdist(labels[:, None].numpy()) == 0)
    rough = embeddings.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(all_pairs(rough, labels)[0], all_pairs(rough.float(), labels)[0])


METRICS = [VerificationAccuracy(), TARAtFAR(0.1), EqualErrorRate()]
every_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)


@every_metric
@pytest.mark.parametrize("fill", [0.7, math.nan])
def test_collapsed_embeddings_are_worth_no_better_than_a_coin(metric, fill: float) -> None:
    value = metric(torch.full((40, 64), fill), torch.arange(40) % 4)
    assert float(value) == {"verification": 0.5, "tar@far=0.1": 0.0, "eer": 0.5}[metric.name]


@every_metric
def test_classes_that_lie_apart_are_told_apart_and_the_direction_says_so(metric) -> None:
    labels = torch.arange(40) % 4
    g = torch.Generator().manual_seed(0)
    apart = 100.0 * labels[:, None] + torch.rand(40, 3, generator=g)
    assert float(metric(apart, labels)) == (1 if metric.higher_is_better else 0)
    worse = metric(apart[torch.randperm(40, generator=g)], labels)
    assert (worse < 1) if metric.higher_is_better else (worse > 0)


@every_metric
def test_invariant_to_rotation_and_order(metric) -> None:
    g = torch.Generator().manual_seed(1)
    labels, order = torch.randint(0, 5, (60,), generator=g), torch.randperm(60, generator=g)
    embeddings = torch.randn(5, 4, generator=g)[labels] + torch.randn(60, 4, generator=g)
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=g)).Q
    expected = metric(embeddings, labels)
    torch.testing.assert_close(metric(embeddings @ rotation, labels), expected)
    torch.testing.assert_close(metric(embeddings[order], labels[order]), expected)


@every_metric
def test_vmap_over_children_equals_a_loop(metric) -> None:
    g = torch.Generator().manual_seed(2)
    embeddings, labels = torch.randn(3, 40, 4, generator=g), torch.randint(0, 5, (3, 40), generator=g)
    loop = torch.stack([metric(e, y) for e, y in zip(embeddings, labels, strict=True)])
    torch.testing.assert_close(torch.func.vmap(metric)(embeddings, labels), loop)


def test_thresholds_and_folds_can_be_lifted_too() -> None:
    g = torch.Generator().manual_seed(3)
    distances, same = torch.rand(3, 50, generator=g), torch.rand(3, 50, generator=g) < 0.5
    for function in (best_threshold, verification_accuracy):
        loop = torch.stack([function(d, s) for d, s in zip(distances, same, strict=True)])
        torch.testing.assert_close(torch.func.vmap(function)(distances, same), loop)


@every_metric
def test_what_is_no_embeddings_or_too_many_is_refused(metric) -> None:
    with pytest.raises(InputError, match=r"needs embeddings \[V, D\]"):
        metric(torch.zeros(4), torch.zeros(4))
    with pytest.raises(InputError, match="take at most 10,000"):
        metric(torch.zeros(10_001, 1), torch.zeros(10_001))


def test_a_name_carries_its_false_accept_rate() -> None:
    metric = metric_named("tar@far=1e-05", num_classes=16)
    assert isinstance(metric, TARAtFAR)
    assert metric.far == 1e-5
    assert metric.name == "tar@far=1e-05"
    with pytest.raises(InputError, match=r"tar@far=0\.001"):
        metric_named("tar@far=few")
    with pytest.raises(InputError, match="below 1"):
        metric_named("tar@far=1")
