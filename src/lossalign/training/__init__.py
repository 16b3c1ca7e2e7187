"""Algorithm 1: in the user's own loop, for a population of children, and its checkpoints."""

from lossalign.training.aligner import Aligner
from lossalign.training.checkpoint import load_checkpoint, previous, save_checkpoint
from lossalign.training.driver import own_controller, statistics_name
from lossalign.training.history import History, Move
from lossalign.training.loop import Population, StepRecord
from lossalign.training.observe import LabelledSet, check_validation, measure
from lossalign.training.parts import Owner, Part

__all__ = [
    "Aligner",
    "History",
    "LabelledSet",
    "Move",
    "Owner",
    "Part",
    "Population",
    "StepRecord",
    "check_validation",
    "load_checkpoint",
    "measure",
    "own_controller",
    "previous",
    "save_checkpoint",
    "statistics_name",
]
