"""Losses designed by hand: their formulas, and when they switch on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lossalign.core import InputError, Observation, ParameterSpec
from lossalign.losses import AlignedLoss
from lossalign.rivals import cost_weights, designed, effective_number, fixed, inverse_frequency, logit_adjustment

COUNTS = st.lists(st.integers(1, 100_000), min_size=2, max_size=12)
VALUES = torch.tensor([1.0, -1.0, 0.5])


@pytest.fixture
def spec() -> ParameterSpec:
    return AlignedLoss(3, groups=("weights", "offsets")).spec


def at(progress: float) -> Observation:
    return Observation(
        error=torch.rand(2), statistics=torch.rand(2, 6, 2), sensitivity=torch.rand(2, 6, 2), progress=progress
    )


def centred(values: list[float]) -> list[float]:
    return [value - sum(values) / len(values) for value in values]


@given(COUNTS)
def test_inverse_frequency(counts: list[int]) -> None:
    expected = centred([-math.log(n / sum(counts)) for n in counts])
    assert inverse_frequency(torch.tensor(counts)).tolist() == pytest.approx(expected, abs=1e-5)


@given(COUNTS, st.sampled_from([0.9, 0.99, 0.9999]))
def test_effective_number(counts: list[int], beta: float) -> None:
    expected = centred([-math.log((1 - beta**n) / (1 - beta)) for n in counts])
    assert effective_number(torch.tensor(counts), beta).tolist() == pytest.approx(expected, abs=1e-5)


@given(COUNTS, st.floats(0, 3))
def test_logit_adjustment(counts: list[int], tau: float) -> None:
    expected = centred([tau * math.log(n / sum(counts)) for n in counts])
    assert logit_adjustment(torch.tensor(counts), tau).tolist() == pytest.approx(expected, abs=1e-4)


@given(COUNTS)
def test_all_are_centred_and_favour_rare_classes(counts: list[int]) -> None:
    given_ = torch.tensor(counts)
    weights = [inverse_frequency(given_), effective_number(given_), -logit_adjustment(given_)]
    for values in weights:
        assert float(values.sum()) == pytest.approx(0, abs=1e-4)
        assert (values[given_.argsort()].diff() <= 1e-5).all()


def test_effective_numbers_lie_between_no_weights_and_inverse_frequency() -> None:
    counts = torch.tensor([5000, 50])
    assert effective_number(counts, beta=1e-9).abs().max() < 1e-6
    torch.testing.assert_close(effective_number(counts, beta=1 - 1e-9), inverse_frequency(counts), atol=1e-4, rtol=0)


def test_fixed_stays(spec: ParameterSpec) -> None:
    rival = fixed(spec, children=2)
    for progress in (0.1, 0.5, 1.0):
        assert torch.equal(rival.phi, spec.initial.expand(2, -1))
        rival.move(at(progress))
    assert torch.equal(rival.phi, spec.initial.expand(2, -1))


@pytest.mark.parametrize("steps", [5, 10, 60, 85])
@pytest.mark.parametrize("since", [0.2, 0.6, 0.8])
def test_a_deferred_loss_switches_on_exactly_at_its_fraction(spec: ParameterSpec, since: float, steps: int) -> None:
    rival = designed(spec, 2, "offsets", VALUES, since=since)
    first = None
    for step in range(1, steps + 1):
        if first is None and rival.phi.any():
            first = step
        expected = torch.cat([torch.zeros(3), VALUES if first else torch.zeros(3)])
        assert torch.equal(rival.phi, expected.expand(2, -1))
        rival.move(at(step / steps))
    assert first == round(since * steps) + 1


def test_a_designed_loss_is_on_from_the_start_and_touches_one_group(spec: ParameterSpec) -> None:
    rival = designed(spec, 2, "weights", VALUES)
    assert torch.equal(rival.phi, torch.cat([VALUES, torch.zeros(3)]).expand(2, -1))


def test_values_out_of_range_are_clipped(spec: ParameterSpec) -> None:
    assert designed(spec, 1, "weights", 10 * VALUES).phi[0, :3].tolist() == [3.0, -3.0, 3.0]


def test_groups_that_the_loss_lacks_are_refused(spec: ParameterSpec) -> None:
    with pytest.raises(InputError, match=r"groups=\['pairs'\]: choose from \['weights', 'offsets'\]"):
        designed(spec, 2, "pairs", VALUES)


def test_classes_weigh_what_their_mistakes_cost() -> None:
    u = cost_weights(torch.tensor([[0.0, 1.0, 5.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]))
    torch.testing.assert_close((u[0] - u[1]).exp(), torch.tensor(3.0))
    assert abs(float(u.sum())) < 1e-6
