"""Who moves Φ of one model: the names by which policies know statistics, and what crosses devices and ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lossalign as la
from lossalign.core import Observation, generator
from lossalign.losses.registry import LOSSES, LossSettings, make_loss
from lossalign.training import statistics_name
from lossalign.training.driver import Driver, make_controller, on_cpu

STATISTICS = {
    "aligned": "AlignedLoss",
    "class-correlation": "ClassCorrelationLoss",
    "log-class-correlation": "ClassCorrelationLoss",
    "ldam": "LDAMLoss",
    "l-softmax": "LSoftmaxLoss",
    "ranking": "_RankedLoss",
    "pairwise": "_RankedLoss",
    "smooth-ap": "_RankedLoss",
    "focal-weighting": "FocalWeightingLoss",
    "sharp-focal": "FocalWeightingLoss",
    "distance-mixture": "DistanceMixtureLoss",
    "scale-matched": "DistanceMixtureLoss",
    "paper-mixture": "DistanceMixtureLoss",
    "light-mixture": "DistanceMixtureLoss",
    "triplet": "Rival",
    "margin": "Rival",
    "contrastive": "Rival",
    "multi-similarity": "Rival",
}


def test_policies_know_the_statistics_of_a_loss_by_a_name_that_stays() -> None:
    settings = LossSettings(counts=torch.tensor([3, 2, 1]))
    assert {name: statistics_name(make_loss(name, settings)) for name in LOSSES} == STATISTICS


@pytest.mark.parametrize("name", LOSSES)
def test_that_name_is_written_down_so_that_renaming_the_class_keeps_it(name: str) -> None:
    loss = make_loss(name, LossSettings(counts=torch.tensor([3, 2, 1])))
    owner = next(kind for kind in type(loss).__mro__ if "statistics" in vars(kind))
    assert vars(owner)["statistics_name"] == STATISTICS[name]


def test_the_pretrained_policy_was_learned_on_a_name_that_a_loss_has() -> None:
    about = la.Policy.pretrained().about
    assert about is not None
    assert about.loss == statistics_name(la.AlignedLoss(3))


def driver(learn: bool | None = None) -> Driver:
    loss = la.AlignedLoss(3)
    made = make_controller("fresh", loss, la.default(), learn=learn, generator=generator(0, "x"), provenance={})
    return Driver(made, loss.spec)


def observation(error: float) -> Observation:
    return Observation(
        error=torch.tensor([error]),
        statistics=torch.rand(1, 3, 1, generator=torch.Generator().manual_seed(0)),
        sensitivity=torch.zeros(1, 3, 2),
        progress=0.5,
    )


def test_there_is_no_reward_at_the_first_move() -> None:
    made = driver()
    assert made.move(observation(0.5)) is None
    assert isinstance(made.move(observation(0.4)), float)


def test_all_ranks_must_agree_on_phi_and_on_the_weights_of_the_policy() -> None:
    one, other = driver(), driver()
    assert all(torch.equal(a, b) for a, b in zip(one.held(), other.held(), strict=True))
    with torch.no_grad():
        next(other.policy.parameters()).add_(1)
    assert not all(torch.equal(a, b) for a, b in zip(one.held(), other.held(), strict=True))


def test_a_state_on_the_cpu_is_a_copy() -> None:
    state: dict[str, list[Tensor]] = {"a": [torch.zeros(2)]}
    on_cpu(state)["a"][0].add_(1)
    assert state["a"][0].tolist() == [0, 0]
