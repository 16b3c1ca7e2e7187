"""lossalign: train with a loss that learns, while the model trains, to serve the metric you are judged by.

aligner = lossalign.Aligner(loss, metric, val_loader, total_steps)
loss = aligner(model(x), y)
aligner.step(model)
"""

from lossalign import _interrupt as _interrupt
from lossalign import losses, metrics
from lossalign.api import fit
from lossalign.control import Policy, Preset, default, paper
from lossalign.core import VERSION as __version__
from lossalign.core import (
    CheckpointError,
    Controller,
    InputError,
    Interrupted,
    LossalignError,
    NonFiniteError,
    Observation,
    ParameterGroup,
    ParameterSpec,
    RankError,
    RunFolderError,
)
from lossalign.decision import Decision
from lossalign.losses import (
    AdaptiveLoss,
    AlignedLoss,
    ClassCorrelationLoss,
    DistanceMixtureLoss,
    FocalWeightingLoss,
)
from lossalign.training import Aligner

__all__ = [
    "AdaptiveLoss",
    "AlignedLoss",
    "Aligner",
    "CheckpointError",
    "ClassCorrelationLoss",
    "Controller",
    "Decision",
    "DistanceMixtureLoss",
    "FocalWeightingLoss",
    "InputError",
    "Interrupted",
    "LossalignError",
    "NonFiniteError",
    "Observation",
    "ParameterGroup",
    "ParameterSpec",
    "Policy",
    "Preset",
    "RankError",
    "RunFolderError",
    "__version__",
    "default",
    "fit",
    "losses",
    "metrics",
    "paper",
]
