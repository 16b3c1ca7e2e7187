"""What controllers see, for losses and metrics that vmap cannot lift."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from lossalign.losses import AlignedLoss, DistanceMixtureLoss
from lossalign.metrics import BalancedError, FunctionMetric, class_gradient
from lossalign.training.observe import observe, sensitivity_cost


class Itemised(AlignedLoss):
    """Statistics that leave torch's tensors on their way."""

    vectorised = False

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().statistics(outputs, targets) * (1 + 0 * outputs.sum().item())


OUTPUTS, TARGETS = torch.randn(2, 12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(24).view(2, 12) % 3
ERRORS = torch.zeros(2)


def test_statistics_of_a_loss_that_vmap_cannot_lift() -> None:
    plain, itemised = (
        observe(loss, BalancedError(), OUTPUTS, TARGETS, ERRORS, progress=0.5).statistics
        for loss in (AlignedLoss(3), Itemised(3))
    )
    torch.testing.assert_close(itemised, plain)


def test_such_a_loss_trains_in_ones_own_loop(problem: Any) -> None:
    runs = []
    for loss in (AlignedLoss(3), Itemised(3)):
        torch.manual_seed(0)
        aligner = problem.aligner(loss=loss)
        problem.train(aligner, 9)
        runs.append(aligner.history.phi)
    assert torch.equal(*runs)


SLOW = FunctionMetric(lambda outputs, targets: 0.5, higher_is_better=True, name="slow")


@pytest.mark.parametrize(
    ("loss", "metric", "targets", "calls"),
    [
        (AlignedLoss(3), SLOW, TARGETS, 12),  # 2 children
        (AlignedLoss(3), BalancedError(), TARGETS, None),
        (DistanceMixtureLoss(), SLOW, TARGETS, None),
        (AlignedLoss(3), SLOW, torch.zeros(2, 12, 3), None),
    ],
)
def test_what_the_sensitivity_costs(loss: Any, metric: Any, targets: Tensor, calls: int | None) -> None:
    said = sensitivity_cost(loss, metric, OUTPUTS, targets)
    assert said is None if calls is None else f"up to {calls} times" in str(said)


def test_it_is_not_said_at_every_observation() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        observe(AlignedLoss(3), SLOW, OUTPUTS, TARGETS, ERRORS, progress=0.5)


@pytest.mark.parametrize(
    "metric",
    [BalancedError(), FunctionMetric(lambda o, t: float(BalancedError()(o, t)), higher_is_better=False, name="own")],
    ids=["ours", "function"],
)
def test_the_gradient_is_computed_for_the_children_that_want_it(metric: Any) -> None:
    loss = AlignedLoss(3, groups=("weights", "offsets"))
    seen = observe(loss, metric, OUTPUTS, TARGETS, ERRORS, progress=0.5, gradient=[1])
    assert seen.gradient is not None
    assert not seen.gradient[0].any()
    expected = class_gradient(metric, OUTPUTS[1], TARGETS[1])
    torch.testing.assert_close(seen.gradient[1], torch.cat([expected, expected]))


def test_nobody_pays_for_a_gradient_that_nobody_wants() -> None:
    assert observe(AlignedLoss(3), BalancedError(), OUTPUTS, TARGETS, ERRORS, progress=0.5).gradient is None


def test_a_pair_of_classes_has_their_mean_and_other_parameters_have_none() -> None:
    loss = AlignedLoss(3, groups=("offsets", "pairs"))
    gradient = observe(loss, BalancedError(), OUTPUTS, TARGETS, ERRORS, progress=0.5, gradient=[0, 1]).gradient
    assert gradient is not None
    i, j = loss.spec.classes[3:].T
    torch.testing.assert_close(gradient[:, 3:], (gradient[:, i] + gradient[:, j]) / 2)
    free = observe(DistanceMixtureLoss(), BalancedError(), OUTPUTS, TARGETS, ERRORS, progress=0.5, gradient=[0])
    assert free.gradient is not None
    assert not free.gradient.any()
