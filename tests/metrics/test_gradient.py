"""The gradient on soft predictions: by autograd, and by scoring again for a metric that is only a function."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lossalign.metrics import (
    BalancedError,
    ConfusionMetric,
    ErrorRate,
    FunctionMetric,
    MacroF1,
    MeanCost,
    Metric,
    WorstClassRecall,
    class_gradient,
    error,
)
from lossalign.metrics.confusion import expected_counts
from lossalign.metrics.gradient import decisions, ordered_counts

CLASSES = 4
COSTS = torch.rand(CLASSES, CLASSES, generator=torch.Generator().manual_seed(9)).fill_diagonal_(0)
METRICS: list[ConfusionMetric] = [ErrorRate(), BalancedError(), MacroF1(), WorstClassRecall(), MeanCost(COSTS)]
ALL = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)


def labelled(seed: int = 0, samples: int = 60) -> tuple[Tensor, Tensor]:
    """Outputs that are better than chance, and labels of unequal classes."""
    g = torch.Generator().manual_seed(seed)
    targets = torch.cat([torch.arange(CLASSES), torch.randint(2, (samples - CLASSES,), generator=g)])
    return 1.5 * torch.randn(samples, CLASSES, generator=g) + 2 * torch.eye(CLASSES)[targets], targets


def black_box(metric: Metric) -> FunctionMetric:
    return FunctionMetric(lambda o, t: float(metric(o, t)), higher_is_better=metric.higher_is_better, name="mine")


@ALL
def test_it_is_the_slope_of_the_metric_on_soft_predictions(metric: ConfusionMetric) -> None:
    outputs, targets = (x.double() if x.is_floating_point() else x for x in labelled())

    def gain(shift: Tensor) -> float:
        return -float(error(metric, metric.from_counts(expected_counts(2 * (outputs + shift), targets))))

    steps = 0.05 * torch.eye(CLASSES)
    slopes = [(gain(step) - gain(-step)) / 0.1 for step in steps]
    assert class_gradient(metric, outputs.float(), targets).tolist() == pytest.approx(slopes, abs=2e-4)


def test_of_balanced_error_it_is_known() -> None:
    outputs, targets = labelled()
    p = (2 * outputs).softmax(-1)
    of_class = [p[targets == i] for i in range(CLASSES)]
    rows = [2 * (own[:, i : i + 1] * (torch.eye(CLASSES)[i] - own)).mean(0) for i, own in enumerate(of_class)]
    torch.testing.assert_close(class_gradient(BalancedError(), outputs, targets), torch.stack(rows).mean(0))


@ALL
def test_a_function_that_can_only_be_called_gives_nearly_the_same(metric: ConfusionMetric) -> None:
    outputs, targets = labelled(4, samples=120)
    exact, scored = (class_gradient(one, outputs, targets) for one in (metric, black_box(metric)))
    assert torch.nn.functional.cosine_similarity(exact, scored, dim=0) > 0.97
    assert 0.7 < scored.norm() / exact.norm() < 1.3


@ALL
def test_a_shift_of_all_classes_gains_nothing(metric: ConfusionMetric) -> None:
    assert float(class_gradient(metric, *labelled()).sum()) == pytest.approx(0, abs=1e-6)


@ALL
def test_classes_may_be_renamed_and_samples_repeated(metric: ConfusionMetric) -> None:
    outputs, targets = labelled()
    order = torch.tensor([2, 0, 3, 1])
    if not isinstance(metric, MeanCost):
        renamed = class_gradient(metric, outputs[:, order], order.argsort()[targets])
        torch.testing.assert_close(renamed, class_gradient(metric, outputs, targets)[order])
    twice = class_gradient(metric, outputs.repeat(2, 1), targets.repeat(2))
    torch.testing.assert_close(twice, class_gradient(metric, outputs, targets))


@pytest.mark.parametrize("make", [lambda metric: metric, black_box], ids=["ours", "function"])
def test_it_asks_for_the_worst_class_where_the_metric_itself_plateaus(make) -> None:  # type: ignore[no-untyped-def]
    outputs = torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [2.0, 0.0, 0.5]])
    targets = torch.arange(3)
    assert WorstClassRecall()(outputs, targets) == 0
    gradient = class_gradient(make(WorstClassRecall()), outputs, targets)
    assert gradient.argmax() == 2
    assert gradient.argmin() == 0


def test_a_metric_of_probabilities_is_scored_on_shifted_outputs() -> None:
    outputs, targets = labelled()
    chance = FunctionMetric(
        lambda o, t: float((2 * o).softmax(-1).gather(-1, t[:, None]).mean()), higher_is_better=True, name="chance"
    )
    torch.testing.assert_close(
        class_gradient(chance, outputs, targets), class_gradient(ErrorRate(), outputs, targets), atol=5e-3, rtol=0
    )


def test_decisions_have_the_soft_confusion() -> None:
    outputs, targets = labelled()
    made, labels = decisions(outputs, targets, samples=6000)
    torch.testing.assert_close(
        expected_counts(made, labels) / len(labels),
        expected_counts(2 * outputs, targets) / len(targets),
        atol=2e-4,
        rtol=0,
    )


def test_the_matrix_product_of_gpus_gives_the_expected_counts() -> None:
    torch.testing.assert_close(ordered_counts(*labelled()), expected_counts(*labelled()))


def test_binary_outputs_and_what_is_too_dear_have_none() -> None:
    assert not class_gradient(BalancedError(), torch.zeros(3, 1), torch.zeros(3).long()).any()
    many, labels = torch.randn(400, 400), torch.arange(400)
    with pytest.warns(UserWarning, match="the gradient of 400 classes is not computed"):
        assert not class_gradient(black_box(BalancedError()), many, labels).any()


def test_a_metric_that_is_not_finite_there_has_none() -> None:
    class Broken(ConfusionMetric):
        name, higher_is_better = "broken", True

        def from_counts(self, counts: Tensor) -> Tensor:
            return (counts.sum((-1, -2)) - counts.sum((-1, -2))).sqrt()

    assert not class_gradient(Broken(), *labelled()).any()
