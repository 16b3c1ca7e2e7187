"""Calibration undoes what is wrong with confident outputs, and the Bayes decision is the cheapest one."""

from __future__ import annotations

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
