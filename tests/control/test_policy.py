"""One small network for every parameter, drawn from the generator it is given, and kept in one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lossalign.control import Policy
from lossalign.control.policy import PolicyAbout
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


ABOUT = PolicyAbout(
    groups=("offsets",), loss="AlignedLoss", preset={"horizon": 5}, provenance={"task": "digits", "seed": 3}
)


def test_what_it_was_learned_on_comes_back_with_it(tmp_path: Path) -> None:
    policy = fresh()
    policy.about = ABOUT
    assert Policy.load(policy.save(tmp_path / "policy.safetensors")).about == ABOUT
    with safe_open(tmp_path / "policy.safetensors", framework="pt") as file:
        described = json.loads(file.metadata()["lossalign"])
    assert described["version"] == 2
    assert described["written_by"].startswith("lossalign ")


def test_a_file_of_the_first_format_is_read_and_says_nothing(tmp_path: Path) -> None:
    described = {"format": "lossalign-policy", "hidden": [8, 8], "layout": asdict(LAYOUT)}
    save_file(dict(fresh().state_dict()), tmp_path / "p.safetensors", metadata={"lossalign": json.dumps(described)})
    policy = Policy.load(tmp_path / "p.safetensors")
    assert policy.about is None
    assert torch.equal(policy(states(6)), fresh()(states(6)))


def test_a_file_of_a_later_format_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, tmp_path / "p.safetensors", metadata={"lossalign": '{"version": 3}'})
    with pytest.raises(InputError, match="has format version 3, this lossalign reads up to 2; install a newer"):
        Policy.load(tmp_path / "p.safetensors")


def test_the_one_that_comes_with_lossalign_is_for_offsets_of_the_aligned_loss() -> None:
    policy = Policy.pretrained()
    assert policy.about is not None
    assert (policy.about.loss, policy.about.groups) == ("AlignedLoss", ("offsets",))
    assert Policy.pretrained_for(("offsets",), policy.layout) is not None
    assert Policy.pretrained_for(("offsets",), policy.layout, "AlignedLoss") is not None
    assert Policy.pretrained_for(("offsets",), policy.layout, "OtherLoss") is None
    assert Policy.pretrained_for(("weights",), policy.layout) is None
    assert Policy.pretrained_for(("offsets",), LAYOUT) is None


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


class TestAFileOfAStranger:
    """A policy file is read only if it is one, whatever it claims."""

    @pytest.fixture
    def rewritten(self, tmp_path):
        def rewrite(weights=None, **claims):
            policy = Policy(LAYOUT, generator=torch.Generator())
            path = policy.save(tmp_path / "policy.safetensors")
            with safe_open(path, framework="pt") as file:
                described = json.loads(file.metadata()["lossalign"])
            described.update(claims)
            tensors = {name: weight.clone() for name, weight in policy.state_dict().items()} | (weights or {})
            save_file(tensors, path, metadata={"lossalign": json.dumps(described)})
            return path

        return rewrite

    @pytest.mark.parametrize(
        ("claims", "words"),
        [
            ({"hidden": [10**9, 10**9]}, "not a lossalign policy"),
            ({"hidden": [-1]}, "not a lossalign policy"),
            ({"hidden": "32"}, "give a whole number, or several"),
            ({"hidden": None}, "not a lossalign policy"),
            ({"layout": {"statistics": 10**12, "history": 10**6}}, "not a lossalign policy"),
            ({"layout": {"statistics": "1"}}, "statistics='1': give a whole number"),
            ({"format": "another"}, "has the format 'another'"),
            ({"version": "2"}, "version='2': give a whole number"),
            ({"version": 99}, "reads up to"),
        ],
    )
    def test_its_claims_are_checked_before_anything_is_allocated(self, rewritten, claims, words):
        with pytest.raises(InputError, match=words):
            Policy.load(rewritten(**claims))

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_weights_that_are_not_finite_are_refused(self, rewritten, value):
        with pytest.raises(InputError, match="holds NaN or inf"):
            Policy.load(rewritten({"layers.0.bias": torch.full((32,), value)}))

    @pytest.mark.parametrize(
        "content", [b"", b"\0" * 100, b"\xff" * 8, (2**62).to_bytes(8, "little") + b"{}", b"[" * 9999]
    )
    def test_noise_is_one_sentence(self, tmp_path, content):
        (tmp_path / "noise.safetensors").write_bytes(content)
        with pytest.raises(InputError, match="is not a lossalign policy"):
            Policy.load(tmp_path / "noise.safetensors")
