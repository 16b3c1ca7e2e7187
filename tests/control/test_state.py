"""The state is normalised: a policy sees neither the task's scale nor the order of children or classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossalign.control.state import (
    Space,
    StateLayout,
    StateMemory,
    features,
    relative_change,
    remember,
    share,
    standardise,
)
from lossalign.core import Observation, ParameterGroup, ParameterSpec

CHILDREN, STATISTICS, HISTORY = 3, 2, 4
GROUP_OF = torch.tensor([0, 0, 0, 0, 1, 2, 2])
GROUPS = (slice(0, 4), slice(4, 5), slice(5, 7))
LAYOUT = StateLayout(statistics=STATISTICS, history=HISTORY)


def group(name: str, size: int, low: float, high: float) -> ParameterGroup:
    labels = tuple(f"{name}{i}" for i in range(size))
    return ParameterGroup(name=name, labels=labels, initial=(low + high) / 2, low=low, high=high, beta=(high - low) / 9)


SPEC = ParameterSpec((group("a", 4, -3.0, 3.0), group("b", 1, 0.0, 1.0), group("c", 2, 1.0, 5.0)))
SPACE = Space.of(SPEC)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) + 0.1


def walk(seed: int, steps: int = 6) -> list[Tensor]:
    """Statistics of several steps, each [n, P, S]."""
    return list(draw(seed, steps, CHILDREN, SPEC.size, STATISTICS))


def memory_of(statistics: list[Tensor], groups: Sequence[slice] = GROUPS) -> StateMemory:
    memory = None
    for one in statistics:
        memory = remember(memory, one, groups, HISTORY)
    assert memory is not None
    return memory


def state_of(statistics: list[Tensor], sensitivity: Tensor, phi: Tensor, layout: StateLayout = LAYOUT) -> Tensor:
    seen = Observation(error=torch.zeros(len(phi)), statistics=statistics[-1], sensitivity=sensitivity, progress=0.25)
    return features(layout, memory_of(statistics), seen, phi, SPACE)


def anywhere(seed: int) -> Tensor:
    share_of_range = (draw(seed, CHILDREN, SPEC.size) - 0.1).clamp(0, 1)
    return SPEC.low + share_of_range * (SPEC.high - SPEC.low)


def test_the_space_knows_where_its_groups_lie() -> None:
    assert SPACE.groups == GROUPS


@given(st.integers(1, 4), st.integers(1, 12), st.booleans())
def test_the_layout_counts_the_features(statistics: int, history: int, sensitivity: bool) -> None:
    layout = StateLayout(statistics=statistics, history=history, sensitivity=sensitivity)
    memory = remember(None, draw(0, 2, 7, statistics), GROUPS, history)
    seen = Observation(
        error=torch.zeros(2), statistics=draw(0, 2, 7, statistics), sensitivity=draw(1, 2, 7, 2), progress=0.5
    )
    state = features(layout, memory, seen, SPEC.initial.expand(2, -1), SPACE)
    assert state.shape == (2, 7, layout.size)
    assert layout.size == statistics * history + statistics + 1 + 1 + (2 if sensitivity else 0)


@given(st.integers(0, 1000), st.floats(0.1, 100), st.floats(-10, 10))
def test_statistics_are_standardised_within_their_group(seed: int, scale: float, shift: float) -> None:
    values, average = draw(seed, CHILDREN, 7, STATISTICS).double(), draw(seed + 1, CHILDREN, 7, STATISTICS).double()
    result = standardise(scale * values + shift, GROUPS, average)
    expected = torch.zeros(CHILDREN, STATISTICS, dtype=torch.float64)
    for member in (GROUP_OF == 0, GROUP_OF == 2):
        part = result[:, member]
        torch.testing.assert_close(part.mean(1), expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(part.std(1, correction=0), expected + 1, atol=1e-3, rtol=0)


def test_groups_do_not_influence_each_other() -> None:
    values, average = draw(0, CHILDREN, 7, STATISTICS), draw(1, CHILDREN, 7, STATISTICS)
    changed = values.clone()
    changed[:, GROUP_OF == 0] *= 100
    before, after = standardise(values, GROUPS, average), standardise(changed, GROUPS, average)
    assert torch.equal(before[:, GROUP_OF != 0], after[:, GROUP_OF != 0])


def test_a_group_of_one_is_compared_with_its_own_average() -> None:
    values, average = torch.tensor([[[3.0]], [[1.0]], [[9.0]]]), torch.full((3, 1, 1), 2.0)
    assert standardise(values, [slice(0, 1)], average).flatten().tolist() == [0.5, -0.5, 3.0]


def test_equal_statistics_standardise_to_zero() -> None:
    equal = torch.full((2, 7, 1), 4.0)
    assert not standardise(equal, GROUPS, equal).any()


def test_relative_change() -> None:
    values, average = torch.tensor([3.0, 1.0, -1.0, 50.0, -50.0, 0.0]), torch.tensor([2.0, 2.0, -2.0, 1.0, 1.0, 0.0])
    assert relative_change(values, average).tolist() == [0.5, -0.5, 0.5, 3.0, -3.0, 0.0]


def test_the_first_step_fills_the_history() -> None:
    [statistics] = walk(0, steps=1)
    memory = memory_of([statistics])
    expected = standardise(statistics, GROUPS, statistics)
    assert memory.history.shape == (CHILDREN, 7, HISTORY, STATISTICS)
    for step in range(HISTORY):
        assert torch.equal(memory.history[:, :, step], expected)
    assert not memory.change.any()


def test_the_history_is_newest_first_and_as_long_as_asked() -> None:
    statistics, average = walk(0), walk(0)[0]
    expected = []
    for one in statistics:
        expected.append(standardise(one, GROUPS, average))
        change = relative_change(one, average)
        average = 0.9 * average + 0.1 * one
    memory = memory_of(statistics)
    torch.testing.assert_close(memory.history, torch.stack(expected[::-1][:HISTORY], 2))
    torch.testing.assert_close(memory.change, change)
    torch.testing.assert_close(memory.average, average)


@given(st.integers(0, 1000))
def test_shares_sum_to_zero_over_a_group(seed: int) -> None:
    result = share(draw(seed, CHILDREN, 7, 2), GROUPS)
    for member in (GROUP_OF == 0, GROUP_OF == 1, GROUP_OF == 2):
        torch.testing.assert_close(result[:, member].sum(1), torch.zeros(CHILDREN, 2), atol=1e-5, rtol=0)


def test_shares_equal_a_plain_loop() -> None:
    sensitivity = draw(3, CHILDREN, 7, 2) - 0.3
    result = share(sensitivity, GROUPS)
    gain = sensitivity.clamp(min=0).tolist()
    for child in range(CHILDREN):
        for p, own in enumerate(GROUP_OF.tolist()):
            members = [q for q, other in enumerate(GROUP_OF.tolist()) if other == own]
            for side in range(2):
                total = sum(gain[child][q][side] for q in members)
                expected = len(members) * gain[child][p][side] / total - 1 if total else 0.0
                assert float(result[child, p, side]) == pytest.approx(expected, abs=1e-5)


def test_nothing_to_gain_is_zero() -> None:
    assert not share(torch.zeros(2, 7, 2), GROUPS).any()
    assert not share(torch.full((2, 7, 2), -1.0), GROUPS).any()


def test_features_come_in_the_documented_order() -> None:
    statistics, sensitivity, phi = walk(0), draw(1, CHILDREN, 7, 2), anywhere(2)
    state, memory = state_of(statistics, sensitivity, phi), memory_of(statistics)
    assert torch.equal(state[..., : HISTORY * STATISTICS], memory.history.flatten(2))
    assert torch.equal(state[..., HISTORY * STATISTICS :][..., :STATISTICS], memory.change)
    torch.testing.assert_close(state[..., -4], (phi - SPEC.low) / (SPEC.high - SPEC.low) * 2 - 1)
    assert (state[..., -3] == 0.25).all()
    assert torch.equal(state[..., -2:], share(sensitivity, GROUPS))
    blind = StateLayout(statistics=STATISTICS, history=HISTORY, sensitivity=False)
    assert torch.equal(state_of(statistics, sensitivity, phi, blind), state[..., :-2])


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_features_do_not_see_the_scale_of_the_task(scale: float, gain: float) -> None:
    statistics, sensitivity, phi = walk(0), draw(1, CHILDREN, 7, 2), anywhere(2)
    scaled = state_of([scale * one for one in statistics], gain * sensitivity, phi)
    torch.testing.assert_close(scaled, state_of(statistics, sensitivity, phi), atol=1e-4, rtol=1e-4)


@given(st.permutations(range(CHILDREN)))
def test_children_may_be_permuted(order: Any) -> None:
    statistics, sensitivity, phi = walk(0), draw(1, CHILDREN, 7, 2), anywhere(2)
    permuted = state_of([one[order] for one in statistics], sensitivity[order], phi[order])
    torch.testing.assert_close(permuted, state_of(statistics, sensitivity, phi)[order])


@given(st.permutations(range(4)), st.permutations([5, 6]))
def test_parameters_of_a_group_may_be_permuted(first: Any, last: Any) -> None:
    order = [*first, 4, *last]
    statistics, sensitivity, phi = walk(0), draw(1, CHILDREN, 7, 2), anywhere(2)
    permuted = state_of([one[:, order] for one in statistics], sensitivity[:, order], phi[:, order])
    torch.testing.assert_close(permuted, state_of(statistics, sensitivity, phi)[:, order])
