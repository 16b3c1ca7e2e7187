"""Which folder a run is written into: a new one, or one that is resumed or overwritten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from lossalign.core import InputError, RunFolderError
from lossalign.core.errors import UNREADABLE
from lossalign.experiments import Config, plain_by_key, to_plain
from lossalign.runs.environment import launch
from lossalign.runs.folder import CONFIG, ENVIRONMENT, FORMAT, LEDGER, MARK, RunFolder
from lossalign.runs.lock import LOCK

_MAY_DIFFER = ("device", "engine", "compile", "in_memory_gb", "image_cache", "rank_timeout", "learning_rate")
"""Keys that a resumed run may change: where and how it is computed, and the learning rate, so that a run that diverged
can be resumed at a lower one."""

Existing = Literal["refuse", "resume", "overwrite"]


def _restarted_into(folder: RunFolder) -> bool:
    """Whether torchrun has restarted this process and the folder holds the run that it started."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if restarts == 0 or not is_run_folder(folder.path) or not (folder.path / CONFIG).exists():
        return False
    return bool(folder.about().get("launch") == launch())


def _names(path: Path) -> set[str]:
    """The names in a folder; a lock is not content."""
    return {item.name for item in path.iterdir()} - {LOCK}


def is_run_folder(path: Path) -> bool:
    """Whether ``path`` holds a run of any schema, one that was stopped while it was started, or the ledger of one."""
    if _names(path) == {LEDGER} or (path / MARK).exists():
        return True
    try:
        content = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except UNREADABLE:
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def find_policies(runs: Path) -> Iterator[tuple[Path, str]]:
    """Learned policies in the run folders inside ``runs``, each with the command that started its run."""
    for config in sorted(runs.glob(f"*/{CONFIG}")):
        folder = RunFolder(config.parent)
        if is_run_folder(folder.path):
            began = next(folder.rows(ENVIRONMENT), {}).get("command", "an unknown command")
            yield from ((path, str(began)) for path in folder.policies().values())


def find_folder(path: Path, existing: Existing, config: Config) -> tuple[RunFolder, bool]:
    """The folder of a run, and whether it holds a run to resume. Nothing is written or deleted yet.

    An existing folder is refused unless it is to be resumed or overwritten; only a run folder is ever overwritten.
    A process that torchrun has restarted resumes its run, whatever ``existing`` says.
    """
    if existing not in get_args(Existing):
        raise InputError(f"existing={existing!r}: choose from {get_args(Existing)}.")
    folder = RunFolder(path)
    if not path.exists() or (path.is_dir() and not _names(path)):
        return folder, False
    if path.is_dir() and _restarted_into(folder):
        existing = "resume"
    if existing == "refuse":
        raise RunFolderError(
            f"out={path} exists; resume it with --resume, replace it with --overwrite, or choose another folder."
        )
    if not path.is_dir() or not is_run_folder(path):
        raise RunFolderError(f"out={path} is not a run folder, so it is not overwritten; choose another folder.")
    if existing == "overwrite" or not (path / CONFIG).exists():
        return folder, False
    check_same_config(config, folder)
    return folder, True


def check_same_config(new: Config, folder: RunFolder) -> None:
    """Raise ``RunFolderError`` if a run is resumed with other settings.

    The folder may be a stranger's: its config is compared as data, and nothing that it names is imported.
    """
    task, before = folder.settings()
    if new.task != task:
        raise RunFolderError(f"resume: the task was {task!r} in this run and is {new.task!r} now.")
    for name, now in plain_by_key(to_plain(new)).items():
        if name not in _MAY_DIFFER and before[name] != now:
            raise RunFolderError(
                f"resume: {name} was {before[name]!r} in this run and is {now!r} now; use the same settings or another "
                "--out."
            )
