"""A checkpoint is whole or not there, and the one before is kept."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from lossalign.core import CheckpointError
from lossalign.training import load_checkpoint, save_checkpoint
from lossalign.training.checkpoint import previous, read_checkpoint


def state(number: int) -> dict[str, Any]:
    return {"step": number, "weights": torch.full((50,), float(number)), "parts": [None, "text", {"a": 0.5}]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two checkpoints have been written: 1, then 2."""
    path = tmp_path / "population.ckpt"
    for number in (1, 2):
        save_checkpoint(path, state(number))
    return path


def step_of(path: Path) -> int:
    return int(load_checkpoint(path)[0]["step"])


def test_reads_what_was_written(path: Path) -> None:
    loaded, warning = load_checkpoint(path)
    assert warning is None
    assert torch.equal(loaded.pop("weights"), state(2)["weights"])
    assert loaded == {"step": 2, "parts": [None, "text", {"a": 0.5}]}


def test_keeps_the_one_before_and_nothing_else(path: Path) -> None:
    assert read_checkpoint(previous(path))["step"] == 1
    save_checkpoint(path, state(3))
    assert (read_checkpoint(path)["step"], read_checkpoint(previous(path))["step"]) == (3, 2)
    assert sorted(file.name for file in path.parent.iterdir()) == ["population.ckpt", "population.previous.ckpt"]


def test_a_first_checkpoint_has_none_before(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.ckpt", state(1))
    assert [file.name for file in tmp_path.iterdir()] == ["a.ckpt"]


def test_what_a_crash_left_behind_does_not_matter(path: Path) -> None:
    for end in (".part", ".old"):
        path.with_name(path.name + end).write_bytes(b"half a file")
    assert step_of(path) == 2
    save_checkpoint(path, state(3))
    assert (step_of(path), read_checkpoint(previous(path))["step"]) == (3, 2)


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("survived", [0, 1])
def test_a_crash_between_two_renames_leaves_a_readable_one(
    damaged: bool, survived: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if damaged:
        path.write_bytes(path.read_bytes()[:-1])
    replace, calls = os.replace, iter(range(9))

    def crash(one: Path, other: Path) -> None:
        if next(calls) == survived:
            raise KeyboardInterrupt
        replace(one, other)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(path, state(3))
    assert path.exists()
    assert step_of(path) == (3 if survived else 1 if damaged else 2)


def test_file_systems_without_links_get_a_copy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    save_checkpoint(path, state(3))
    assert (step_of(path), read_checkpoint(previous(path))["step"]) == (3, 2)


@pytest.mark.parametrize("length", [0, 10, 32, 700, -1])
def test_a_file_cut_short_gives_way_to_the_one_before(length: int, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:length])
    loaded, warning = load_checkpoint(path)
    assert loaded["step"] == 1
    assert warning == f"checkpoint {path} is cut off or damaged. Resuming from population.previous.ckpt."


@pytest.mark.parametrize("where", [0, 0.3, 0.7, 1])
def test_a_flipped_bit_gives_way_to_the_one_before(where: float, path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[int(where * (len(content) - 1))] ^= 4
    path.write_bytes(content)
    loaded, warning = load_checkpoint(path)
    assert loaded["step"] == 1
    assert warning is not None
    assert str(path) in warning


def test_a_missing_file_gives_way_to_the_one_before(path: Path) -> None:
    path.unlink()
    loaded, warning = load_checkpoint(path)
    assert loaded["step"] == 1
    assert warning is not None
    assert "No such file" in warning


def test_both_unreadable_names_both(path: Path) -> None:
    for file in (path, previous(path)):
        file.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="--overwrite") as raised:
        load_checkpoint(path)
    assert str(path) in str(raised.value)
    assert str(previous(path)) in str(raised.value)


def test_none_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a\.ckpt cannot be read .* no earlier one to fall back to"):
        load_checkpoint(tmp_path / "a.ckpt")


class Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("owned",))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_with_code_in_it_is_refused(zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    if zipped:
        torch.save({"step": Attack()}, buffer)
    else:
        pickle.dump({"step": Attack()}, buffer, protocol=2)
    payload = buffer.getvalue()
    Path("a.ckpt").write_bytes(payload + hashlib.sha256(payload).digest())
    with pytest.raises(CheckpointError, match=r"a\.ckpt cannot be read by this version of torch"):
        load_checkpoint(Path("a.ckpt"))
    assert not Path("owned").exists()
