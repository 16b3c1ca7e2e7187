"""Every function of ranking equals a plain loop or scikit-learn."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from lossalign.losses import pairwise_ranking, smooth_ap
from lossalign.losses.ranking import class_balance, members, ordering_errors, ranking_scores, ranking_statistics


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, float]:
    """Scores [B, C], labels [B], margins [C], a temperature; classes without positives or negatives included."""
    batch, size = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    g = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    scores = torch.randn(batch, size, generator=g) * draw(st.sampled_from([0.1, 1.0, 10.0]))
    margins = torch.rand(size, generator=g) * 4 - 1
    return scores, torch.randint(0, size, (batch,), generator=g), margins, draw(st.sampled_from([0.25, 1.0, 4.0]))


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))


def plain_pairwise(s: list[float], positive: list[bool], m: float, tau: float) -> list[float]:
    losses = []
    for i in range(len(s)):
        terms = [tau * softplus((m - (s[i] - s[j])) / tau) for j in range(len(s)) if not positive[j]]
        losses.append(sum(terms) / len(terms) if positive[i] and terms else 0.0)
    return losses


def plain_smooth_ap(s: list[float], positive: list[bool], tau: float) -> list[float]:
    losses = []
    for i in range(len(s)):
        among_all = 1 + sum(sigmoid((s[j] - s[i]) / tau) for j in range(len(s)) if j != i)
        among_positives = 1 + sum(sigmoid((s[j] - s[i]) / tau) for j in range(len(s)) if j != i and positive[j])
        losses.append(1 - among_positives / among_all if positive[i] else 0.0)
    return losses


@given(cases())
def test_pairs_equal_a_plain_loop_for_one_class_all_classes_and_labels(case) -> None:
    scores, labels, margins, tau = case
    positive = members(labels, scores.shape[1])
    plain = torch.tensor(
        [
            plain_pairwise(scores[:, c].tolist(), positive[:, c].tolist(), float(margins[c]), tau)
            for c in range(scores.shape[1])
        ]
    ).T
    near = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(pairwise_ranking(scores, positive, margins, tau), plain, **near)
    one = pairwise_ranking(scores[:, 0], positive[:, 0], float(margins[0]), tau)
    torch.testing.assert_close(one, plain[:, 0].contiguous(), **near)
    own = plain.gather(1, labels[:, None]).squeeze(1)
    torch.testing.assert_close(pairwise_ranking(scores, labels, margins, torch.tensor(tau)), own, **near)


@given(cases())
def test_smooth_ap_equals_a_plain_loop_for_one_class_all_classes_and_labels(case) -> None:
    scores, labels, _, tau = case
    positive = members(labels, scores.shape[1])
    plain = torch.tensor(
        [plain_smooth_ap(scores[:, c].tolist(), positive[:, c].tolist(), tau) for c in range(scores.shape[1])]
    ).T
    torch.testing.assert_close(smooth_ap(scores, positive, tau), plain, rtol=1e-4, atol=1e-5)
    one = smooth_ap(scores[:, 0], positive[:, 0], tau)
    torch.testing.assert_close(one, plain[:, 0].contiguous(), rtol=1e-4, atol=1e-5)
    own = plain.gather(1, labels[:, None]).squeeze(1)
    torch.testing.assert_close(smooth_ap(scores, labels, tau), own, rtol=1e-4, atol=1e-5)


def test_smooth_ap_tends_to_average_precision_as_the_temperature_falls() -> None:
    g = torch.Generator().manual_seed(0)
    scores, positive = torch.randn(50, generator=g), torch.rand(50, generator=g) < 0.2
    loss = smooth_ap(scores.double(), positive, 1e-5)[positive].mean()
    assert float(loss) == pytest.approx(1 - average_precision_score(positive, scores), abs=1e-4)


def test_pairs_tend_to_the_hinge_as_the_temperature_falls() -> None:
    scores, positive = torch.tensor([1.5, 1.0, -1.0]), torch.tensor([True, False, False])
    torch.testing.assert_close(pairwise_ranking(scores, positive, 1.0, 1e-3), torch.tensor([0.25, 0.0, 0.0]))


@given(cases())
def test_two_classes_are_pulled_apart_symmetrically(case) -> None:
    """With scores ±s each pair is seen from both sides, and the batch's balanced mean is the mean over pairs."""
    scores, labels, _, tau = case
    labels, s = labels % 2, scores[:, 0].double()
    assume(0 < labels.sum() < len(labels))
    both = pairwise_ranking(torch.stack([-s, s], 1), labels, 1.0, tau)
    pairs = pairwise_ranking(s, labels == 1, 1.0, tau)[labels == 1].mean()
    balanced = (both * class_balance(members(labels, 2))[labels]).mean()
    torch.testing.assert_close(balanced, pairs)
    torch.testing.assert_close(both[labels == 0].mean(), pairs)


@given(cases())
def test_balanced_weights_turn_the_mean_over_a_batch_into_the_mean_over_its_classes(case) -> None:
    scores, labels, _, _ = case
    weights, values = class_balance(members(labels, scores.shape[1])), scores[:, 0]
    means = torch.stack([values[labels == c].mean() for c in labels.unique()])
    torch.testing.assert_close((weights[labels] * values).mean(), means.mean(), rtol=1e-4, atol=1e-5)


def test_nothing_is_pulled_in_a_batch_of_one_class() -> None:
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(pairwise_ranking(scores, torch.tensor([1, 1, 1, 1])), torch.zeros(4))
    assert torch.equal(smooth_ap(scores, torch.tensor([1, 1, 1, 1])), torch.zeros(4))
    none = torch.zeros(4, 3, dtype=torch.bool)
    assert torch.equal(pairwise_ranking(scores, none), torch.zeros(4, 3))
    assert torch.equal(class_balance(none), torch.full((3,), 4.0))


@given(st.integers(2, 40), st.integers(0, 10_000), st.booleans())
def test_ordering_errors_equal_scikit_learn_with_ties(samples: int, seed: int, ties: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 4, (2, samples), generator=g).float() if ties else torch.randn(2, samples, generator=g)
    positive = torch.rand(2, samples, generator=g) < 0.3
    positive[:, 0], positive[:, 1] = True, False
    misordered, imprecise = ordering_errors(scores, positive)
    for c in range(2):
        y, s = positive[c].numpy(), scores[c].numpy()
        assert float(misordered[c]) == pytest.approx(1 - roc_auc_score(y, s), abs=1e-5)
        assert float(imprecise[c]) == pytest.approx(1 - average_precision_score(y, s), abs=1e-5)


def test_without_positives_or_without_negatives_nothing_is_in_the_wrong_order() -> None:
    scores = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    misordered, imprecise = ordering_errors(scores, torch.tensor([[True], [False]]).expand(2, 5))
    assert torch.equal(misordered, torch.zeros(2))
    torch.testing.assert_close(imprecise, torch.zeros(2))


def test_scores_rank_as_the_metric_does() -> None:
    """By softmax probability for labels [B], by the sigmoid of its own logit for labels [B, C]."""
    g = torch.Generator().manual_seed(0)
    for size in (2, 3, 10):
        outputs = torch.randn(50, size, generator=g)
        by_softmax = ranking_scores(outputs, torch.zeros(50, dtype=torch.long)).argsort(0)
        assert torch.equal(by_softmax, outputs.double().softmax(-1).argsort(0))
        assert torch.equal(ranking_scores(outputs, torch.zeros(50, size)), outputs)


@pytest.mark.parametrize("several", [False, True])
def test_statistics_are_surprise_wrong_pairs_and_lost_precision_of_each_class(several: bool) -> None:
    g = torch.Generator().manual_seed(0)
    outputs, labels = torch.randn(60, 3, generator=g), torch.arange(3).repeat(20)
    targets = (torch.rand(60, 3, generator=g) < 0.3).long() if several else labels
    p = outputs.double().sigmoid() if several else outputs.double().softmax(-1)
    positive = members(targets, 3)
    for c, (surprise, misordered, imprecise) in enumerate(ranking_statistics(outputs, targets).tolist()):
        assert surprise == pytest.approx(math.log(1 - float(p[positive[:, c], c].log().mean())), abs=1e-5)
        assert misordered == pytest.approx(1 - roc_auc_score(positive[:, c], p[:, c]), abs=1e-5)
        assert imprecise == pytest.approx(1 - average_precision_score(positive[:, c], p[:, c]), abs=1e-5)


def test_statistics_of_many_samples_and_classes_need_no_matrix_of_pairs() -> None:
    """5,000 samples and 100 classes: pairs would be 10 GB."""
    g = torch.Generator().manual_seed(0)
    targets = torch.arange(100).repeat(50)
    table = ranking_statistics(torch.randn(5000, 100, generator=g) * 1e3, targets)
    assert table.shape == (100, 3)
    assert table.isfinite().all()
    assert (table >= 0).all()
