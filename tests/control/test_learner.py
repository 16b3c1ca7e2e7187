"""The learner follows Eq. 3, stops where a replayed decision has moved far enough, and keeps exploring."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossalign.control import Policy
from lossalign.control.learner import Learner, adam_, reinforce_gain
from lossalign.control.policy import PolicyStack
from lossalign.control.replay import Batch
from lossalign.control.state import StateLayout
from lossalign.core import generator

LAYOUT = StateLayout(statistics=1, history=2)


def case(seed: int, decisions: int = 5, parameters: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Logits, actions, returns, weights and old log-probabilities, in double."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(decisions, parameters, 3, generator=g, dtype=torch.double)
    actions = torch.randint(3, (decisions, parameters), generator=g)
    returns = torch.randn(decisions, generator=g, dtype=torch.double)
    weights = torch.rand(decisions, parameters, generator=g, dtype=torch.double)
    old = -2 * torch.rand(decisions, parameters, generator=g, dtype=torch.double)
    return logits, actions, returns, weights / weights.sum(1, keepdim=True), old


def reinforce_loss(*args: Any, **options: Any) -> Tensor:
    """Eq. 3 as a loss: minus the mean gain of the decisions."""
    return -reinforce_gain(*args, **options).mean()


def plain_loss(
    logits: Tensor, actions: Tensor, returns: Tensor, weights: Tensor, old: Tensor | None, clip: float, bonus: float
) -> float:
    total = 0.0
    for b, advantage in enumerate(returns.tolist()):
        for m, action in enumerate(actions[b].tolist()):
            exps = [math.exp(z) for z in logits[b, m].tolist()]
            chances = [e / sum(exps) for e in exps]
            gain = math.log(chances[action]) * advantage
            if old is not None:
                ratio = chances[action] / math.exp(float(old[b, m]))
                gain = min(ratio * advantage, max(1 - clip, min(1 + clip, ratio)) * advantage)
            entropy = -sum(p * math.log(p) for p in chances)
            total -= float(weights[b, m]) * (gain + bonus * entropy)
    return total / len(returns)


def today(logits: Tensor, actions: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1).gather(-1, actions[..., None]).squeeze(-1)


@given(st.integers(0, 1000), st.booleans(), st.floats(0.05, 0.5), st.floats(0, 1))
def test_the_loss_equals_a_plain_loop(seed: int, with_ratio: bool, clip: float, bonus: float) -> None:
    logits, actions, returns, weights, old = case(seed)
    known = old if with_ratio else None
    loss = reinforce_loss(logits, actions, returns, weights, known, clip, bonus)
    assert float(loss) == pytest.approx(plain_loss(logits, actions, returns, weights, known, clip, bonus), abs=1e-9)


@given(st.integers(0, 1000))
def test_the_gradient_is_that_of_equation_3(seed: int) -> None:
    logits, actions, returns, weights, _ = case(seed)
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(reinforce_loss(logits, actions, returns, weights), logits)
    chances = torch.softmax(logits, -1).detach()
    taken = torch.nn.functional.one_hot(actions, 3)
    expected = -(taken - chances) * (returns[:, None] * weights)[..., None] / len(returns)
    torch.testing.assert_close(gradient, expected)
    old = today(logits, actions).detach()
    (at_ratio_one,) = torch.autograd.grad(reinforce_loss(logits, actions, returns, weights, old), logits)
    torch.testing.assert_close(at_ratio_one, expected)


@pytest.mark.parametrize(
    ("ratio", "advantage", "still_moves"),
    [
        (1.5, 1.0, False),
        (0.5, -1.0, False),
        (0.5, 1.0, True),
        (1.5, -1.0, True),
        (1.1, 1.0, True),
        (0.9, -1.0, True),
    ],
)
def test_clipping_stops_what_has_moved_far_the_rewarded_way(ratio: float, advantage: float, still_moves: bool) -> None:
    logits, action = torch.zeros(1, 1, 3, requires_grad=True), torch.tensor([[2]])
    old = torch.tensor([[math.log(1 / 3 / ratio)]])
    loss = reinforce_loss(logits, action, torch.tensor([advantage]), torch.ones(1, 1), old, clip=0.2)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert bool(gradient.any()) == still_moves
    if still_moves:
        assert torch.sign(-gradient[0, 0, 2]) == math.copysign(1, advantage)


def test_clipping_one_parameter_leaves_the_others() -> None:
    logits, actions, _, weights, _ = case(0, decisions=1, parameters=2)
    logits.requires_grad_()
    old = today(logits, actions).detach() - torch.tensor([[1.0, 0.0]])
    loss = reinforce_loss(logits, actions, torch.ones(1, dtype=torch.double), weights, old)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert not gradient[0, 0].any()
    assert gradient[0, 1].any()


def test_the_entropy_bonus_alone_leads_to_uniform_actions() -> None:
    logits, actions, returns, weights, _ = case(0)
    logits.requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        reinforce_loss(logits, actions, 0 * returns, weights, entropy_bonus=0.05).backward()
        optimizer.step()
    torch.testing.assert_close(torch.softmax(logits, -1), torch.full_like(logits, 1 / 3), atol=0.01, rtol=0)


def test_no_return_and_no_bonus_is_no_gradient() -> None:
    logits, actions, returns, weights, old = case(0)
    logits.requires_grad_()
    for known in (None, old):
        (gradient,) = torch.autograd.grad(reinforce_loss(logits, actions, 0 * returns, weights, known), logits)
        assert not gradient.any()


def learner(clip: float | None, seed: int = 0) -> Learner:
    stack = PolicyStack([Policy(LAYOUT, (4,), generator=generator(seed))])
    return Learner(stack, learning_rate=1e-2, updates=1, batch=8, clip=clip, entropy_bonus=0.1)


def batch() -> Batch:
    _, actions, returns, weights, old = case(0)
    states = torch.randn(5, 4, LAYOUT.size, generator=torch.Generator().manual_seed(0))
    return Batch(
        states=states[None],
        actions=actions[None],
        log_probs=old.float()[None],
        weights=weights.float()[None],
        returns=returns.float()[None],
        policies=torch.tensor([0]),
    )


@pytest.mark.parametrize("clip", [None, 0.2])
def test_an_update_is_one_step_of_adam_even_without_grad_mode(clip: float | None) -> None:
    one, by_hand, drawn = learner(clip), Policy(LAYOUT, (4,), generator=generator(0)), batch()
    with torch.no_grad():
        one.update(drawn)
    optimizer = torch.optim.Adam(by_hand.parameters(), lr=1e-2)
    old = None if clip is None else drawn.log_probs
    reinforce_loss(
        by_hand(drawn.states), drawn.actions, drawn.returns, drawn.weights, old, clip or 0.0, entropy_bonus=0.1
    ).backward()
    optimizer.step()
    for got, expected in zip(one.stack.policies[0].parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(got, expected)


def test_a_kept_state_does_not_change_when_either_learner_continues() -> None:
    first, second = learner(0.2), learner(0.2, seed=1)
    first.update(batch())
    state = first.state_dict()
    first.update(batch())
    second.load_state_dict(state)
    second.update(batch())
    third = learner(0.2, seed=2)
    third.load_state_dict(state)
    third.update(batch())
    for name, expected in first.stack.policies[0].state_dict().items():
        assert torch.equal(second.stack.policies[0].state_dict()[name], expected)
        assert torch.equal(third.stack.policies[0].state_dict()[name], expected)


def test_adam_is_torchs_bit_for_bit_and_leaves_policies_alone_that_do_not_learn() -> None:
    g = torch.Generator().manual_seed(0)
    weights = [torch.randn(3, 4, 5, generator=g), torch.randn(3, 4, generator=g)]
    plain = [[torch.nn.Parameter(weight[policy].clone()) for weight in weights] for policy in range(3)]
    optimizers = [torch.optim.Adam(own, lr=1e-2) for own in plain]
    averages, squares = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    updates = torch.zeros(3, dtype=torch.long)
    for number in range(40):
        learns = torch.tensor([True, number % 3 == 0, number > 30])
        grads = [torch.randn(weight.shape, generator=g) * 10.0 ** (number % 5 - 3) for weight in weights]
        adam_(weights, grads, averages, squares, updates, 1e-2, learns)
        for policy in learns.nonzero().flatten().tolist():
            for own, grad in zip(plain[policy], grads, strict=True):
                own.grad = grad[policy].clone()
            optimizers[policy].step()
        for policy in range(3):
            assert all(torch.equal(weight[policy], own) for weight, own in zip(weights, plain[policy], strict=True))
    assert updates.tolist() == [40, 14, 9]
