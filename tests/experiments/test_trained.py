"""Controllers of the trained methods, made by hand: who moves Φ, who learns, and who copies whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lossalign.control import default
from lossalign.core import Controller, Observation
from lossalign.experiments.methods import Setting, trained
from lossalign.losses import AlignedLoss
from lossalign.metrics import BalancedError

CHILDREN = 4


def setting(**changes: Any) -> Setting:
    given: dict[str, Any] = {
        "task": "toy",
        "method": "mine",
        "preset": default(inherit_every=2),
        "loss": AlignedLoss(3),
        "metric": BalancedError(),
        "counts": torch.tensor([30, 20, 10]),
        "counts_before": torch.tensor([30, 20, 10]),
        "seed": 0,
        "device": torch.device("cpu"),
        "steps": 10,
        "children": CHILDREN,
        "policy": "none",
        "pretrained": False,
        "freeze": False,
        "learned": lambda method: pytest.fail(f"nobody learned {method}"),
    }
    return Setting(**{**given, **changes})


def moved(controller: Controller, steps: int = 6) -> list[tuple[Tensor, Tensor | None]]:
    """Φ and the parents after each of some steps with random errors."""
    draw, seen = torch.Generator().manual_seed(0), []
    for step in range(steps):
        controller.move(
            Observation(
                error=torch.rand(CHILDREN, generator=draw),
                statistics=torch.rand(CHILDREN, 3, 1, generator=draw),
                sensitivity=torch.rand(CHILDREN, 3, 2, generator=draw),
                progress=(step + 1) / 10,
            )
        )
        seen.append((controller.phi.clone(), controller.parents))
    return seen


def weights(controller: Any) -> list[Tensor]:
    return [tensor.clone() for tensor in controller.policy.state_dict().values()]


@pytest.mark.parametrize(
    ("make", "learns", "inherits"),
    [
        (trained.learning, True, True),
        (lambda given: trained.learning(replace(given, policy="pretrained", freeze=True)), False, True),
        (trained.evolution, False, True),
        (trained.random_walk, False, False),
    ],
)
def test_who_learns_and_who_inherits(make: Any, learns: bool, inherits: bool) -> None:
    controller = make(setting())
    before = weights(controller)
    seen = moved(controller)
    assert (seen[-1][0] != 0).any()
    assert learns != all(torch.equal(a, b) for a, b in zip(before, weights(controller), strict=True))
    assert [parents is not None for _, parents in seen] == [inherits and step % 2 == 1 for step in range(6)]


def test_the_walk_of_a_policy_that_never_learns_is_that_of_its_seed() -> None:
    one, same, other = (moved(trained.random_walk(setting(seed=seed)))[-1][0] for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_auto_is_the_pretrained_policy_only_where_the_run_says_so_and_it_fits() -> None:
    pretrained = weights(trained.learning(setting(policy="pretrained")))
    for given, is_it in (
        (setting(policy="auto", pretrained=True), True),
        (setting(policy="auto"), False),
        (setting(policy="auto", pretrained=True, loss=AlignedLoss(3, groups=("weights",)), preset=WEIGHTS), False),
    ):
        own = weights(trained.learning(given))
        assert all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(own, pretrained, strict=True)) is is_it


WEIGHTS = default(groups=("weights",))


def test_fixed_stays_and_a_designed_group_follows_the_counts_from_its_share_of_the_run_on() -> None:
    assert all((phi == 0).all() for phi, _ in moved(trained.fixed(setting())))
    designed = trained.designed("offsets", lambda counts: counts / counts.sum() - 1 / 3, since=0.45)
    seen = [phi for phi, _ in moved(designed(setting()))]
    expected = torch.tensor([1 / 6, 0.0, -1 / 6]).expand(CHILDREN, -1)
    assert [bool((phi != 0).any()) for phi in seen] == [False, False, False, False, True, True]
    torch.testing.assert_close(seen[-1], expected)


def test_survivors_copy_weights_and_keep_phi_at_its_start() -> None:
    seen = moved(trained.survival(setting()))
    assert any(parents is not None for _, parents in seen)
    assert all((phi == 0).all() for phi, _ in seen)


def test_a_replayed_schedule_is_asked_for_only_when_it_trains() -> None:
    asked = []

    def learned(method: str) -> dict[str, Tensor]:
        asked.append(method)
        return {"offsets": torch.arange(30.0).view(10, 3) / 100}

    controller = trained.replayed("ala")(setting(learned=learned))
    assert asked == []
    torch.testing.assert_close(controller.phi[0], torch.tensor([0.0, 0.01, 0.02]))
    assert set(asked) == {"ala"}
    torch.testing.assert_close(moved(controller, 2)[-1][0][0], torch.tensor([0.06, 0.07, 0.08]))
