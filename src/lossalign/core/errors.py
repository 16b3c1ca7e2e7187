"""The exceptions of lossalign, as one tree.

    LossalignError
    ├── InputError (also a ValueError)   an argument, a file or a data set is not what it must be
    ├── NonFiniteError                   NaN or inf in a loss, an output or a metric; names the step
    ├── CheckpointError                  no readable checkpoint
    ├── RunFolderError                   a run folder that exists already, or a folder that is not a run folder
    ├── RankError                        a rank that failed, exited, or holds another policy than the others
    └── Interrupted                      a run that was stopped on request; its checkpoint is written

Every message is one sentence: what is wrong, where, and what to do. The command line prints it without a traceback
and exits with code 2, or 128 + the signal's number if it was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from zlib import error

UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, RuntimeError, MemoryError, error)
"""What reading a damaged or hostile file may raise: ``except UNREADABLE`` makes one sentence of it. RecursionError is a
RuntimeError, UnicodeDecodeError and json's errors are ValueErrors, KeyError is a LookupError, the last is zlib's."""


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Errors of the operating system name ``path``, where they name no file: a full disk does not say whose.

    Example:
        >>> with naming("here.json"):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        ...
        OSError: [Errno 28] No space left on device: 'here.json'
    """
    try:
        yield
    except OSError as failed:
        if failed.errno is not None and failed.filename is None:
            failed.filename = str(path)
        raise


class LossalignError(Exception):
    """Base class of every error that lossalign raises on purpose."""


class InputError(LossalignError, ValueError):
    """An argument, file or data set that cannot be used as given."""


class NonFiniteError(LossalignError):
    """NaN or inf in a loss, an output or a metric.

    Attributes:
        child: row of the population.
    """

    def __init__(self, message: str, child: int = 0) -> None:
        super().__init__(message)
        self.child = child


class CheckpointError(LossalignError):
    """A checkpoint that cannot be read."""


class RunFolderError(LossalignError):
    """A run folder that cannot be read or must not be written."""


class RankError(LossalignError):
    """A rank of a distributed run that failed, exited, or disagrees with the others."""


class Interrupted(LossalignError):
    """A run that was stopped on request; its checkpoint is written.

    Attributes:
        signal: number of the signal that asked for it, by default that of Ctrl-C.
    """

    def __init__(self, message: str, signal: int = 2) -> None:
        super().__init__(message)
        self.signal = signal
