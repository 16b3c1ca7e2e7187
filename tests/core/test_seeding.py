"""Every purpose has a random stream of its own."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from lossalign.core import generator

PATHS = st.lists(st.one_of(st.integers(0, 9), st.sampled_from(["child", "policy", "batches"])), max_size=3)


def draws(seed: int, *path: str | int) -> list[float]:
    return torch.rand(4, generator=generator(seed, *path)).tolist()


@given(st.integers(0, 2**40), PATHS)
def test_the_same_seed_and_path_give_the_same_stream(seed: int, path: list[str | int]) -> None:
    assert draws(seed, *path) == draws(seed, *path)


@given(st.lists(st.tuples(st.integers(0, 3), PATHS.map(tuple)), min_size=2, max_size=6, unique=True))
def test_other_seeds_and_paths_give_other_streams(streams: list[tuple[int, tuple[str | int, ...]]]) -> None:
    assert len({tuple(draws(seed, *path)) for seed, path in streams}) == len(streams)


def test_streams_do_not_change_from_version_to_version() -> None:
    assert generator(0, "child", 3).initial_seed() == 5610399065431408458  # printf 0/child/3 | sha256sum


def test_the_global_stream_is_left_alone() -> None:
    before = torch.get_rng_state()
    draws(0, "child")
    assert torch.equal(torch.get_rng_state(), before)
