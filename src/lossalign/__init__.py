"""lossalign: train with a loss that learns, while the model trains, to serve the metric you are judged by.

aligner = lossalign.Aligner(loss, metric, val_loader, total_steps)
loss = aligner(model(x), y)
aligner.step(model)
"""

from lossalign import metrics
from lossalign.control import Policy, Preset, default, paper
from lossalign.core import (
    CheckpointError,
    InputError,
    LossalignError,
    NonFiniteError,
    ParameterGroup,
    ParameterSpec,
    RunFolderError,
)
from lossalign.experiments import fit
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
    "DistanceMixtureLoss",
    "FocalWeightingLoss",
    "InputError",
    "LossalignError",
    "NonFiniteError",
    "ParameterGroup",
    "ParameterSpec",
    "Policy",
    "Preset",
    "RunFolderError",
    "default",
    "fit",
    "metrics",
    "paper",
]
