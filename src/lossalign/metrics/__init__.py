"""What a model is judged by, as a reward. In each file the pure function first, then the class."""

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
    confusion_counts,
)
from lossalign.metrics.lift import over_children
from lossalign.metrics.ranking import AUCPR, AUROC, auroc, average_precision
from lossalign.metrics.registry import METRICS, as_metric, metric_named
from lossalign.metrics.sensitivity import class_sensitivity
from lossalign.metrics.topk import TopKError, top_k_error

__all__ = [
    "AUCPR",
    "AUROC",
    "METRICS",
    "BalancedError",
    "ClassTotals",
    "ConfusionMetric",
    "ErrorRate",
    "FunctionMetric",
    "MacroF1",
    "MeanCost",
    "MeanMetric",
    "Metric",
    "PipelineMetric",
    "TopKError",
    "TorchMetric",
    "TotalsMetric",
    "WorstClassRecall",
    "as_metric",
    "auroc",
    "average_precision",
    "class_sensitivity",
    "confusion_counts",
    "error",
    "metric_named",
    "over_children",
    "top_k_error",
]
