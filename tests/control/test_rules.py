"""Rules lower the offsets of classes that should be predicted more often, by at most β, whatever the metric's scale."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from lossalign.control.rules import clipped_scores, confusion_move, confusion_signal, gradient_move, rule_move
from lossalign.core import Observation

BETA = 0.3
GAINS = st.lists(st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32)), min_size=2, max_size=8)
SCALES = st.floats(2**-10, 2**10, width=32)


def steps(classes: int) -> torch.Tensor:
    return torch.full((classes,), BETA, dtype=torch.double)


def by_hand(gains: list[tuple[float, float]]) -> list[float]:
    """The confusion rule, class by class."""
    totals = [max(sum(gain[side] for gain in gains), 0.0) for side in (0, 1)]
    shares = [
        [len(gains) * g / t - 1 if t > 1e-12 else 0.0 for g, t in zip(gain, totals, strict=True)] for gain in gains
    ]
    signal = [missed - false_alarms for missed, false_alarms in shares]
    mean = sum(signal) / len(signal)
    deviation = (sum((x - mean) ** 2 for x in signal) / len(signal)) ** 0.5
    return [-BETA * max(-1.0, min(1.0, (x - mean) / max(deviation, 1e-6))) for x in signal]


@given(GAINS)
def test_the_confusion_rule_equals_a_plain_loop(gains: list[tuple[float, float]]) -> None:
    sensitivity = torch.tensor([gains], dtype=torch.double)
    move = confusion_move(sensitivity, steps(len(gains)))
    assert move[0].tolist() == pytest.approx(by_hand(gains), abs=1e-5)
    assert move.abs().max() <= BETA + 1e-9


@given(GAINS, SCALES)
def test_it_does_not_depend_on_the_scale_of_the_metric(gains: list[tuple[float, float]], scale: float) -> None:
    sensitivity = torch.tensor([gains], dtype=torch.double)
    assume(sensitivity.sum(1).min() > 1e-3 and confusion_signal(sensitivity).std() > 1e-3)
    one, other = (confusion_move(factor * sensitivity, steps(len(gains))) for factor in (1.0, scale))
    torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_a_missed_class_is_asked_for_and_one_that_is_predicted_too_often_is_not() -> None:
    sensitivity = torch.zeros(1, 4, 2)
    sensitivity[0, 1, 0] = sensitivity[0, 3, 1] = 0.2
    move = confusion_move(sensitivity, steps(4).float())[0]
    assert move[1] == -BETA
    assert move[3] == BETA
    assert not move[[0, 2]].any()


def test_a_metric_without_sensitivity_moves_nothing() -> None:
    assert not confusion_move(torch.zeros(2, 4, 2), steps(4)).any()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_gradient_is_followed_whatever_its_scale(scale: float) -> None:
    gradient = scale * torch.tensor([[0.5, -0.2, -0.3]])
    move = gradient_move(gradient, steps(3).float())
    torch.testing.assert_close(move, -BETA * clipped_scores(torch.tensor([[0.5, -0.2, -0.3]])))
    assert (move * gradient <= 0).all()


def test_classes_may_be_renamed() -> None:
    sensitivity, gradient = torch.rand(3, 5, 2), torch.randn(3, 5)
    order = torch.randperm(5)
    for rule, signal in ((confusion_move, sensitivity), (gradient_move, gradient)):
        torch.testing.assert_close(rule(signal[:, order], steps(5)), rule(signal, steps(5))[:, order])


def test_a_rule_reads_the_offsets_and_stays_where_it_knows_nothing() -> None:
    sensitivity = torch.rand(2, 6, 2)
    seen = Observation(error=torch.zeros(2), statistics=torch.zeros(2, 6, 1), sensitivity=sensitivity, progress=0.5)
    offsets, beta = torch.arange(3, 6), torch.full((3,), BETA)
    assert torch.equal(rule_move("confusion-rule", seen, offsets, beta), confusion_move(sensitivity[:, 3:], beta))
    assert torch.equal(rule_move("metric-gradient", seen, offsets, beta), torch.zeros(2, 3))
