"""Rivals that look and do not learn."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossalign.core import InputError, Observation, generator, wants
from lossalign.losses import AlignedLoss, ClassCorrelationLoss
from lossalign.rivals import confusion_matrix, confusion_rule, fixed, metric_gradient, proportional_rule, random_matrix
from lossalign.rivals.rules import confusion_phi, proportional_move

LOSSES = st.lists(st.floats(0, 5, width=32), min_size=2, max_size=10)


def see(statistics: Tensor) -> Observation:
    return Observation(
        error=torch.zeros(len(statistics)),
        statistics=statistics,
        sensitivity=torch.zeros(*statistics.shape[:2], 2),
        progress=0.5,
    )


@given(LOSSES)
def test_the_move_equals_a_plain_loop(losses: list[float]) -> None:
    mean = sum(losses) / len(losses)
    deviation = max(1e-6, (sum((x - mean) ** 2 for x in losses) / len(losses)) ** 0.5)
    expected = [-0.3 * max(-1.0, min(1.0, (x - mean) / deviation)) for x in losses]
    given_ = torch.tensor([losses], dtype=torch.double)
    step = torch.full((len(losses),), 0.3, dtype=torch.double)
    assert proportional_move(given_, step)[0].tolist() == pytest.approx(expected, abs=1e-6)


@given(LOSSES)
def test_the_move_is_bounded_and_lowers_what_has_a_high_loss(losses: list[float]) -> None:
    given_ = torch.tensor([losses])
    move = proportional_move(given_, torch.full((len(losses),), 0.3))[0]
    assert move.abs().max() <= 0.3 + 1e-6
    assert (move[given_[0].argsort()].diff() <= 1e-6).all()


def test_equal_classes_stay() -> None:
    assert not proportional_move(torch.full((2, 4), 0.5), torch.full((4,), 0.3)).any()


def test_the_proportional_rule_moves_offsets_alone_and_stops_at_the_edge() -> None:
    spec = AlignedLoss(3, groups=("weights", "offsets")).spec
    rule = proportional_rule(spec, children=2)
    statistics = torch.rand(2, 6, 1, generator=generator(0))
    statistics[:, 3:, 0] = torch.tensor([0.1, 0.5, 0.9])
    for _ in range(40):
        rule.move(see(statistics))
        spec.check(rule.phi)
    assert not rule.phi[:, :3].any()
    torch.testing.assert_close(rule.phi[:, 3:], torch.tensor([3.0, 0.0, -3.0]).expand(2, -1), atol=1e-4, rtol=0)


def test_a_loss_without_offsets_has_no_proportional_rule() -> None:
    with pytest.raises(InputError, match=r"groups=\['offsets'\]: choose from \['weights'\]"):
        proportional_rule(AlignedLoss(3, groups=("weights",)).spec, children=2)


def test_the_random_matrix_is_drawn_anew_around_the_identity() -> None:
    spec = ClassCorrelationLoss(10).spec
    rival = random_matrix(spec, children=20, generator=generator(0))
    drawn = [rival.phi]
    for _ in range(5):
        rival.move(see(torch.zeros(20, spec.size, 2)))
        spec.check(rival.phi)
        drawn.append(rival.phi)
    assert len({tuple(phi.flatten().tolist()) for phi in drawn}) == 6
    pairs = torch.stack(drawn)[..., spec.slices["pairs"]]
    assert float(pairs.mean()) == pytest.approx(0, abs=0.01)
    assert float(pairs.std()) == pytest.approx(0.1, abs=0.01)
    diagonal = torch.stack(drawn)[..., spec.slices["diagonal"]]
    assert 0.9 < diagonal.mean() < 1


def test_confusion_equals_a_plain_loop() -> None:
    losses = [[0.0, 0.0], [0.5, 2.0], [20.0, 100.0]]
    expected = [(math.exp(-a) + math.exp(-b)) / 2 for a, b in losses]
    given_ = torch.tensor([losses], dtype=torch.double).log1p()
    assert confusion_phi(given_)[0].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("certainty", [0.0, 1.0, 5.0, 20.0])
def test_confusion_becomes_the_identity_as_the_network_learns(certainty: float) -> None:
    loss = ClassCorrelationLoss(3)
    targets = torch.arange(3).repeat(4)
    logits = certainty * torch.nn.functional.one_hot(targets, 3).float()
    rival = confusion_matrix(loss.spec, children=1)
    assert torch.equal(rival.phi[0], loss.spec.initial)
    rival.move(see(loss.statistics(logits, targets)[None]))
    loss.spec.check(rival.phi)
    right = math.exp(certainty) / (math.exp(certainty) + 2)
    matrix = loss.matrix(rival.phi[0])
    torch.testing.assert_close(matrix.diagonal(), torch.full((3,), right), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        matrix - matrix.diagonal().diag(), (1 - right) / 2 * (1 - torch.eye(3)), atol=1e-5, rtol=0
    )


def sensed(sensitivity: Tensor) -> Observation:
    children, parameters = sensitivity.shape[:2]
    return Observation(
        error=torch.zeros(children),
        statistics=torch.zeros(children, parameters, 1),
        sensitivity=sensitivity,
        progress=0.5,
    )


def test_the_confusion_rule_moves_offsets_alone_towards_the_class_that_is_missed() -> None:
    spec = AlignedLoss(3, groups=("weights", "offsets")).spec
    rule = confusion_rule(spec, children=2)
    missed = torch.zeros(2, 6, 2)
    missed[0, 3, 0] = missed[1, 5, 1] = 1.0  # the first child misses class 0, the second predicts class 2 too often
    missed[:, :3] = torch.rand(2, 3, 2, generator=generator(0))  # of other groups
    rule.move(sensed(missed))
    assert not rule.phi[:, :3].any()
    assert rule.phi[0, 3:].argmin() == 0
    assert rule.phi[1, 3:].argmax() == 2
    assert float(rule.phi.abs().max()) == pytest.approx(0.3)
    for _ in range(40):
        rule.move(sensed(missed))
        spec.check(rule.phi)


def test_a_rule_asks_for_what_it_reads() -> None:
    spec = AlignedLoss(3).spec
    assert wants(confusion_rule(spec, children=1), "sensitivity")
    assert not wants(fixed(spec, children=1), "sensitivity")
    assert wants(metric_gradient(spec, children=1), "gradient")
    assert not wants(metric_gradient(spec, children=1), "sensitivity")


def test_the_metric_gradient_moves_offsets_against_it_and_stays_where_it_is_not_known() -> None:
    spec = AlignedLoss(3, groups=("weights", "offsets")).spec
    rule, seen = metric_gradient(spec, children=2), sensed(torch.zeros(2, 6, 2))
    rule.move(seen)
    assert not rule.phi.any()
    gradient = torch.zeros(2, 6)
    gradient[0, 3:] = torch.tensor([0.2, -0.1, -0.1])
    rule.move(replace(seen, gradient=gradient))
    torch.testing.assert_close(rule.phi[0], torch.tensor([0, 0, 0, -0.3, 0.2121, 0.2121]), atol=1e-3, rtol=0)
    assert not rule.phi[1].any()
