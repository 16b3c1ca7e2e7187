"""Metrics by name, and whatever else may be handed in as one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lossalign.core import InputError, import_plug
from lossalign.metrics.adapters import FunctionMetric, PipelineMetric, TorchMetric, TorchMetricLike
from lossalign.metrics.base import Metric
from lossalign.metrics.confusion import BalancedError, ErrorRate, MacroF1, MeanCost, WorstClassRecall
from lossalign.metrics.ranking import AUCPR, AUROC
from lossalign.metrics.recall_at_k import MAPAtR, RecallAtK, RPrecision
from lossalign.metrics.topk import TopKError
from lossalign.metrics.verification import EqualErrorRate, TARAtFAR, VerificationAccuracy


def read_costs(path: str | Path) -> MeanCost:
    """``MeanCost`` with the matrix in a ``.csv`` (commas, no header) or ``.npy`` file."""
    path = Path(path)
    readers: dict[str, Callable[[Path], Any]] = {
        ".csv": partial(np.loadtxt, delimiter=",", ndmin=2),
        ".npy": np.load,
    }
    if path.suffix not in readers:
        raise InputError(f"mean-cost: {str(path)!r} must end in .csv or .npy.")
    try:
        costs = torch.as_tensor(readers[path.suffix](path), dtype=torch.float32)
    except (OSError, ValueError, TypeError) as cause:
        raise InputError(f"mean-cost: {str(path)!r} cannot be read as a matrix of numbers: {cause}") from cause
    return MeanCost(costs)


METRICS: dict[str, Callable[..., Metric]] = {
    "error": ErrorRate,
    "balanced-error": BalancedError,
    "top5-error": partial(TopKError, 5),
    "macro-f1": MacroF1,
    "worst-recall": WorstClassRecall,
    "mean-cost": read_costs,
    "aucpr": AUCPR,
    "aucpr-binary": partial(AUCPR, "binary"),
    "auroc": AUROC,
    "auroc-binary": partial(AUROC, "binary"),
    "recall@1": RecallAtK,
    "map@r": MAPAtR,
    "r-precision": RPrecision,
    "verification": VerificationAccuracy,
    "tar@far=0.001": partial(TARAtFAR, 0.001),
    "eer": EqualErrorRate,
}
"""What each name on the command line makes."""

_WITH_FILE = {"mean-cost": "mean-cost:costs.csv"}

_WITH_NUMBERS: dict[str, tuple[Callable[[str], Metric], str]] = {
    "recall@": (lambda ks: RecallAtK([int(k) for k in ks.split(",")]), "recall@1,10,100"),
    "tar@far=": (lambda far: TARAtFAR(float(far)), "tar@far=0.001"),
}
"""How a name begins, what its numbers make, and an example."""


def metric_named(name: str, num_classes: int | None = None) -> Metric:
    """The metric of that name.

    Args:
        name: a key of ``METRICS``; ``mean-cost:FILE.csv`` or ``.npy`` for a cost matrix; ``recall@1,10,100`` or
            ``tar@far=0.01`` with numbers of your own; or ``module:attribute`` for a metric of your own: a ``Metric``
            class or instance, or a function that carries ``higher_is_better``.
        num_classes: if given, a metric that does not fit it is refused here and not when training has begun.

    Example:
        >>> metric_named("balanced-error").higher_is_better
        False
    """
    known, _, rest = name.partition(":")
    metric = _with_numbers(name)
    if metric is None:
        if known not in METRICS:
            if not rest:
                raise InputError(
                    f"metric {name!r} is unknown; choose from {', '.join(METRICS)}, or give module:attribute."
                )
            return _imported(name, num_classes or 2)
        if bool(rest) != (known in _WITH_FILE):
            raise InputError(f"metric {name!r}: write {_WITH_FILE.get(known, known)!r}.")
        metric = METRICS[known](rest) if rest else METRICS[known]()
    if num_classes is not None:
        _check_fit(metric, num_classes)
    return metric


def as_metric(metric: object, higher_is_better: bool | None = None) -> Metric | PipelineMetric:
    """Whatever was handed in, as a metric.

    Args:
        metric: one of ours; a ``torchmetrics.Metric``; a function ``(outputs, targets) -> float``; a function whose
            parameters are called ``(model, loader)``; or a name, see ``metric_named``.
        higher_is_better: the direction of a metric that does not say its own.

    Example:
        >>> as_metric("error").name
        'error'
        >>> as_metric(lambda model, loader: 0.0, higher_is_better=True)
        <lossalign.metrics.adapters.PipelineMetric object at ...>
    """
    if isinstance(metric, str):
        metric = metric_named(metric)
    if isinstance(metric, Metric | PipelineMetric):
        if higher_is_better is not None and higher_is_better != metric.higher_is_better:
            raise InputError(
                f"higher_is_better={higher_is_better} contradicts metric {metric.name!r}; leave it out, as this metric "
                "says its own direction."
            )
        return metric
    if isinstance(metric, type):
        raise InputError(f"metric is the class {metric.__name__}; pass an instance, e.g. {metric.__name__}().")
    if isinstance(metric, TorchMetricLike):
        return TorchMetric(metric, higher_is_better)
    if not callable(metric):
        raise InputError(
            f"metric is of type {type(metric).__name__}; pass a lossalign or torchmetrics metric, a function "
            "(outputs, targets) -> float, or a name."
        )
    direction: Any = getattr(metric, "higher_is_better", None) if higher_is_better is None else higher_is_better
    wrap = PipelineMetric if _is_pipeline(metric) else FunctionMetric
    return wrap(metric, higher_is_better=direction)


def _with_numbers(name: str) -> Metric | None:
    """The metric whose name carries numbers; None if this is no such name."""
    for start, (make, example) in _WITH_NUMBERS.items():
        if name.startswith(start):
            try:
                return make(name.removeprefix(start))
            except InputError:
                raise
            except ValueError as cause:
                raise InputError(f"metric {name!r}: write its numbers as in {example!r}.") from cause
    return None


def _is_pipeline(fn: Callable[..., object]) -> bool:
    try:
        return list(inspect.signature(fn).parameters)[:2] == ["model", "loader"]
    except ValueError:  # builtins without a signature
        return False


def _imported(name: str, num_classes: int) -> Metric:
    found = import_plug("metric", name)
    if isinstance(found, type):
        try:
            found = found()
        except TypeError as cause:
            raise InputError(f"metric {name!r}: calling it failed ({cause}); name an instance instead.") from cause
    metric = as_metric(found)
    if not isinstance(metric, Metric):
        raise InputError(
            f"metric {name!r} is a (model, loader) pipeline; by name only metrics of (outputs, targets) can be used."
        )
    try:
        metric(torch.eye(num_classes), torch.arange(num_classes))
    except InputError:
        raise
    except Exception as error:  # whatever the user's metric raises
        raise InputError(
            f"metric {name!r} failed on outputs [{num_classes}, {num_classes}]: {type(error).__name__}: {error}"
        ) from error
    return metric


def _check_fit(metric: Metric, num_classes: int) -> None:
    """Score one sample of a model with so many classes: a metric that cannot, says why."""
    metric(torch.zeros(1, num_classes), torch.zeros(1, dtype=torch.long))
