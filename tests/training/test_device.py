"""A step of the controller stays on the device. Meta tensors hold no numbers, so whatever asks for one fails there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lossalign.control import LearningController, default, draws
from lossalign.core import generator
from lossalign.losses import AdaptiveLoss, AlignedLoss, ClassCorrelationLoss
from lossalign.metrics import BalancedError, ErrorRate, MacroF1, MeanCost, Metric, TopKError, WorstClassRecall
from lossalign.training.observe import measure, observe

CHILDREN, CLASSES = 3, 6
LOSSES = [AlignedLoss(CLASSES, groups=("weights", "offsets", "pairs")), ClassCorrelationLoss(CLASSES)]
METRICS = [ErrorRate(), BalancedError(), MacroF1(), WorstClassRecall(), MeanCost(torch.eye(CLASSES)), TopKError(2)]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """What was fetched from the device, which hands out ones."""
    shapes: list[torch.Size] = []

    def cpu(tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":
            shapes.append(tensor.shape)
        return torch.ones(tensor.shape, dtype=tensor.dtype)

    monkeypatch.setattr(Tensor, "cpu", cpu)
    return shapes


def scores() -> tuple[Tensor, Tensor]:
    return torch.empty(CHILDREN, 20, CLASSES, device="meta"), torch.empty(CHILDREN, 20, dtype=torch.long, device="meta")


@pytest.mark.parametrize("many", [0, 2**16])
@pytest.mark.parametrize("groups", ["all", "last"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_two_numbers_a_child_are_fetched_at_a_step_and_one_more_with_the_metric(
    loss: AdaptiveLoss, groups: str, many: int, fetched: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draws, "_MANY", many)
    controller = LearningController(
        loss.spec,
        children=CHILDREN,
        preset=default(horizon=1, replay_parameters=4),
        groups=None if groups == "all" else [loss.spec.groups[-1].name],
        statistics=loss.num_statistics,
        generator=generator(0),
        device="meta",
    )
    for _ in range(4):
        fetched.clear()
        errors = measure(BalancedError(), *scores(), step=1)
        told = controller.move(observe(loss, BalancedError(), *scores(), errors, progress=0.5, device="meta"))
        assert fetched == [(2, CHILDREN), (CHILDREN,)], "the metric and its check together, then the entropy"
        assert controller.phi.device.type == "meta"
        assert all(value.device.type == "cpu" for value in told.values())


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_our_metrics_and_their_sensitivity_stay_on_the_device(metric: Metric, fetched: list[torch.Size]) -> None:
    seen = observe(LOSSES[0], metric, *scores(), torch.zeros(CHILDREN), progress=0.5, device="meta")
    assert seen.statistics.shape == seen.sensitivity.shape == (CHILDREN, LOSSES[0].spec.size, 2)
    assert seen.statistics.device.type == seen.sensitivity.device.type == "meta"
    assert fetched == ([] if metric.tie_breaker is None else [(CHILDREN,)])
