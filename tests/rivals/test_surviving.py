"""Inheritance beside any rule: when, who from whom, and what the rule then sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lossalign.core import InputError, Observation, choose_parents, generator, wants
from lossalign.losses import AlignedLoss
from lossalign.rivals import ReplayedController, Surviving, confusion_rule, fixed, random_phi

SPEC = AlignedLoss(4).spec
CHILDREN = 8


def look(t: int) -> Observation:
    g = generator(t, "seen")
    return Observation(
        error=torch.rand(CHILDREN, generator=g),
        statistics=torch.rand(CHILDREN, SPEC.size, 1, generator=g),
        sensitivity=torch.rand(CHILDREN, SPEC.size, 2, generator=g),
        progress=(t + 1) / 20,
        tie_breaker=torch.rand(CHILDREN, generator=g),
    )


def survivors(seen: Observation, seed: int = 0) -> Tensor:
    return choose_parents(seen.error, 0.25, generator(seed))


def test_children_inherit_every_few_steps_and_then_only() -> None:
    rival, due = Surviving(fixed(SPEC, CHILDREN), every=3, share=0.25, generator=generator(0)), []
    for t in range(9):
        rival.move(look(t))
        due.append(rival.parents is not None)
    assert due == [False, False, True] * 3


def test_weights_and_phi_come_from_the_same_parent() -> None:
    rule = random_phi(SPEC, CHILDREN, generator(1))
    before = rule.phi.clone()
    rival = Surviving(rule, every=1, share=0.25, generator=generator(0))
    rival.move(look(0))
    parents = survivors(look(0))
    assert rival.parents is not None
    assert torch.equal(rival.parents, parents)
    assert not torch.equal(parents, torch.arange(CHILDREN))
    assert torch.equal(rival.phi, before[parents])


def test_the_rule_moves_with_what_was_seen_of_the_parent() -> None:
    plain = confusion_rule(SPEC, CHILDREN)
    rival = Surviving(confusion_rule(SPEC, CHILDREN), every=2, share=0.25, generator=generator(0))
    for t in range(2):
        rival.move(look(t))
    plain.move(look(0))
    parents = survivors(look(1))
    plain.inherit(parents)
    plain.move(look(1).of(parents))
    assert torch.equal(rival.phi, plain.phi)


def test_between_comparisons_nothing_but_the_rule_acts() -> None:
    plain = confusion_rule(SPEC, CHILDREN)
    rival = Surviving(confusion_rule(SPEC, CHILDREN), every=100, share=0.25, generator=generator(0))
    for t in range(5):
        plain.move(look(t))
        rival.move(look(t))
    assert torch.equal(rival.phi, plain.phi)


def test_where_the_metric_plateaus_the_tie_breaker_says_who_is_worst() -> None:
    seen = replace(look(0), error=torch.zeros(CHILDREN))
    rival = Surviving(fixed(SPEC, CHILDREN), every=1, share=0.25, generator=generator(0), tie_breaker=0.01)
    rival.move(seen)
    assert seen.tie_breaker is not None
    assert rival.parents is not None
    heirs = (rival.parents != torch.arange(CHILDREN)).nonzero().flatten()
    assert set(heirs.tolist()) == set(seen.tie_breaker.argsort()[-2:].tolist())


def test_it_asks_for_what_its_controller_reads() -> None:
    kept = {"every": 1, "share": 0.25, "generator": generator(0)}
    assert wants(Surviving(confusion_rule(SPEC, CHILDREN), **kept), "sensitivity")  # type: ignore[arg-type]
    assert not wants(Surviving(fixed(SPEC, CHILDREN), **kept), "sensitivity")  # type: ignore[arg-type]


def test_a_controller_that_cannot_pass_phi_on_is_refused() -> None:
    replayed = ReplayedController(SPEC, children=CHILDREN, schedule=dict)
    with pytest.raises(InputError, match="ReplayedController has no method inherit"):
        Surviving(replayed, every=1, share=0.25, generator=generator(0))
