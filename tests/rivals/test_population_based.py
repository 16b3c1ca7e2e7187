"""Population-based training: the worst inherit from the best, and only they explore."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lossalign.core import Observation, ParameterSpec, generator
from lossalign.losses import AlignedLoss
from lossalign.rivals import PopulationBasedController

SPEC = AlignedLoss(4, groups=("weights", "offsets")).spec
OFFSETS, WEIGHTS = SPEC.select(["offsets"]), SPEC.select(["weights"])


def make(children: int = 8) -> PopulationBasedController:
    return PopulationBasedController(SPEC, children=children, groups=("offsets",), generator=generator(0))


def seen(errors: Tensor, progress: float) -> Observation:
    empty = torch.zeros(len(errors), SPEC.size, 2)
    return Observation(error=errors, statistics=empty, sensitivity=empty, progress=progress)


def test_children_start_apart_in_what_is_searched_alone() -> None:
    phi = make().phi
    assert len(phi[:, OFFSETS].unique(dim=0)) == 8
    assert not phi[:, WEIGHTS].any()


def test_the_worst_quarter_inherits_from_the_best_quarter_and_explores() -> None:
    rival = make()
    before, errors = rival.phi.clone(), torch.tensor([0.5, 0.1, 0.6, 0.3, 0.9, 0.2, 0.8, 0.4])
    rival.move(seen(errors, 0.1))
    assert rival.parents is not None
    heirs = (rival.parents != torch.arange(8)).nonzero().flatten().tolist()
    assert heirs == [4, 6]
    assert set(rival.parents[heirs].tolist()) <= {1, 5}
    moved = (rival.phi - before[rival.parents]).abs()
    assert moved[heirs].any()
    assert not moved[[0, 1, 2, 3, 5, 7]].any()
    assert float(moved.max()) <= 2 * 0.3 + 1e-6


def test_where_the_metric_stands_still_the_finer_one_says_who_is_worst() -> None:
    rival = PopulationBasedController(SPEC, children=8, groups=("offsets",), generator=generator(0), tie_breaker=0.01)
    tie_breaker = torch.tensor([0.5, 0.1, 0.6, 0.3, 0.9, 0.2, 0.8, 0.4])
    rival.move(replace(seen(torch.ones(8), 0.1), tie_breaker=tie_breaker))
    assert rival.parents is not None
    assert (rival.parents != torch.arange(8)).nonzero().flatten().tolist() == [4, 6]


def test_it_is_ready_twenty_times_a_run_and_not_at_its_end() -> None:
    rival, ready = make(), 0
    for t in range(1, 101):
        rival.move(seen(torch.rand(8, generator=generator(t)), t / 100))
        ready += rival.parents is not None
    assert ready == 19


def test_parameters_stay_in_range() -> None:
    rival = make()
    for t in range(1, 21):
        rival.move(seen(torch.rand(8, generator=generator(t)), t / 20))
        ParameterSpec.check(SPEC, rival.phi)


def test_without_exploring_only_weights_survive() -> None:
    rival = PopulationBasedController(
        SPEC, children=4, groups=("offsets",), generator=generator(0), times=4, share=0.5, far=0
    )
    rival.move(seen(torch.tensor([0.1, 0.2, 0.3, 0.4]), 0.25))
    assert rival.parents is not None
    assert rival.parents[:2].tolist() == [0, 1]
    assert set(rival.parents[2:].tolist()) <= {0, 1}
    assert not rival.phi.any()
