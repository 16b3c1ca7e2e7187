"""The residual on a rule: an untrained policy acts like the rule, and what it learns is added to the rule's logits."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lossalign.control import LearningController, Policy, default
from lossalign.control.learner import Learner
from lossalign.control.policy import PolicyStack, policy_logits
from lossalign.control.replay import Batch
from lossalign.control.rules import rule_move
from lossalign.control.state import StateLayout
from lossalign.core import InputError, Observation, generator, wants
from lossalign.losses import AlignedLoss

SPEC = AlignedLoss(4, groups=("weights", "offsets")).spec
OFFSETS = SPEC.select(["offsets"])
CHILDREN = 200


def look(t: int, children: int = CHILDREN) -> Observation:
    g = generator(t, "seen")
    return Observation(
        error=torch.rand(children, generator=g),
        statistics=torch.rand(children, SPEC.size, 1, generator=g),
        sensitivity=torch.rand(children, SPEC.size, 2, generator=g),
        progress=(t + 1) / 20,
        gradient=torch.randn(children, SPEC.size, generator=g),
    )


def make(children: int = CHILDREN, seed: int = 0, learn: bool = False, **options: Any) -> LearningController:
    options = {"prior": "confusion-rule", "inherit_every": 0, "reset": None, **options}
    groups = options.pop("groups", ("weights", "offsets"))
    policy = options.pop("policy", None)
    return LearningController(
        SPEC,
        children=children,
        preset=default(**options),
        groups=groups,
        statistics=1,
        learn=learn,
        policy=policy,
        generator=generator(seed),
    )


def moves_of(controller: LearningController, seen: Observation) -> Tensor:
    before = controller.phi.clone()
    controller.move(seen)
    return controller.phi - before


PRIORS = pytest.mark.parametrize("prior", ["confusion-rule", "metric-gradient"])


@PRIORS
def test_a_strong_prior_is_the_rule(prior: Any) -> None:
    move = moves_of(make(prior=prior, prior_strength=100.0), look(0))[:, OFFSETS]
    rule = rule_move(prior, look(0), OFFSETS, SPEC.beta[OFFSETS])
    sure = rule.abs() > 0.2 * 0.3
    torch.testing.assert_close(move[sure], 0.3 * rule[sure].sign())


@PRIORS
def test_an_untrained_policy_acts_like_the_rule_on_offsets_alone(prior: Any) -> None:
    move, seen = moves_of(make(prior=prior), look(0)), look(0)
    rule = rule_move(prior, seen, OFFSETS, SPEC.beta[OFFSETS])
    pairs = torch.stack([move[:, OFFSETS].flatten(), rule.flatten()])
    assert torch.corrcoef(pairs)[0, 1] > 0.7
    others = torch.stack([move[:, :4].flatten(), rule.flatten()])
    assert torch.corrcoef(others)[0, 1].abs() < 0.15


def test_without_one_it_does_not() -> None:
    move, rule = (
        moves_of(make(prior="none"), look(0)),
        rule_move("confusion-rule", look(0), OFFSETS, SPEC.beta[OFFSETS]),
    )
    assert torch.corrcoef(torch.stack([move[:, OFFSETS].flatten(), rule.flatten()]))[0, 1].abs() < 0.2


def test_expected_moves_are_the_mean_of_what_would_be_drawn() -> None:
    policy = make().policy
    seen = look(0).of(torch.zeros(4000, dtype=torch.long))
    drawn = moves_of(make(4000, policy=policy, prior_strength=1.0), seen).mean(0)
    expected = moves_of(make(4000, policy=policy, prior_strength=1.0, expected_moves=True), seen)
    torch.testing.assert_close(expected[0], drawn, atol=0.015, rtol=0)
    assert (expected == expected[0]).all()


def test_expected_moves_do_not_depend_on_the_random_stream() -> None:
    policy = make().policy
    one, other = (make(seed=seed, policy=policy, expected_moves=True) for seed in (1, 2))
    for t in range(3):
        one.move(look(t))
        other.move(look(t))
    assert torch.equal(one.phi, other.phi)


def test_the_policy_that_learns_has_the_prior_that_acts() -> None:
    (policy,) = make(20).policies
    states = torch.randn(64, policy.layout.size, generator=generator(1))
    chances = PolicyStack([policy]).log_probabilities(states[None, None])[0, 0]
    torch.testing.assert_close(chances, policy(states).log_softmax(-1))
    weights = [weight.detach()[None] for weight in policy.parameters()]
    torch.testing.assert_close(policy_logits(weights, states[None], prior=True)[0], policy(states))


@pytest.mark.parametrize(("logit", "moves"), [(30.0, False), (0.0, True)])
def test_what_the_rule_makes_certain_teaches_nothing(logit: float, moves: bool) -> None:
    """log π of an action that the prior has made certain has no gradient left."""
    (policy,) = make(20).policies
    states = torch.randn(1, 8, 4, policy.layout.size, generator=generator(1))
    states[..., -1] = logit
    before = [weight.detach().clone() for weight in policy.parameters()]
    learner = Learner(PolicyStack([policy]), learning_rate=0.01, updates=1, batch=8, clip=None, entropy_bonus=0.0)
    learner.update(
        Batch(
            policies=torch.tensor([0]),
            states=states,
            actions=torch.full((1, 8, 4), 2),
            log_probs=torch.zeros(1, 8, 4),
            weights=torch.full((1, 8, 4), 0.25),
            returns=torch.ones(1, 8),
        )
    )
    moved = max(
        float((weight.detach() - then).abs().max()) for weight, then in zip(policy.parameters(), before, strict=True)
    )
    assert (moved > 1e-3) is moves


def test_without_weights_only_the_rule_is_left() -> None:
    policy = Policy(make().policy.layout, generator=generator(3))
    for weight in policy.parameters():
        torch.nn.init.zeros_(weight)
    states = torch.randn(64, policy.layout.size)
    torch.testing.assert_close(policy(states), states[:, -1:] * torch.tensor([-1.0, 0.0, 1.0]))


def test_it_learns_away_from_a_rule_that_is_wrong() -> None:
    """The error is what the rule does harm by: the sum of moves that follow it."""
    controller = make(8, learn=True, horizon=1, policy_learning_rate=0.02, groups=("offsets",))
    error = torch.zeros(8)
    agreed = []
    for t in range(60):
        seen = replace(look(t, 8), error=error.clone(), progress=0.5)
        before = controller.phi.clone()
        controller.move(seen)
        follows = (
            (controller.phi - before)[:, OFFSETS] * rule_move("confusion-rule", seen, OFFSETS, torch.ones(4))
        ).sum(1)
        error = error + follows
        agreed.append(float(follows.mean()))
    assert sum(agreed[-10:]) < sum(agreed[:10])


def test_a_stack_does_what_its_policies_do_apart() -> None:
    apart = [make(5, seed) for seed in range(3)]
    together = LearningController.stacked([make(5, seed) for seed in range(3)])
    for t in range(4):
        seen = look(t, 15)
        together.move(seen)
        for number, one in enumerate(apart):
            one.move(seen.of(slice(5 * number, 5 * number + 5)))
    torch.testing.assert_close(together.phi, torch.cat([one.phi for one in apart]))


@PRIORS
def test_it_resumes_exactly(prior: Any) -> None:
    one, again = make(6, learn=True, prior=prior), make(6, seed=5, learn=True, prior=prior)
    for t in range(8):
        one.move(look(t, 6))
    buffer = io.BytesIO()
    torch.save(one.state_dict(), buffer)
    buffer.seek(0)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    for t in range(8, 14):
        one.move(look(t, 6))
        again.move(look(t, 6))
    assert torch.equal(one.phi, again.phi)


def test_it_asks_for_what_its_rule_reads() -> None:
    assert wants(make(prior="metric-gradient"), "gradient")
    assert wants(make(prior="confusion-rule"), "sensitivity")
    assert not wants(make(prior="none"), "sensitivity")
    assert not wants(make(prior="none"), "gradient")


def test_where_the_rule_knows_nothing_only_the_policy_acts() -> None:
    blind = replace(look(0), gradient=None)
    policy = make().policy
    one = moves_of(make(prior="metric-gradient", policy=policy, expected_moves=True), blind)
    two = moves_of(make(prior="confusion-rule", prior_strength=0.0, policy=policy, expected_moves=True), blind)
    torch.testing.assert_close(one, two)


def test_a_policy_keeps_its_prior_and_does_not_fit_where_there_is_none(tmp_path: Path) -> None:
    policy = make().policy
    loaded = Policy.load(policy.save(tmp_path / "policy.safetensors"))
    assert loaded.layout == StateLayout(statistics=1, prior=True)
    states = torch.randn(3, loaded.layout.size)
    torch.testing.assert_close(loaded(states), policy(states))
    with pytest.raises(InputError, match="prior=True"):
        make(prior="none", policy=loaded)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="it moves the group offsets"):
        make(groups=("weights",))
    with pytest.raises(InputError, match="a policy learns from the actions that it draws"):
        make(learn=True, expected_moves=True)
    with pytest.raises(InputError, match="prior_strength=-1"):
        default(prior_strength=-1.0)
