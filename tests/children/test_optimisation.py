"""One optimisation for all: learning rate, SGD, and the average of the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lossalign.children import Optimisation, average_, average_decay, learning_rate
from lossalign.children.optimisation import sgd_
from lossalign.core import InputError


def rates(optimisation: Optimisation) -> list[float]:
    return [learning_rate(optimisation, iteration) for iteration in range(optimisation.iterations)]


def torch_rates(scheduler: type, iterations: int, **options: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    schedule, seen = scheduler(optimizer, **options), []
    for _ in range(iterations):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def test_cosine_is_torchs() -> None:
    expected = torch_rates(torch.optim.lr_scheduler.CosineAnnealingLR, 30, T_max=30)
    assert rates(Optimisation(iterations=30, learning_rate=0.4)) == pytest.approx(expected)


def test_steps_are_torchs() -> None:
    expected = torch_rates(torch.optim.lr_scheduler.MultiStepLR, 40, milestones=[20, 30], gamma=0.1)
    assert rates(Optimisation(iterations=40, learning_rate=0.4, schedule="steps")) == pytest.approx(expected)


def test_milestones_are_fractions_of_the_run() -> None:
    optimisation = Optimisation(iterations=10, learning_rate=1.0, schedule="steps", milestones=(0.25,))
    assert rates(optimisation) == pytest.approx([1.0] * 3 + [0.1] * 7)


def test_constant_is_constant() -> None:
    assert set(rates(Optimisation(iterations=5, learning_rate=0.3, schedule="constant"))) == {0.3}


def test_cosine_stays_at_zero_beyond_the_run() -> None:
    assert learning_rate(Optimisation(iterations=10), 25) == 0


@pytest.mark.parametrize(
    "options",
    [{}, {"nesterov": True}, {"momentum": 0.0}, {"weight_decay": 0.0}, {"nesterov": True, "weight_decay": 0.1}],
)
def test_sgd_is_torchs(options: dict[str, Any]) -> None:
    optimisation = Optimisation(iterations=6, learning_rate=0.1, **options)
    g = torch.Generator().manual_seed(0)
    ours = [torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((3, 4), (5,))]
    theirs = [weight.clone().requires_grad_() for weight in ours]
    momenta = [torch.zeros_like(weight) for weight in ours]
    optimizer = torch.optim.SGD(
        theirs,
        lr=0.1,
        momentum=optimisation.momentum,
        nesterov=optimisation.nesterov,
        weight_decay=optimisation.weight_decay,
    )
    for iteration in range(6):
        rate = learning_rate(optimisation, iteration)
        grads = [torch.randn(weight.shape, generator=g, dtype=torch.float64) for weight in ours]
        for weight, grad in zip(theirs, grads, strict=True):
            weight.grad = grad.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        sgd_(ours, grads, momenta, optimisation, rate)
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other.detach(), rtol=1e-12, atol=0)


def test_sgd_leaves_the_gradients_alone() -> None:
    grads = [torch.ones(2)]
    sgd_([torch.ones(2)], grads, [torch.zeros(2)], Optimisation(iterations=1), 0.1)
    assert grads[0].tolist() == [1.0, 1.0]


def test_average_is_a_plain_moving_average() -> None:
    averaged, expected = {"w": torch.tensor([4.0, 0.0], dtype=torch.float64)}, [4.0, 0.0]
    for value in (1.0, -2.0, 7.5):
        average_(averaged, {"w": torch.tensor([value, 1.0], dtype=torch.float64)}, 0.75)
        expected = [0.75 * expected[0] + 0.25 * value, 0.75 * expected[1] + 0.25]
    assert averaged["w"].tolist() == pytest.approx(expected, rel=1e-14)


def test_average_copies_whole_numbers() -> None:
    averaged = {"w": torch.zeros(1), "count": torch.tensor(3), "seen": torch.tensor([False])}
    average_(averaged, {"w": torch.ones(1), "count": torch.tensor(8), "seen": torch.tensor([True])}, 0.9)
    assert (averaged["count"].item(), averaged["seen"].item()) == (8, True)


def test_average_keeps_no_graph() -> None:
    current = {"w": torch.ones(1, requires_grad=True)}
    averaged: dict[str, Tensor] = {"w": torch.zeros(1)}
    average_(averaged, current, 0.5)
    assert not averaged["w"].requires_grad


def test_average_decay_forgets_the_start_and_then_holds() -> None:
    decays = [average_decay(0.9, iteration) for iteration in range(200)]
    assert decays[0] == 0.1
    assert decays == sorted(decays)
    assert decays[80:] == [0.9] * 120
    assert average_decay(0.0, 50) == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 0}, "iterations=0: train for at least 1"),
        ({"iterations": 1, "learning_rate": 0.0}, "learning_rate=0.0: it must be positive"),
        ({"iterations": 1, "average_decay": 1.0}, r"average_decay=1.0: a decay lies in \[0, 1\)"),
    ],
)
def test_refuses_what_cannot_train(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Optimisation(**options)
