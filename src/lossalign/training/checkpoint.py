"""Checkpoints that are whole or not there: written beside, then renamed; the one before is kept."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch

from lossalign.core import CheckpointError
from lossalign.core.errors import UNREADABLE, naming

_DIGEST = 32


def previous(path: Path) -> Path:
    """Where the checkpoint before ``path`` is kept."""
    return path.with_name(path.stem + ".previous" + path.suffix)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` (tensors, numbers, strings, lists, dicts): a torch file and its SHA-256 behind it.

    The old file becomes ``previous(path)``, but only once the new one is in place: a crash at any moment leaves a
    readable checkpoint, even if the old file was damaged and ``previous(path)`` is the one that a run resumed from.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    beside = path.with_name(path.name + ".part")
    with naming(beside), beside.open("wb") as file:
        file.write(payload)
        file.write(hashlib.sha256(payload).digest())
        file.flush()
        os.fsync(file.fileno())
    old = path.with_name(path.name + ".old") if path.exists() else None
    if old:
        _link(path, old)
    os.replace(beside, path)
    if old:
        os.replace(old, previous(path))


def _link(path: Path, name: Path) -> None:
    """A second name for a file, or a copy where the file system has no links."""
    name.unlink(missing_ok=True)
    try:
        os.link(path, name)
    except OSError:
        shutil.copyfile(path, name)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read one file that ``save_checkpoint`` wrote; tensors come back on the CPU."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read ({error.strerror}).") from error
    payload, digest = content[:-_DIGEST], content[-_DIGEST:]
    if hashlib.sha256(payload).digest() != digest:
        raise CheckpointError(f"checkpoint {path} is cut off or damaged.")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except (*UNREADABLE, pickle.UnpicklingError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read by this version of torch.") from error
    return state


def load_checkpoint(path: Path) -> tuple[dict[str, Any], str | None]:
    """The newest readable checkpoint.

    Returns:
        The state, and None, or one sentence that says which file could not be read and which was taken instead.
    """
    try:
        return read_checkpoint(path), None
    except CheckpointError as error:
        if not previous(path).exists():
            raise CheckpointError(
                f"{error} There is no earlier one to fall back to; start with --overwrite."
            ) from error
        try:
            return read_checkpoint(previous(path)), f"{error} Resuming from {previous(path).name}."
        except CheckpointError as earlier:
            raise CheckpointError(
                f"{error} Nor can the earlier one be used: {earlier} Start with --overwrite."
            ) from error
