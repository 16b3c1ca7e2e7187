"""Policies that are stacked do what they do apart: the same rewards, actions, Φ and weights, from the same streams."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lossalign.control import LearningController, Policy, Preset, default, paper
from lossalign.core import Observation, ParameterGroup, ParameterSpec, generator

Look = Callable[..., Observation]
POLICIES, CHILDREN, STEPS = 3, 5, 24
PRESETS = {
    "paper": paper(),
    "default": default(),
    "rank, antithetic, cooling": default(reward="rank", antithetic=True, cooling=1.0, inherit_every=3),
    "sign": default(reward="sign", horizon=1, replay_batch=7),
    "level, plain Eq. 3": default(reward="level", ratio_clip=None, sensitivity=False),
    "a part of the parameters": default(replay_parameters=2),
}


@pytest.fixture(name="preset", params=PRESETS, ids=str)
def preset_fixture(request: pytest.FixtureRequest) -> Preset:
    return PRESETS[request.param]


def apart(
    spec: ParameterSpec, preset: Preset, learn: bool = True, policies: int = POLICIES
) -> list[LearningController]:
    return [
        LearningController(
            spec, children=CHILDREN, preset=preset, statistics=2, learn=learn, generator=generator(seed, "control")
        )
        for seed in range(policies)
    ]


def stacked(spec: ParameterSpec, preset: Preset, learn: bool = True) -> LearningController:
    return LearningController.stacked(apart(spec, preset, learn))


def observations(look: Look, t: int) -> list[Observation]:
    """What each policy sees: a child far behind at some steps, and a metric that plateaus for the second policy."""
    seen = []
    for policy in range(POLICIES):
        one = look(100 * policy + t, None if t % 5 else torch.tensor([0.2, 0.21, 0.22, 0.23, 0.9]))
        plateau = torch.full((CHILDREN,), 0.9)
        seen.append(replace(one, error=plateau if policy == 1 and t < 14 else one.error, progress=(t + 1) / STEPS))
    return seen


def joined(seen: list[Observation]) -> Observation:
    together = {
        name: torch.cat([getattr(one, name) for one in seen]) for name in ("error", "statistics", "sensitivity")
    }
    return Observation(**together, progress=seen[0].progress)


def assert_alike(one: Tensor, others: list[Tensor]) -> None:
    torch.testing.assert_close(one, torch.cat(others), rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("learn", [True, False])
def test_a_stack_does_what_its_policies_do_apart(spec: ParameterSpec, look: Look, preset: Preset, learn: bool) -> None:
    together, singles = stacked(spec, preset, learn), apart(spec, preset, learn)
    for t in range(STEPS):
        seen = observations(look, t)
        logged, own = together.move(joined(seen)), [one.move(part) for one, part in zip(singles, seen, strict=True)]
        assert_alike(together.phi, [one.phi for one in singles])
        for name in logged:
            assert_alike(logged[name], [each[name] for each in own])
        assert (together.parents is None) == (singles[0].parents is None)
        if together.parents is not None:
            expected = [CHILDREN * number + one.parents for number, one in enumerate(singles)]  # type: ignore[operator]
            assert torch.equal(together.parents, torch.cat(expected))
    for policy, one in zip(together.policies, singles, strict=True):
        for mine, theirs in zip(policy.parameters(), one.policy.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_a_policy_whose_metric_plateaus_stays_while_the_others_learn(spec: ParameterSpec, look: Look) -> None:
    together = stacked(spec, default())
    for t in range(10):
        together.move(joined(observations(look, t)))
    before = [[weight.clone() for weight in policy.parameters()] for policy in together.policies]
    for t in range(10, 13):
        together.move(joined(observations(look, t)))
    moved = [
        any(not torch.equal(now, then) for now, then in zip(policy.parameters(), weights, strict=True))
        for policy, weights in zip(together.policies, before, strict=True)
    ]
    assert moved == [True, False, True]


def test_a_stack_resumes_bit_for_bit(spec: ParameterSpec, look: Look, preset: Preset) -> None:
    one, again = stacked(spec, preset), stacked(spec, preset)
    for t in range(12):
        one.move(joined(observations(look, t)))
    buffer = io.BytesIO()
    torch.save(one.state_dict(), buffer)
    buffer.seek(0)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    for t in range(12, STEPS):
        seen = joined(observations(look, t))
        first, second = one.move(seen), again.move(seen)
        assert torch.equal(one.phi, again.phi)
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_policy_of_a_stack_is_a_policy_of_its_own(spec: ParameterSpec, look: Look, tmp_path: Path) -> None:
    together = stacked(spec, default())
    for t in range(9):
        together.move(joined(observations(look, t)))
    states = torch.randn(POLICIES, CHILDREN, 4, together.policies[0].layout.size)
    log_pi = together._stack.log_probabilities(states)
    for policy, mine, own in zip(together.policies, states, log_pi, strict=True):
        loaded = Policy.load(policy.save(tmp_path / "policy.safetensors"))
        torch.testing.assert_close(torch.log_softmax(loaded(mine), -1), own)


def test_policies_that_differ_in_more_are_not_stacked(spec: ParameterSpec) -> None:
    with pytest.raises(AssertionError, match="they differ in more"):
        LearningController.stacked([*apart(spec, default(), policies=1), *apart(spec, paper(), policies=1)])


@pytest.mark.filterwarnings("ignore:for layers")
def test_a_stack_of_many_parameters_lives_where_the_children_train() -> None:
    group = ParameterGroup(name="g", labels=tuple(map(str, range(30))), initial=0.0, low=-1.0, high=1.0, beta=0.1)
    few, many = (
        LearningController.stacked(apart(ParameterSpec((group,)), default(), policies=number), device="meta")
        for number in (2, 3)
    )
    assert few.phi.device.type == "cpu"
    assert many.phi.device.type == "meta"
    assert {weight.device.type for policy in many.policies for weight in policy.parameters()} == {"meta"}
