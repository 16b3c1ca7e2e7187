"""Where the ring closes: the user's own loop, the population's loop, and checkpoints."""

from lossalign.training.aligner import Aligner
from lossalign.training.checkpoint import load_checkpoint, previous, save_checkpoint
from lossalign.training.loop import Population, StepRecord
from lossalign.training.observe import LabelledSet, check_validation, measure

__all__ = [
    "Aligner",
    "LabelledSet",
    "Population",
    "StepRecord",
    "check_validation",
    "load_checkpoint",
    "measure",
    "previous",
    "save_checkpoint",
]
