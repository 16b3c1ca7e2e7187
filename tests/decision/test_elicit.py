"""The gradient that a black box shows is the analytic one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossalign.decision import CountsScore, elicit, elicitation
from lossalign.metrics import (
    BalancedError,
    ClassTotals,
    ConfusionMetric,
    FunctionMetric,
    MacroF1,
    MeanCost,
    TotalsMetric,
    WorstClassRecall,
)


class GMean(TotalsMetric):
    """Geometric mean of the recalls, clamped: it plateaus where a class is lost."""

    name = "g-mean"
    higher_is_better = True

    def from_totals(self, totals: ClassTotals) -> Tensor:
        return (totals.correct / totals.truths).clamp_min(0.01).log().nanmean(-1).exp()


COUNTS = torch.tensor([[800.0, 100, 100], [60, 300, 40], [50, 50, 100]])
SIZES, CORRECT, PREDICTED = COUNTS.sum(1), COUNTS.diagonal(), COUNTS.sum(0)
COSTS = torch.tensor([[0.0, 1, 7], [2, 0, 1], [9, 3, 0]])


def balanced() -> Tensor:
    """1 − balanced error = Σ_i n_ii / n_i / C."""
    return torch.diag(1 / SIZES / 3)


def macro_f1() -> Tensor:
    """F_j = 2 n_jj / (n_j + m_j): ∂/∂n_ij = 2 δ_ij / (n_j + m_j) − 2 n_jj / (n_j + m_j)²."""
    both = SIZES + PREDICTED
    return (torch.diag(2 / both) - 2 * CORRECT / both**2) / 3


def costs() -> Tensor:
    """Minus the mean cost."""
    return -COSTS / COUNTS.sum()


def g_mean() -> Tensor:
    """(Π r_i)^{1/C}: ∂/∂n_ii = value / (C n_ii)."""
    return torch.diag((CORRECT / SIZES).log().mean().exp() / 3 / CORRECT)


CASES: list[tuple[ConfusionMetric, Tensor]] = [
    (BalancedError(), balanced()),
    (MacroF1(), macro_f1()),
    (MeanCost(COSTS), costs()),
    (GMean(), g_mean()),
]


def hidden(metric: ConfusionMetric) -> FunctionMetric:
    return FunctionMetric(metric, higher_is_better=metric.higher_is_better, name="hidden")


def centred(gains: Tensor) -> Tensor:
    """Without the constant of each row, which changes no decision, and on a scale for each row."""
    return gains - (COUNTS / SIZES[:, None] * gains).sum(-1, keepdim=True)


@pytest.mark.parametrize("black_box", [False, True], ids=["counts", "black box"])
@pytest.mark.parametrize(("metric", "gradient"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_the_gradient_is_the_analytic_one(metric: ConfusionMetric, gradient: Tensor, black_box: bool) -> None:
    score = CountsScore(hidden(metric) if black_box else metric, 3, int(COUNTS.sum()))
    found, expected = elicit(score, COUNTS, step=0.01), centred(gradient)
    torch.testing.assert_close(
        found, expected, rtol=1e-3, atol=float(expected.abs().max()) * (0.03 if black_box else 1e-3)
    )


@pytest.mark.parametrize(("metric", "gradient"), CASES[:2], ids=["balanced-error", "macro-f1"])
def test_many_classes_are_asked_2_c_times(
    metric: ConfusionMetric, gradient: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elicitation, "_EVERY_CELL", 2)
    score = CountsScore(hidden(metric), 3, int(COUNTS.sum()))
    found, expected = elicit(score, COUNTS, step=0.01), centred(gradient)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=float(expected.abs().max()) * 0.1)
    assert score.calls <= 2 * 3 + 1


def test_one_flip_does_not_move_the_worst_recall_but_resampled_sets_do() -> None:
    counts = torch.tensor([[8.0, 2], [3, 7]])
    score = CountsScore(WorstClassRecall(), 2, 20)
    assert not elicit(score, counts)[0].any()
    sets = torch.stack([counts, torch.tensor([[6.0, 4], [3, 7]])])
    gains = elicit(score, sets).mean(0)
    assert gains[0, 0] > gains[0, 1]
    assert gains[1, 1] > gains[1, 0]


@given(st.permutations(range(3)))
def test_permuted_classes_have_permuted_gains(order: list[int]) -> None:
    score = CountsScore(MacroF1(), 3, 1600)
    permuted = elicit(score, COUNTS[order][:, order])
    torch.testing.assert_close(permuted, elicit(score, COUNTS)[order][:, order])


@given(st.integers(2, 5))
def test_duplicated_samples_have_the_same_gains_per_share(times: int) -> None:
    for metric in (MacroF1(), hidden(MacroF1())):
        score = CountsScore(metric, 3, 1600)
        torch.testing.assert_close(elicit(score, COUNTS * times) * times, elicit(score, COUNTS), rtol=1e-3, atol=1e-7)


def test_a_metric_whose_code_cuts_the_gradient_is_asked_instead() -> None:
    class Cut(ConfusionMetric):
        name, higher_is_better = "cut", True

        def from_counts(self, counts: Tensor) -> Tensor:
            return (counts.detach().diagonal(dim1=-2, dim2=-1) / counts.detach().sum(-1)).mean(-1)

    found = elicit(CountsScore(Cut(), 3, 1600), COUNTS)
    torch.testing.assert_close(found, centred(balanced()), rtol=1e-2, atol=1e-5)
