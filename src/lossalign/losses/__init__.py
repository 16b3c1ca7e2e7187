"""Losses whose parameters can be moved while a model trains. In each file the pure function first, then the class."""

from lossalign.losses.aligned import AlignedLoss, aligned_loss
from lossalign.losses.base import AdaptiveLoss
from lossalign.losses.class_correlation import ClassCorrelationLoss, class_correlation_loss, confusion

__all__ = [
    "AdaptiveLoss",
    "AlignedLoss",
    "ClassCorrelationLoss",
    "aligned_loss",
    "class_correlation_loss",
    "confusion",
]
