"""Which engine trains: one call for several tiny networks on CPU, a loop for everything else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lossalign.children import Member, Recipe, SequentialChildren, VmapChildren, choose_engine, make_children
from lossalign.core import InputError


def members(number: int, weights: int) -> list[Member]:
    def no_stream() -> Any:
        return None

    return [Member(nn.Linear(weights, 1, bias=False), seed, no_stream) for seed in range(number)]


@pytest.mark.parametrize(
    ("number", "weights", "device", "expected"),
    [
        (2, 20_000, "cpu", "vmap"),
        (2, 20_001, "cpu", "sequential"),
        (1, 10, "cpu", "sequential"),
        (10, 10, "cuda", "sequential"),
        (0, 0, "cpu", "sequential"),
    ],
)
def test_auto(number: int, weights: int, device: str, expected: str) -> None:
    assert choose_engine("auto", members(number, weights), torch.device(device)) == expected


@pytest.mark.parametrize("engine", ["sequential", "vmap"])
def test_an_engine_that_is_named_is_taken(engine: Any) -> None:
    assert choose_engine(engine, members(1, 10**6), torch.device("cuda")) == engine


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match="engine='fused': choose from auto, sequential, vmap"):
        choose_engine("fused", members(1, 1), torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("number", "kind"), [(2, VmapChildren), (1, SequentialChildren)])
def test_make_children_builds_what_was_chosen(number: int, kind: type) -> None:
    made = make_children(members(number, 4), lambda outputs, targets, phi: outputs, Recipe(iterations=1))
    assert type(made) is kind
    assert made.count == number


@pytest.mark.parametrize("engine", ["auto", "sequential", "vmap"])
def test_no_children_are_refused(engine: Any) -> None:
    with pytest.raises(InputError, match="children=0: train at least 1"):
        make_children([], lambda outputs, targets, phi: outputs, Recipe(iterations=1), engine=engine)
