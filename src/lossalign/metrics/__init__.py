"""Metrics that models are judged by. Each file has the pure functions first, then the class."""

from lossalign.metrics.adapters import FunctionMetric, PipelineMetric, TorchMetric
from lossalign.metrics.base import MeanMetric, Metric, error
from lossalign.metrics.confusion import (
    BalancedError,
    ClassTotals,
    ConfusionMetric,
    ErrorRate,
    MacroF1,
    MeanCost,
    TotalsMetric,
    WorstClassRecall,
    WorstExpectedRecall,
    confusion_counts,
)
from lossalign.metrics.gradient import class_gradient
from lossalign.metrics.lift import over_children, score_children
from lossalign.metrics.named import as_metric, metric_named
from lossalign.metrics.ranking import AUCPR, AUROC, auroc, average_precision
from lossalign.metrics.recall_at_k import MAPAtR, RecallAtK, RPrecision, map_at_r, r_precision, recall_at_k
from lossalign.metrics.sensitivity import class_sensitivity
from lossalign.metrics.topk import TopKError, top_k_error
from lossalign.metrics.verification import (
    EqualErrorRate,
    TARAtFAR,
    VerificationAccuracy,
    accept_rates,
    accuracy_at,
    all_pairs,
    balanced_threshold,
    best_balanced_accuracy,
    best_threshold,
    equal_error_rate,
    judged_rightly,
    tar_at_far,
    verification_accuracy,
)

__all__ = [
    "AUCPR",
    "AUROC",
    "BalancedError",
    "ClassTotals",
    "ConfusionMetric",
    "EqualErrorRate",
    "ErrorRate",
    "FunctionMetric",
    "MAPAtR",
    "MacroF1",
    "MeanCost",
    "MeanMetric",
    "Metric",
    "PipelineMetric",
    "RPrecision",
    "RecallAtK",
    "TARAtFAR",
    "TopKError",
    "TorchMetric",
    "TotalsMetric",
    "VerificationAccuracy",
    "WorstClassRecall",
    "WorstExpectedRecall",
    "accept_rates",
    "accuracy_at",
    "all_pairs",
    "as_metric",
    "auroc",
    "average_precision",
    "balanced_threshold",
    "best_balanced_accuracy",
    "best_threshold",
    "class_gradient",
    "class_sensitivity",
    "confusion_counts",
    "equal_error_rate",
    "error",
    "judged_rightly",
    "map_at_r",
    "metric_named",
    "over_children",
    "r_precision",
    "recall_at_k",
    "score_children",
    "tar_at_far",
    "top_k_error",
    "verification_accuracy",
]
