"""A population goes on from a file as if nothing had happened."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lossalign.children import Children
from lossalign.core import InputError

Build = Callable[..., Children]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested dicts and lists as one dict of leaves."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in flat(part, f"{path}/{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for i, part in enumerate(value) for k, v in flat(part, f"{path}/{i}").items()}
    return {path: value}


def assert_equal(one: Any, other: Any) -> None:
    mine, theirs = flat(one), flat(other)
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        assert torch.equal(value, theirs[key]) if isinstance(value, Tensor) else value == theirs[key], key


@pytest.mark.parametrize("model", ["mlp", "small-cnn", "dropout"])
def test_resumes_bit_for_bit(engine: str, model: str, build: Build, offsets: Callable[..., Tensor]) -> None:
    whole = build(engine, model)
    whole.advance(3, offsets(3))
    whole.keep_best(torch.tensor([True, False, True]))
    saved = through_a_file(whole.state_dict())
    whole_losses = whole.advance(4, -offsets(3))

    resumed = build(engine, model, seeds=(10, 11, 12))  # other weights, other batches: nothing of it may remain
    resumed.advance(2, offsets(3))
    resumed.load_state_dict(saved)
    assert torch.equal(resumed.advance(4, -offsets(3)), whole_losses)
    assert resumed.iteration == 7
    assert_equal(resumed.state_dict(), whole.state_dict())


def test_momentum_is_part_of_the_state(engine: str, build: Build) -> None:
    children = build(engine)
    children.advance(3, torch.zeros(3, 3))
    state = through_a_file(children.state_dict())
    assert all(bool((momentum != 0).any()) for key, momentum in flat(state).items() if key.startswith("/momenta"))


def test_a_loaded_state_is_not_trained_on(engine: str, build: Build) -> None:
    children = build(engine, "small-cnn")
    children.advance(2, torch.zeros(3, 3))
    saved, kept = through_a_file(children.state_dict()), through_a_file(children.state_dict())
    other = build(engine, "small-cnn")
    other.load_state_dict(saved)
    other.advance(2, torch.zeros(3, 3))
    other.keep_best(torch.tensor([True, True, True]))
    assert_equal(saved, kept)


def test_another_number_of_children_is_refused(engine: str, build: Build) -> None:
    state = build(engine).state_dict()
    with pytest.raises(InputError, match="state: it holds 3 children, this run has 2"):
        build(engine, seeds=(0, 1)).load_state_dict(state)


@pytest.mark.parametrize("other", ["sequential", "vmap", "fused"])
def test_a_run_may_go_on_on_another_engine(
    engine: str, other: str, build: Build, offsets: Callable[..., Tensor]
) -> None:
    phi = offsets(3, torch.float64)
    whole = build(engine, "resnet8", dtype=torch.float64)
    whole.advance(5, phi)
    begun = build(engine, "resnet8", dtype=torch.float64)
    begun.advance(3, phi)
    resumed = build(other, "resnet8", seeds=(10, 11, 12), dtype=torch.float64)
    resumed.load_state_dict(begun.state_dict())
    resumed.advance(2, phi)
    for child in range(3):
        mine, theirs = (children.child_state(child, "averaged") for children in (resumed, whole))
        assert all(torch.allclose(mine[name], theirs[name], rtol=1e-9, atol=1e-12) for name in theirs)
