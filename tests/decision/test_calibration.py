"""Calibration undoes what is wrong with confident outputs, and the Bayes decision is the cheapest one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lossalign.decision import calibrate, expected_costs
from lossalign.metrics import MeanCost


def labelled(number: int = 20_000) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the true posterior, and labels drawn from it."""
    draw = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(number, 3, generator=draw)
    return logits, torch.multinomial(logits.softmax(-1), 1, generator=draw).squeeze(1)


def test_calibration_finds_the_scale_and_the_offsets_that_were_lost() -> None:
    logits, targets = labelled()
    lost = torch.tensor([1.0, 0.0, -1.0])
    scale, bias = calibrate((logits - lost) / 0.25, targets, prior=0.0)
    assert abs(float(scale) - 0.25) < 0.02
    torch.testing.assert_close(bias - bias.mean(), lost, atol=0.08, rtol=0)


def test_calibrated_outputs_fit_at_least_as_well() -> None:
    logits, targets = labelled(300)
    scale, bias = calibrate(3 * logits, targets)
    assert F.cross_entropy(scale * 3 * logits + bias, targets) < F.cross_entropy(3 * logits, targets)


def test_deciding_by_expected_cost_is_cheaper_than_by_probability() -> None:
    logits, targets = labelled()
    costs = torch.tensor([[0.0, 1.0, 5.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    metric = MeanCost(costs)
    assert metric(-expected_costs(logits, costs), targets) < metric(logits, targets) - 0.02


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 8.0])
def test_many_calibrations_at_once_are_those_one_by_one(sharpness: float) -> None:
    logits, targets = labelled(120)
    weights = (torch.rand(4, 120, generator=torch.Generator().manual_seed(1)) < 0.7).float()
    together = calibrate(sharpness * logits, targets, 0.01, scale_prior=0.005, weights=weights)
    for fit, seen in enumerate(weights > 0):
        scale, bias = calibrate(sharpness * logits[seen], targets[seen], 0.01, scale_prior=0.005)
        torch.testing.assert_close(together[0][fit], scale, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(together[1][fit], bias, atol=5e-3, rtol=0)


def test_separable_outputs_are_calibrated_too() -> None:
    targets = torch.arange(3).repeat(10)
    outputs = 2.0 * F.one_hot(targets)
    scale, bias = calibrate(outputs.float(), targets, 0.01, scale_prior=0.01, weights=torch.ones(2, 30))
    assert scale.isfinite().all()
    assert (scale > 1).all()
    torch.testing.assert_close(bias, torch.zeros(2, 3), atol=1e-4, rtol=0)
