"""What a metric would gain if one kind of error vanished, whichever way it is worked out."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossalign.metrics import (
    AUCPR,
    AUROC,
    BalancedError,
    ConfusionMetric,
    ErrorRate,
    FunctionMetric,
    MacroF1,
    MeanCost,
    MeanMetric,
    Metric,
    TopKError,
    WorstClassRecall,
    class_sensitivity,
    confusion_counts,
    error,
    over_children,
    sensitivity,
)
from lossalign.metrics.sensitivity import gains_from_counts, gains_from_outputs

COUNTED = [ErrorRate(), BalancedError(), MacroF1(), WorstClassRecall(), MeanCost(1 - torch.eye(4) + torch.arange(4.0))]


@st.composite
def untied(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Outputs [V, 4] without ties inside a sample, and labels."""
    samples, g = draw(st.integers(1, 25)), torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    outputs = torch.rand(samples, 4, generator=g).argsort(-1).float()
    return outputs, torch.randint(0, draw(st.integers(1, 4)), (samples,), generator=g)


@given(untied())
def test_counts_and_outputs_tell_the_same(case: tuple[Tensor, Tensor]) -> None:
    for metric in COUNTED:
        by_counts = gains_from_counts(metric, confusion_counts(*case))
        torch.testing.assert_close(gains_from_outputs(metric, *case), by_counts, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(class_sensitivity(metric, *case), by_counts)


@given(st.integers(2, 9), st.integers(0, 10_000), st.floats(0, 0.9))
def test_the_short_way_over_totals_and_costs_equals_counting_again(size: int, seed: int, empty: float) -> None:
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 9, (size, size), generator=g).float()
    counts *= torch.rand(size, size, generator=g) >= empty
    counts[0, -1] += 1
    for metric in (ErrorRate(), BalancedError(), MacroF1(), WorstClassRecall()):
        short = error(metric, metric.from_counts(counts)) - error(metric, metric.corrected(counts))
        assert torch.equal(short, gains_from_counts(metric, counts)), metric.name
    costly = MeanCost(torch.randn(size, size, generator=g))
    short = costly.from_counts(counts) - costly.corrected(counts)
    torch.testing.assert_close(short, gains_from_counts(costly, counts), atol=1e-5, rtol=1e-5)


@given(untied(), st.integers(1, 3))
def test_a_mean_over_samples_gains_what_scoring_again_says(case: tuple[Tensor, Tensor], k: int) -> None:
    for metric in (TopKError(k), Certainty()):
        again = gains_from_outputs(metric, *case)
        torch.testing.assert_close(class_sensitivity(metric, *case), again, atol=1e-6, rtol=1e-5)


class Certainty(MeanMetric):
    """Mean score of the true class; higher is better."""

    name, higher_is_better, vectorised = "certainty", True, True

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.gather(-1, targets[:, None]).squeeze(-1)


class Agreement(ConfusionMetric):
    """Cohen's kappa: written of the counts, without a short way."""

    name, higher_is_better = "agreement", True

    def from_counts(self, counts: Tensor) -> Tensor:
        total = counts.sum((-2, -1))
        chance = (counts.sum(-1) * counts.sum(-2)).sum(-1) / total**2
        return (counts.diagonal(dim1=-2, dim2=-1).sum(-1) / total - chance) / (1 - chance)


def test_a_metric_of_counts_of_your_own_counts_again() -> None:
    g = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(30, 4, generator=g), torch.randint(0, 4, (30,), generator=g)
    expected = gains_from_outputs(Agreement(), outputs, targets)
    torch.testing.assert_close(class_sensitivity(Agreement(), outputs, targets), expected)
    assert expected.abs().max() > 0.01


@pytest.mark.parametrize("metric", [AUCPR(), Agreement()], ids=lambda metric: metric.name)
def test_too_many_classes_are_not_computed_and_that_is_said(metric: Metric, monkeypatch) -> None:
    monkeypatch.setattr(sensitivity, "_SCORED", 2 * 4 * 16)
    g = torch.Generator().manual_seed(0)
    few, many = (torch.randn(4, size, generator=g) for size in (4, 5))
    targets = torch.tensor([0, 1, 2, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert class_sensitivity(metric, few, targets).any()
    with pytest.warns(UserWarning, match=f"'{metric.name}': the sensitivity of 5 classes is not computed"):
        gains = over_children(lambda o, t: class_sensitivity(metric, o, t), True, many[None], targets[None])
    assert torch.equal(gains, torch.zeros(1, 5, 2))


@pytest.mark.parametrize("metric", [ErrorRate(), BalancedError(), MacroF1(), WorstClassRecall(), TopKError(2)])
def test_ours_are_worked_out_for_any_number_of_classes(metric: Metric, monkeypatch) -> None:
    monkeypatch.setattr(sensitivity, "_SCORED", 0)
    outputs = torch.eye(4)[torch.tensor([0, 0, 2, 3])] + torch.arange(4.0) / 10
    assert class_sensitivity(metric, outputs, torch.tensor([0, 1, 2, 3])).any()


@given(untied())
def test_the_error_rate_gains_the_errors_themselves(case: tuple[Tensor, Tensor]) -> None:
    outputs, targets = case
    predicted = outputs.argmax(-1)
    errors = [
        [((targets == c) & (predicted != c)).sum().item(), ((targets != c) & (predicted == c)).sum().item()]
        for c in range(4)
    ]
    gains = class_sensitivity(ErrorRate(), outputs, targets)
    torch.testing.assert_close(gains, torch.tensor(errors, dtype=torch.float32) / len(targets), atol=1e-7, rtol=0)


@given(untied())
def test_fewer_errors_never_hurt(case: tuple[Tensor, Tensor]) -> None:
    for metric in (ErrorRate(), BalancedError(), MacroF1(), WorstClassRecall(), TopKError(2)):
        assert class_sensitivity(metric, *case).min() >= -1e-6, metric.name


@given(untied())
def test_a_metric_called_one_by_one_gains_the_same_as_a_lifted_one(case: tuple[Tensor, Tensor]) -> None:
    for metric in (AUCPR(), TopKError(2)):
        plain = FunctionMetric(metric, higher_is_better=metric.higher_is_better)
        torch.testing.assert_close(class_sensitivity(plain, *case), class_sensitivity(metric, *case))


@pytest.mark.parametrize("metric", [*COUNTED, AUCPR(), AUROC(), TopKError(2)], ids=lambda metric: metric.name)
@pytest.mark.parametrize("held", [1, 2**23])
def test_lifted_over_children_equals_a_loop_whatever_is_held_at_once(metric, held: int, monkeypatch) -> None:
    g = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(3, 12, 4, generator=g), torch.randint(0, 4, (3, 12), generator=g)
    loop = torch.stack([class_sensitivity(metric, o, t) for o, t in zip(outputs, targets, strict=True)])
    monkeypatch.setattr(sensitivity, "_HELD", held)
    lifted = over_children(lambda o, t: class_sensitivity(metric, o, t), True, outputs, targets)
    assert lifted.shape == (3, 4, 2)
    torch.testing.assert_close(lifted, loop)


def test_a_ranking_metric_gains_most_where_its_errors_are() -> None:
    g = torch.Generator().manual_seed(0)
    targets = torch.arange(3).repeat(40)
    outputs = torch.nn.functional.one_hot(targets, 3) * 3.0 + torch.randn(120, 3, generator=g)
    outputs[targets == 2] = torch.randn(40, 3, generator=g) + torch.tensor([2.0, 0.0, 0.0])
    gains = class_sensitivity(AUROC(), outputs, targets)
    assert gains[:, 0].argmax() == 2
    assert gains[:, 1].argmax() == 0


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_outputs_that_name_no_class_have_no_sensitivity(shape: tuple[int, ...]) -> None:
    gains = class_sensitivity(AUCPR("binary"), torch.zeros(shape), torch.tensor([0, 1, 0, 1, 1]))
    assert torch.equal(gains, torch.zeros(2, 2))
