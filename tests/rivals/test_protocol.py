"""Every rival is a controller: Φ for each child, within its range, and it goes on exactly from its state."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch

from lossalign.core import Controller, Observation, ParameterSpec, generator
from lossalign.losses import AlignedLoss, ClassCorrelationLoss
from lossalign.rivals import (
    PopulationBasedController,
    Surviving,
    confusion_matrix,
    confusion_rule,
    designed,
    fixed,
    logit_adjustment,
    metric_gradient,
    proportional_rule,
    random_matrix,
)

CHILDREN = 3
ALIGNED, PRINTED = AlignedLoss(4, groups=("weights", "offsets")).spec, ClassCorrelationLoss(4).spec


def deferred(seed: int) -> Controller:
    return designed(ALIGNED, CHILDREN, "offsets", logit_adjustment(torch.tensor([50, 20, 10, 5])), since=0.7)


def surviving(controller: Controller, seed: int) -> Controller:
    return Surviving(controller, every=2, share=0.4, generator=generator(seed))


MAKERS: dict[str, tuple[ParameterSpec, Callable[[int], Controller]]] = {
    "fixed": (ALIGNED, lambda seed: fixed(ALIGNED, CHILDREN)),
    "deferred": (ALIGNED, deferred),
    "proportional rule": (ALIGNED, lambda seed: proportional_rule(ALIGNED, children=CHILDREN)),
    "confusion rule": (ALIGNED, lambda seed: confusion_rule(ALIGNED, children=CHILDREN)),
    "metric gradient": (ALIGNED, lambda seed: metric_gradient(ALIGNED, children=CHILDREN)),
    "confusion rule that inherits": (ALIGNED, lambda seed: surviving(confusion_rule(ALIGNED, CHILDREN), seed)),
    "random matrix": (PRINTED, lambda seed: random_matrix(PRINTED, children=CHILDREN, generator=generator(seed))),
    "population based": (
        ALIGNED,
        lambda seed: PopulationBasedController(
            ALIGNED, children=CHILDREN, groups=("offsets",), generator=generator(seed)
        ),
    ),
    "confusion matrix": (PRINTED, lambda seed: confusion_matrix(PRINTED, children=CHILDREN)),
}
RIVALS = pytest.mark.parametrize(("spec", "make"), list(MAKERS.values()), ids=list(MAKERS))


def look(t: int, spec: ParameterSpec) -> Observation:
    g = generator(t, "seen")
    return Observation(
        error=torch.rand(CHILDREN, generator=g),
        statistics=3 * torch.rand(CHILDREN, spec.size, 2, generator=g),
        sensitivity=torch.rand(CHILDREN, spec.size, 2, generator=g),
        progress=(t + 1) / 10,
        gradient=torch.randn(CHILDREN, spec.size, generator=g),
    )


@RIVALS
def test_phi_has_a_row_for_each_child_and_stays_in_range(
    spec: ParameterSpec, make: Callable[[int], Controller]
) -> None:
    rival, handed_out = make(0), []
    for t in range(10):
        assert rival.phi.shape == (CHILDREN, spec.size)
        assert rival.phi.dtype == torch.float32
        spec.check(rival.phi)
        handed_out.append((rival.phi, rival.phi.clone()))
        assert all(told.shape == (CHILDREN,) for told in rival.move(look(t, spec)).values())
    assert all(torch.equal(phi, copy) for phi, copy in handed_out), "Φ that was handed out is never written to"


@RIVALS
@pytest.mark.parametrize("at", [0, 4, 8])
def test_resumes_exactly_from_its_state(spec: ParameterSpec, make: Callable[[int], Controller], at: int) -> None:
    rival, again = make(0), make(1)
    for t in range(at):
        rival.move(look(t, spec))
    buffer = io.BytesIO()
    torch.save(rival.state_dict(), buffer)
    buffer.seek(0)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    for t in range(at, 10):
        assert torch.equal(again.phi, rival.phi)
        rival.move(look(t, spec))
        again.move(look(t, spec))
    assert torch.equal(again.phi, rival.phi)


@RIVALS
def test_a_kept_state_does_not_change(spec: ParameterSpec, make: Callable[[int], Controller]) -> None:
    rival = make(0)
    rival.move(look(0, spec))
    state, expected = rival.state_dict(), rival.phi.clone()
    for t in range(1, 10):
        rival.move(look(t, spec))
    rival.load_state_dict(state)
    assert torch.equal(rival.phi, expected)


@RIVALS
def test_the_global_stream_is_left_alone(spec: ParameterSpec, make: Callable[[int], Controller]) -> None:
    before = torch.get_rng_state()
    make(0).move(look(0, spec))
    assert torch.equal(torch.get_rng_state(), before)
