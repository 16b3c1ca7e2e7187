"""The lock of a run folder: one process at a time trains into it."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from lossalign.core import RunFolderError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK = "run.lock"
"""Names the process that holds the folder. The lock itself is the operating system's: it ends with the process, so a
file that a killed process left is no lock."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the folder at ``path``, which is created if it does not exist, and removed again if it stays empty."""
    path.mkdir(parents=True, exist_ok=True)
    file = _acquire(path)
    try:
        yield
    finally:
        (path / LOCK).unlink(missing_ok=True)  # before it is released: nobody deletes the lock of another process
        file.close()
        with suppress(OSError):
            path.rmdir()


def _acquire(path: Path) -> IO[str]:
    while True:
        file = (path / LOCK).open("a+", encoding="utf-8")
        if not _try(file):
            file.seek(0)
            holder = _described(file.read())
            file.close()
            raise RunFolderError(
                f"out={path} is in use by {holder}; wait until that run has ended, or choose another folder."
            )
        try:
            mine = os.fstat(file.fileno()).st_ino == (path / LOCK).stat().st_ino
        except FileNotFoundError:
            mine = False
        if mine:
            break
        file.close()  # its holder deleted it in between
    file.truncate(0)
    json.dump({"pid": os.getpid(), "host": platform.node()}, file)
    file.flush()
    return file


def _try(file: IO[str]) -> bool:
    """Lock an open file; False if another one holds it."""
    try:
        if sys.platform == "win32":
            file.seek(1_000_000)  # a byte that nobody reads, as Windows keeps others from reading what is locked
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        file.close()
        raise RunFolderError(
            f"out={file.name} cannot be locked ({error.strerror}); choose a folder on a file system with locks."
        ) from error
    return True


def _described(content: str) -> str:
    try:
        about = json.loads(content)
        return f"process {int(about['pid'])} on host {about['host']!r}"
    except (ValueError, KeyError, TypeError):
        return "another process"
