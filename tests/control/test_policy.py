"""One small network for every parameter, drawn from the generator it is given, and kept in one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lossalign.control import Policy
from lossalign.control.state import StateLayout
from lossalign.core import InputError, generator

LAYOUT = StateLayout(statistics=2, history=3)


def fresh(seed: int = 0, zero_bias: float = 0.0, layout: StateLayout = LAYOUT) -> Policy:
    return Policy(layout, (8, 8), zero_bias, generator=generator(seed))


def states(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, LAYOUT.size, generator=generator(1))


def test_a_parameter_is_judged_by_its_own_state_alone() -> None:
    policy, seen = fresh(), states(3, 5)
    logits = policy(seen)
    assert logits.shape == (3, 5, 3)
    for child in range(3):
        for parameter in range(5):
            torch.testing.assert_close(policy(seen[child, parameter]), logits[child, parameter])


def test_all_parameters_share_the_network() -> None:
    assert sum(p.numel() for p in fresh().parameters()) == (LAYOUT.size + 1) * 8 + 9 * 8 + 9 * 3
    seen = states(3, 5)
    torch.testing.assert_close(fresh()(seen.flip(1)), fresh()(seen).flip(1))


def test_zero_bias_is_added_to_the_logit_of_standing_still() -> None:
    difference = fresh(zero_bias=0.5)(states(4)) - fresh()(states(4))
    torch.testing.assert_close(difference, torch.tensor([0.0, 0.5, 0.0]).expand(4, 3))


def test_weights_come_from_the_generator_and_nowhere_else() -> None:
    before = torch.get_rng_state()
    one, same, other = fresh(0), fresh(0), fresh(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_fresh_policy_is_near_uniform() -> None:
    chances = torch.softmax(Policy(LAYOUT, generator=generator(0))(states(500)), -1)
    assert chances.min() > 0.05


def test_a_saved_policy_comes_back_exactly(tmp_path: Path) -> None:
    policy = fresh(zero_bias=0.5)
    before = torch.get_rng_state()
    back = Policy.load(policy.save(tmp_path / "deep" / "policy.safetensors"))
    assert torch.equal(torch.get_rng_state(), before)
    assert (back.layout, back.hidden) == (policy.layout, policy.hidden)
    assert torch.equal(back(states(6)), policy(states(6)))


def missing(path: Path) -> None:
    pass


def folder(path: Path) -> None:
    path.mkdir()


def text(path: Path) -> None:
    path.write_text("weights")


def empty(path: Path) -> None:
    path.touch()


def cut_off(path: Path) -> None:
    fresh().save(path)
    path.write_bytes(path.read_bytes()[:-100])


def cut_off_in_the_header(path: Path) -> None:
    fresh().save(path)
    path.write_bytes(path.read_bytes()[:40])


def pickled(path: Path) -> None:
    torch.save(fresh().state_dict(), path)


def some_tensors(path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, path)


def described_by_nonsense(path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, path, metadata={"lossalign": "{"})


def described_by_a_list(path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, path, metadata={"lossalign": "[]"})


def of_another_layout(path: Path) -> None:
    described = {"hidden": [8, 8], "layout": {"statistics": 1, "history": 3, "sensitivity": True}}
    save_file(dict(fresh().state_dict()), path, metadata={"lossalign": json.dumps(described)})


@pytest.mark.parametrize("write", [missing, folder])
def test_what_is_no_file_is_refused(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "p.safetensors")
    with pytest.raises(InputError, match=r"p\.safetensors is not a file; give the \.safetensors file"):
        Policy.load(tmp_path / "p.safetensors")


@pytest.mark.parametrize(
    "write",
    [
        text,
        empty,
        cut_off,
        cut_off_in_the_header,
        pickled,
        some_tensors,
        described_by_nonsense,
        described_by_a_list,
        of_another_layout,
    ],
)
def test_what_is_no_policy_is_refused(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / "p.safetensors")
    with pytest.raises(InputError, match=r"p\.safetensors is not a lossalign policy"):
        Policy.load(tmp_path / "p.safetensors")
