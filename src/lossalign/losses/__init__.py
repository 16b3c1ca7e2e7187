"""Losses whose parameters can be moved while a model trains. In each file the pure function first, then the class."""

from lossalign.losses.aligned import AlignedLoss, aligned_loss
from lossalign.losses.base import AdaptiveLoss
from lossalign.losses.class_correlation import ClassCorrelationLoss, class_correlation_loss, confusion
from lossalign.losses.ldam import LDAMLoss, ldam_loss, ldam_margins
from lossalign.losses.ranking import pairwise_ranking, smooth_ap
from lossalign.losses.ranking_losses import PairwiseLoss, RankingLoss, SmoothAPLoss

__all__ = [
    "AdaptiveLoss",
    "AlignedLoss",
    "ClassCorrelationLoss",
    "LDAMLoss",
    "PairwiseLoss",
    "RankingLoss",
    "SmoothAPLoss",
    "aligned_loss",
    "class_correlation_loss",
    "confusion",
    "ldam_loss",
    "ldam_margins",
    "pairwise_ranking",
    "smooth_ap",
]
