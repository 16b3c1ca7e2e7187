"""The methods of a run: how each is trained, or derived from other methods."""

from lossalign.experiments.methods.combined import FOLDS
from lossalign.experiments.methods.derived import costs_of
from lossalign.experiments.methods.names import DEFAULT_METHODS, METHODS, parse_method
from lossalign.experiments.methods.spec import (
    DerivedMethod,
    Judged,
    Method,
    MethodSpec,
    Role,
    Setting,
    Split,
    TrainedMethod,
)

__all__ = [
    "DEFAULT_METHODS",
    "FOLDS",
    "METHODS",
    "DerivedMethod",
    "Judged",
    "Method",
    "MethodSpec",
    "Role",
    "Setting",
    "Split",
    "TrainedMethod",
    "costs_of",
    "parse_method",
]
