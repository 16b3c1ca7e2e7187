"""Offsets fitted afterwards never hurt on the samples they are fitted to, and find a known shift."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lossalign.decision import fit_offsets
from lossalign.metrics import BalancedError


def wrong(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) != targets).float().mean(-1)


def balanced(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.stack([torch.as_tensor(BalancedError()(one, targets)) for one in outputs])


def surprise(outputs: Tensor, targets: Tensor) -> Tensor:
    log_probs = torch.log_softmax(outputs, -1)
    return -log_probs.gather(-1, targets.expand(len(outputs), -1)[..., None]).mean((1, 2))


def labelled(seed: int, classes: int, samples: int) -> tuple[Tensor, Tensor]:
    """Logits, and labels drawn with the probabilities they give; every class occurs."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(samples, classes, generator=g)
    drawn = torch.multinomial(torch.softmax(logits, -1), 1, generator=g).flatten()
    drawn[:classes] = torch.arange(classes)
    return logits, drawn


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from([wrong, balanced, surprise]))
def test_never_worse_than_no_offsets(seed: int, classes: int, error: object) -> None:
    outputs, targets = labelled(seed, classes, samples=30)
    before = error(outputs[None], targets)  # type: ignore[operator]
    after = error((outputs + fit_offsets(outputs, targets, error))[None], targets)  # type: ignore[operator, arg-type]
    assert float(after) <= float(before) + 1e-7


def test_finds_a_known_shift() -> None:
    shift = torch.tensor([1.5, -1.0, 0.0, -0.5])
    outputs, targets = labelled(0, classes=4, samples=4000)
    found = fit_offsets(outputs - shift, targets, surprise)
    torch.testing.assert_close(found - found.mean(), shift - shift.mean(), atol=0.2, rtol=0)


def test_the_grids_halve() -> None:
    best = torch.tensor([1.07, -2.3, 0.4])
    found = fit_offsets(torch.zeros(1, 3), torch.tensor([0]), lambda o, t: (o[:, 0] - best).abs().sum(-1))
    assert (found - best).abs().max() <= 0.25 / 2**2 / 2 + 1e-6


def test_undoes_a_shift_that_costs_accuracy() -> None:
    targets = torch.arange(4).repeat(25)
    outputs = 2 * torch.nn.functional.one_hot(targets, 4) + torch.tensor([3.0, 0.0, 0.0, -1.0])
    assert wrong(outputs[None], targets) == 0.75
    assert wrong((outputs + fit_offsets(outputs, targets, wrong))[None], targets) == 0


def test_serves_the_metric_it_is_given() -> None:
    outputs, targets = labelled(1, classes=3, samples=300)
    rare = (targets != 2) | (torch.arange(300) < 30)
    outputs, targets = outputs[rare], targets[rare]
    gains = {
        e: [float(f((outputs + fit_offsets(outputs, targets, e))[None], targets)) for f in (wrong, balanced)]
        for e in (wrong, balanced)
    }
    assert gains[wrong][0] <= gains[balanced][0]
    assert gains[balanced][1] < gains[wrong][1]


def test_a_metric_that_cannot_tell_leaves_the_outputs_alone() -> None:
    outputs, targets = labelled(0, classes=3, samples=20)
    assert not fit_offsets(outputs, targets, lambda o, t: torch.ones(len(o))).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_offsets_have_the_type_of_the_outputs(dtype: torch.dtype) -> None:
    outputs, targets = labelled(0, classes=3, samples=20)
    offsets = fit_offsets(outputs.to(dtype), targets, wrong)
    assert offsets.shape == (3,)
    assert offsets.dtype == dtype
