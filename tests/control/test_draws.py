"""Decisions are drawn with the right frequencies, from the CPU generator alone, and as torch draws them while few."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossalign.control import draws
from lossalign.control.draws import draw_actions, draw_some


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def probabilities(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, 3, generator=seeded(seed)).softmax(-1)


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 50))
def test_few_actions_are_those_of_multinomial(seed: int, children: int, parameters: int) -> None:
    pi, one, other = probabilities(seed, children, parameters), seeded(seed), seeded(seed)
    for _ in range(2):
        expected = torch.multinomial(pi.view(-1, 3), 1, generator=other).view(children, parameters)
        assert torch.equal(draw_actions(pi[None], [one])[0], expected)


@given(st.integers(0, 1000))
def test_few_are_those_of_randperm(seed: int) -> None:
    assert torch.equal(draw_some(100, 7, seeded(seed)), torch.randperm(100, generator=seeded(seed))[:7])


@pytest.mark.parametrize("many", [0, 2**16])
def test_actions_come_as_often_as_their_probabilities_say(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "_MANY", many)
    pi = torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.1, 0.9]])
    [drawn] = draw_actions(pi.expand(1, 15_000, 4, 3), [seeded()])
    shares = torch.nn.functional.one_hot(drawn, 3).float().mean(0)
    torch.testing.assert_close(shares, pi, atol=0.02, rtol=0)
    assert torch.equal(shares == 0, pi == 0), "what cannot happen does not"


def test_many_actions_follow_the_generator() -> None:
    pi = probabilities(0, 2, 40_000)
    first, again, other = draw_actions(pi.expand(3, 2, 40_000, 3), [seeded(seed) for seed in (0, 0, 1)])
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.min() == 0
    assert first.max() == 2


@given(st.integers(2, 400), st.integers(1, 400), st.integers(0, 100), st.sampled_from([0, 2**16]))
def test_some_are_different_and_in_range(size: int, some: int, seed: int, many: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "_MANY", many)
        drawn = draw_some(size, some, seeded(seed))
    assert len(drawn) == len(drawn.unique()) == min(size, some)
    assert drawn.min() >= 0
    assert drawn.max() < size


@pytest.mark.parametrize("some", [1, 4, 7])
def test_everyone_is_as_likely_to_be_among_some_of_many(some: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "_MANY", 0)
    g = seeded()
    hits = torch.cat([draw_some(10, some, g) for _ in range(8000)]).bincount(minlength=10)
    torch.testing.assert_close(hits / 8000, torch.full((10,), some / 10), atol=0.025, rtol=0)
