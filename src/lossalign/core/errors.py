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
