"""Other people's metrics come out as ours: one number, a known direction, independent calls."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from lossalign.core import InputError
from lossalign.metrics import ErrorRate, FunctionMetric, Metric, PipelineMetric, TorchMetric, as_metric, error

OUTPUTS = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
TARGETS = torch.tensor([0, 0, 0, 1])


def accuracy(**options: object) -> MulticlassAccuracy:
    return MulticlassAccuracy(num_classes=2, average="micro", **options)


def share_right(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).float().mean()


def test_torchmetrics_gives_its_value_and_direction() -> None:
    metric = as_metric(accuracy())
    assert isinstance(metric, TorchMetric)
    assert (metric.name, metric.higher_is_better, metric.vectorised) == ("MulticlassAccuracy", True, False)
    assert metric(OUTPUTS, TARGETS) == 0.75


def test_repeated_calls_are_independent_and_leave_the_original_alone() -> None:
    original = accuracy()
    original.update(OUTPUTS[2:3], TARGETS[2:3])
    metric = TorchMetric(original)
    assert [float(metric(OUTPUTS[i : i + 1], TARGETS[i : i + 1])) for i in (0, 2, 3)] == [1, 0, 1]
    assert original.compute() == 0
    assert original.update_count == 1


def test_torchmetrics_direction_can_be_said_and_must_be_known() -> None:
    assert TorchMetric(MeanMetric(), higher_is_better=False).higher_is_better is False
    assert TorchMetric(accuracy(), higher_is_better=False).higher_is_better is False
    with pytest.raises(InputError, match="'MeanMetric' does not say which way is better; pass higher_is_better"):
        as_metric(MeanMetric())


def test_torchmetrics_must_compute_one_number() -> None:
    metric = TorchMetric(MulticlassConfusionMatrix(num_classes=2), higher_is_better=True, name="matrix")
    with pytest.raises(InputError, match=r"'matrix' returned a tensor of shape \(2, 2\)"):
        metric(OUTPUTS, TARGETS)


def test_processes_are_not_added_up() -> None:
    original = accuracy()
    assert TorchMetric(original)._metric.sync_on_compute is False
    assert original.sync_on_compute is True


@pytest.mark.parametrize(
    "value", [0.75, 1, torch.tensor(0.75), torch.tensor([0.75]), torch.tensor(0.75).double().numpy()[()]]
)
def test_a_function_may_return_any_real_number(value: object) -> None:
    metric = FunctionMetric(lambda outputs, targets: value, higher_is_better=True, name="constant")  # type: ignore[arg-type, return-value]
    result = metric(OUTPUTS, TARGETS)
    assert (result.shape, result.dtype) == ((), torch.float32)
    assert float(result) == float(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, "0.5", (0.5,), torch.zeros(2), torch.zeros(0), torch.tensor(1j)])
def test_what_is_not_one_real_number_is_refused_by_name(value: object) -> None:
    metric = FunctionMetric(lambda outputs, targets: value, higher_is_better=True, name="odd")  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match="Metric 'odd' returned"):
        metric(OUTPUTS, TARGETS)
    pipeline = PipelineMetric(lambda model, loader: value, higher_is_better=True, name="odd")  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match="Metric 'odd' returned"):
        pipeline(nn.Identity(), [])


def test_nan_and_inf_pass_for_the_caller_to_name_the_step() -> None:
    metric = FunctionMetric(lambda outputs, targets: outputs.max() / 0, higher_is_better=True)
    assert math.isinf(metric(OUTPUTS, TARGETS))
    assert math.isnan(PipelineMetric(lambda model, loader: math.nan, higher_is_better=True)(nn.Identity(), []))


def test_functions_are_told_apart_by_what_they_call_their_parameters() -> None:
    def recall_at_1(model: nn.Module, loader: object) -> float:
        return 0.5

    metric, pipeline = as_metric(share_right, higher_is_better=True), as_metric(recall_at_1, higher_is_better=True)
    assert isinstance(metric, FunctionMetric)
    assert (metric.name, float(metric(OUTPUTS, TARGETS))) == ("share_right", 0.75)
    assert isinstance(pipeline, PipelineMetric)
    assert (pipeline.name, pipeline(nn.Identity(), [])) == ("recall_at_1", 0.5)


def test_a_function_must_say_its_direction() -> None:
    with pytest.raises(InputError, match="'share_right' does not say which way is better; pass higher_is_better"):
        as_metric(share_right)

    def told(outputs: Tensor, targets: Tensor) -> float:
        return 0.0

    told.higher_is_better = False  # type: ignore[attr-defined]
    assert as_metric(told).higher_is_better is False


def test_ours_and_names_pass_through() -> None:
    ours = ErrorRate()
    assert as_metric(ours) is ours
    assert as_metric(ours, higher_is_better=False) is ours
    assert isinstance(as_metric("error"), ErrorRate)
    with pytest.raises(InputError, match="contradicts metric 'error'"):
        as_metric(ours, higher_is_better=True)


def test_anything_else_is_refused_by_type() -> None:
    with pytest.raises(InputError, match="metric is of type int"):
        as_metric(3)
    with pytest.raises(InputError, match=r"pass an instance, e.g. ErrorRate\(\)"):
        as_metric(ErrorRate)


def test_error_turns_every_metric_the_same_way() -> None:
    value = torch.tensor([0.25, 0.5])
    assert torch.equal(error(ErrorRate(), value), value)
    assert torch.equal(error(as_metric(share_right, higher_is_better=True), value), -value)


def test_a_metric_is_abstract() -> None:
    with pytest.raises(TypeError):
        Metric()  # type: ignore[abstract]
