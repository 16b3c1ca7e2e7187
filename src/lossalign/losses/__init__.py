"""Losses whose parameters can be moved while a model trains. Each file has the pure functions first, then the class."""

from lossalign.losses.aligned import AlignedLoss, aligned_loss
from lossalign.losses.base import AdaptiveLoss, Narrowed
from lossalign.losses.class_correlation import ClassCorrelationLoss, class_correlation_loss, confusion
from lossalign.losses.distance_mixture import DistanceMixtureLoss, distance_mixture_loss, triplet_loss
from lossalign.losses.distances import EmbeddingLoss, pairwise_distances
from lossalign.losses.embedding_rivals import (
    ContrastiveLoss,
    MarginLoss,
    MultiSimilarityLoss,
    TripletLoss,
    contrastive_loss,
    margin_loss,
    multi_similarity_loss,
)
from lossalign.losses.focal_weighting import FocalWeightingLoss, focal_weighting_loss
from lossalign.losses.l_softmax import LSoftmaxLoss, angular_margin, l_softmax_loss
from lossalign.losses.ldam import LDAMLoss, ldam_loss, ldam_margins
from lossalign.losses.metric_learning import MetricLearningLoss, metric_learning_loss
from lossalign.losses.ranking import pairwise_ranking, smooth_ap
from lossalign.losses.ranking_losses import PairwiseLoss, RankingLoss, SmoothAPLoss

__all__ = [
    "AdaptiveLoss",
    "AlignedLoss",
    "ClassCorrelationLoss",
    "ContrastiveLoss",
    "DistanceMixtureLoss",
    "EmbeddingLoss",
    "FocalWeightingLoss",
    "LDAMLoss",
    "LSoftmaxLoss",
    "MarginLoss",
    "MetricLearningLoss",
    "MultiSimilarityLoss",
    "Narrowed",
    "PairwiseLoss",
    "RankingLoss",
    "SmoothAPLoss",
    "TripletLoss",
    "aligned_loss",
    "angular_margin",
    "class_correlation_loss",
    "confusion",
    "contrastive_loss",
    "distance_mixture_loss",
    "focal_weighting_loss",
    "l_softmax_loss",
    "ldam_loss",
    "ldam_margins",
    "margin_loss",
    "metric_learning_loss",
    "multi_similarity_loss",
    "pairwise_distances",
    "pairwise_ranking",
    "smooth_ap",
    "triplet_loss",
]
