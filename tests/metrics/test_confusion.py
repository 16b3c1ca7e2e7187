"""Counts and the metrics on them agree with a plain loop and with scikit-learn."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import Tensor

from lossalign.core import InputError
from lossalign.metrics import (
    BalancedError,
    ErrorRate,
    MacroF1,
    MeanCost,
    WorstClassRecall,
    WorstExpectedRecall,
    confusion_counts,
)

METRICS = [ErrorRate(), BalancedError(), MacroF1(), WorstClassRecall()]


@st.composite
def predictions(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Outputs with ties, and targets that often leave out classes."""
    size, samples = draw(st.integers(2, 6)), draw(st.integers(1, 30))
    g = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    outputs = torch.randn(samples, size, generator=g).round(decimals=draw(st.integers(0, 3)))
    present = draw(st.integers(1, size))
    return outputs, torch.randint(0, present, (samples,), generator=g)


@given(predictions())
def test_counts_equal_a_plain_loop(case: tuple[Tensor, Tensor]) -> None:
    outputs, targets = case
    counts = [[0.0] * outputs.shape[1] for _ in range(outputs.shape[1])]
    for row, truth in zip(outputs.tolist(), targets.tolist(), strict=True):
        counts[truth][row.index(max(row))] += 1
    assert confusion_counts(outputs, targets).tolist() == counts


@pytest.mark.filterwarnings("ignore::UserWarning:sklearn")
@given(predictions())
def test_metrics_equal_scikit_learn_with_absent_classes_left_out(case: tuple[Tensor, Tensor]) -> None:
    outputs, targets = case
    truth, predicted = targets.numpy(), outputs.argmax(-1).numpy()
    present = sorted(set(truth.tolist()))
    expected = {
        "error": 1 - sk.accuracy_score(truth, predicted),
        "balanced-error": 1 - sk.balanced_accuracy_score(truth, predicted),
        "macro-f1": sk.f1_score(truth, predicted, labels=present, average="macro", zero_division=0),
        "worst-recall": min(sk.recall_score(truth, predicted, labels=present, average=None, zero_division=0)),
    }
    for metric in METRICS:
        assert float(metric(outputs, targets)) == pytest.approx(expected[metric.name], abs=1e-6), metric.name


@given(predictions())
def test_the_expected_recall_equals_a_plain_loop(case: tuple[Tensor, Tensor]) -> None:
    outputs, targets = case
    shares: dict[int, list[float]] = {}
    for row, truth in zip(outputs.exp().tolist(), targets.tolist(), strict=True):
        shares.setdefault(truth, []).append(row[truth] / sum(row))
    expected = min(sum(each) / len(each) for each in shares.values())
    assert float(WorstExpectedRecall()(outputs, targets)) == pytest.approx(expected, abs=1e-5)


@given(predictions())
def test_the_worst_recall_is_the_expected_one_of_a_network_that_is_sure(case: tuple[Tensor, Tensor]) -> None:
    outputs, targets = case
    sure = torch.eye(outputs.shape[1])[outputs.argmax(-1)] * 1e4
    metric = WorstClassRecall()
    assert metric.tie_breaker is not None
    assert metric.tie_breaker.higher_is_better == metric.higher_is_better
    assert float(metric.tie_breaker(sure, targets)) == pytest.approx(float(metric(outputs, targets)), abs=1e-6)


@given(predictions(), st.integers(0, 10_000))
def test_mean_cost_is_the_mean_of_what_each_prediction_costs(case: tuple[Tensor, Tensor], seed: int) -> None:
    outputs, targets = case
    costs = torch.randn(outputs.shape[1], outputs.shape[1], generator=torch.Generator().manual_seed(seed))
    paid = [costs[i, j].item() for i, j in zip(targets.tolist(), outputs.argmax(-1).tolist(), strict=True)]
    assert float(MeanCost(costs)(outputs, targets)) == pytest.approx(sum(paid) / len(paid), abs=1e-5)


@given(predictions(), st.randoms(use_true_random=False))
def test_class_names_do_not_matter(case: tuple[Tensor, Tensor], random: Random) -> None:
    outputs, targets = case
    outputs = outputs + torch.arange(outputs.numel()).view_as(outputs) * 1e-6  # a tie is broken by name
    order = list(range(outputs.shape[1]))
    random.shuffle(order)
    renamed = torch.tensor(order).argsort()[targets]
    for metric in METRICS:
        torch.testing.assert_close(metric(outputs[:, order], renamed), metric(outputs, targets))


def test_from_counts_is_batched_over_leading_axes() -> None:
    counts = torch.randint(0, 5, (3, 2, 4, 4), generator=torch.Generator().manual_seed(0)).float()
    for metric in [*METRICS, MeanCost(1 - torch.eye(4))]:
        one_by_one = torch.stack([torch.stack([metric.from_counts(c) for c in row]) for row in counts])
        torch.testing.assert_close(metric.from_counts(counts), one_by_one)


def test_a_class_that_is_present_and_never_predicted_has_f1_zero() -> None:
    counts = torch.tensor([[4.0, 0.0], [2.0, 0.0]])
    assert float(MacroF1().from_counts(counts)) == pytest.approx((8 / 10 + 0) / 2)


def test_counts_stay_exact_under_autocast() -> None:
    outputs, targets = torch.tensor([[1.0, 0.0]]).expand(1001, 2), torch.zeros(1001, dtype=torch.long)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert confusion_counts(outputs, targets)[0, 0] == 1001


@pytest.mark.parametrize("costs", [torch.zeros(2, 3), torch.zeros(3), torch.zeros(0, 0)])
def test_costs_must_be_square(costs: Tensor) -> None:
    with pytest.raises(InputError, match="costs has shape"):
        MeanCost(costs)


def test_costs_must_be_finite() -> None:
    with pytest.raises(InputError, match="costs holds NaN or inf"):
        MeanCost(torch.tensor([[0.0, float("inf")], [1.0, 0.0]]))


def test_costs_must_fit_the_outputs() -> None:
    with pytest.raises(InputError, match="for 2 classes, the outputs have 3"):
        MeanCost(torch.eye(2))(torch.zeros(1, 3), torch.tensor([0]))
