"""A step is paid by the rewards of the next T steps, then waits to be replayed until newer ones push it out."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossalign.control.replay import Batch, Replay, Transition

CHILDREN, PARAMETERS = 3, 2


def transition(step: int) -> Transition:
    """A step whose every tensor tells which step and child it is of: 10 · step + child."""
    name = 10.0 * step + torch.arange(CHILDREN)
    return Transition(
        states=name[None, :, None, None].expand(1, -1, PARAMETERS, 4),
        actions=name.long()[None, :, None].expand(1, -1, PARAMETERS),
        log_probs=-name[None, :, None].expand(1, -1, PARAMETERS),
        weights=torch.full((1, PARAMETERS), float(step)),
        returns=torch.zeros(1, CHILDREN),
        valid=torch.ones(1, CHILDREN, dtype=torch.bool),
    )


def reward_at(step: int) -> Tensor:
    return torch.randn(CHILDREN, generator=torch.Generator().manual_seed(step))


def lived(steps: int, capacity: int = 100, horizon: int = 2) -> Replay:
    """Each step first brings the rewards of the past, then a new action."""
    replay = Replay(capacity, horizon)
    for step in range(steps):
        replay.add_reward(reward_at(step)[None])
        replay.add(transition(step))
    return replay


def names(batches: list[Batch]) -> list[int]:
    (batch,) = batches
    return sorted(batch.states[0, :, 0, 0].int().tolist())


@given(st.integers(0, 15), st.integers(1, 6), st.integers(1, 6))
def test_steps_mature_with_the_sum_of_their_next_rewards(steps: int, horizon: int, capacity: int) -> None:
    replay = lived(steps, capacity, horizon)
    ripe = range(max(0, steps - horizon))
    kept = list(ripe)[-capacity:]
    assert [int(t.weights[0, 0]) for t in replay.matured] == kept
    assert [int(t.weights[0, 0]) for t in replay.pending] == list(range(len(ripe), steps))
    for step, one in zip(kept, replay.matured, strict=True):
        expected = sum((reward_at(later) for later in range(step + 1, step + 1 + horizon)), torch.zeros(CHILDREN))
        torch.testing.assert_close(one.returns[0], expected)


def test_nothing_to_draw_while_nothing_has_matured() -> None:
    for steps in range(4):
        assert lived(steps, horizon=3).sample(8, [torch.Generator()]) == []
    assert lived(4, horizon=3).sample(8, [torch.Generator()])


@given(st.integers(1, 40), st.integers(0, 100))
def test_draws_are_without_replacement(size: int, seed: int) -> None:
    replay = lived(10)
    drawn = names(replay.sample(size, [torch.Generator().manual_seed(seed)]))
    everything = [10 * step + child for step in range(8) for child in range(CHILDREN)]
    assert len(drawn) == min(size, 24) == len(set(drawn))
    assert set(drawn) <= set(everything)


def test_what_is_drawn_belongs_together() -> None:
    (batch,) = lived(10).sample(7, [torch.Generator().manual_seed(0)])
    assert batch.states.shape == (1, 7, PARAMETERS, 4)
    for row in range(7):
        step, child = divmod(int(batch.states[0, row, 0, 0]), 10)
        assert (batch.actions[0, row] == 10 * step + child).all()
        assert (batch.log_probs[0, row] == -(10 * step + child)).all()
        assert (batch.weights[0, row] == step).all()
        torch.testing.assert_close(batch.returns[0, row], (reward_at(step + 1) + reward_at(step + 2))[child])


def test_the_draw_follows_the_generator() -> None:
    first, again, other = (lived(10).sample(6, [torch.Generator().manual_seed(seed)]) for seed in (0, 0, 1))
    assert names(first) == names(again) != names(other)


def test_forgetting_drops_the_pending_steps_of_those_children_only() -> None:
    replay = lived(5, horizon=2)
    replay.forget(torch.tensor([[False, True, False]]))
    for step in range(5, 8):
        replay.add_reward(reward_at(step)[None])
        replay.add(transition(step))
    everything = {10 * step + child for step in range(6) for child in range(CHILDREN)}
    assert set(names(replay.sample(100, [torch.Generator()]))) == everything - {31, 41}


def test_nothing_to_draw_when_everybody_is_forgotten() -> None:
    replay = lived(2, horizon=2)
    replay.forget(torch.ones(1, CHILDREN, dtype=torch.bool))
    replay.add_reward(reward_at(2)[None])
    replay.add_reward(reward_at(3)[None])
    assert len(replay.matured) == 2
    assert replay.sample(8, [torch.Generator()]) == []


@pytest.mark.parametrize("through_a_file", [False, True])
def test_a_memory_resumes_exactly_from_its_state(through_a_file: bool) -> None:
    first, second = lived(9, capacity=4, horizon=3), Replay(4, 3)
    state = first.state_dict()
    if through_a_file:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        buffer.seek(0)
        state = torch.load(buffer, weights_only=True)
    drawn = []
    for replay in (first, second):
        if replay is second:
            second.load_state_dict(state)
        replay.forget(torch.tensor([[True, False, False]]))
        for step in range(9, 12):
            replay.add_reward(reward_at(step)[None])
            replay.add(transition(step))
        drawn += replay.sample(6, [torch.Generator().manual_seed(0)])
    for name, expected in vars(drawn[0]).items():
        assert torch.equal(getattr(drawn[1], name), expected)
