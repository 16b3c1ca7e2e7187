"""What can go wrong, as one tree.

    LossalignError
    ├── InputError (also a ValueError)   an argument, a file or a data set is not what it must be
    ├── NonFiniteError                   NaN or inf in a loss, an output or a metric; names the step
    ├── CheckpointError                  no readable checkpoint
    ├── RunFolderError                   a run folder that exists, or a folder that is no run folder
    └── RankError                        a rank that failed, left, or holds another policy than the others

Every message is one sentence that names the argument and the way out. The command line prints it without a traceback
and leaves with exit code 2.
"""


class LossalignError(Exception):
    """Base of every error that is lossalign's to explain."""


class InputError(LossalignError, ValueError):
    """An argument, file or data set that cannot be used as given."""


class NonFiniteError(LossalignError):
    """NaN or inf in a loss, an output or a metric.

    Attributes:
        child: which row of the population.
    """

    def __init__(self, message: str, child: int = 0) -> None:
        super().__init__(message)
        self.child = child


class CheckpointError(LossalignError):
    """A checkpoint that cannot be read."""


class RunFolderError(LossalignError):
    """A run folder that may not be written."""


class RankError(LossalignError):
    """A rank of a distributed run that failed, left, or disagrees with the others."""
