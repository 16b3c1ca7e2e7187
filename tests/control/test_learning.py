"""On a problem where raising one parameter lowers the metric, the policy learns to raise it."""

from __future__ import annotations

import torch
from torch import Tensor

from lossalign.control import LearningController, Preset, default, paper
from lossalign.core import Observation, ParameterGroup, ParameterSpec, generator

CHILDREN, STEPS = 10, 150
SPEC = ParameterSpec((ParameterGroup(name="g", labels=("helps", "idle"), initial=0.0, low=-1e4, high=1e4, beta=1.0),))
FASTER = {"policy_learning_rate": 1e-2, "replay_batch": 64, "zero_bias": 0.0}


def trained(preset: Preset, *, learn: bool, shared: float = 1.0) -> tuple[Tensor, Tensor]:
    """How far each parameter moves in a step, on average over the whole run and over its last third.

    ``shared`` is the size of noise that moves the metric of all children at once, as a learning rate does.
    """
    controller = LearningController(
        SPEC, children=CHILDREN, preset=preset, statistics=1, learn=learn, generator=generator(0)
    )
    noise, path = generator(0, "noise"), [controller.phi]
    for t in range(STEPS):
        drift = shared * torch.randn((), generator=noise)
        own = 0.2 * torch.randn(CHILDREN, generator=noise)
        controller.move(
            Observation(
                error=drift + own - controller.phi[:, 0],
                statistics=torch.tensor([[1.0], [0.0]]).expand(CHILDREN, 2, 1),
                sensitivity=torch.zeros(CHILDREN, 2, 2),
                progress=t / STEPS,
            )
        )
        path.append(controller.phi)
    late = STEPS * 2 // 3
    return (path[-1] - path[0]).mean(0) / STEPS, (path[-1] - path[late]).mean(0) / (STEPS - late)


def test_the_policy_learns_to_raise_what_helps() -> None:
    _, late = trained(default(**FASTER), learn=True)
    assert late[0] > 0.8


def test_it_learns_which_parameter_helps() -> None:
    _, late = trained(default(**{**FASTER, "horizon": 1}), learn=True)
    assert late[0] - late[1].abs() > 0.4


def test_as_printed_it_learns_where_nothing_moves_all_children_at_once() -> None:
    _, late = trained(paper(**FASTER), learn=True, shared=0.0)
    assert late[0] > 0.8


def test_a_policy_that_does_not_learn_walks_at_random() -> None:
    overall, late = trained(default(**FASTER), learn=False)
    assert overall[0].abs() < 0.3
    assert late[0].abs() < 0.3
