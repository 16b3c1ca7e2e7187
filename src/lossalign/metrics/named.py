"""Metrics from names, torchmetrics objects and functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from lossalign.core import InputError, import_plug
from lossalign.metrics.adapters import FunctionMetric, PipelineMetric, TorchMetric, TorchMetricLike
from lossalign.metrics.base import Metric
from lossalign.metrics.registry import METRICS, registered_metric


def metric_named(name: str, num_classes: int | None = None) -> Metric:
    """The metric of that name.

    Args:
        name: a key of ``METRICS``; ``mean-cost:FILE.csv`` or ``.npy`` for a cost matrix; ``recall@1,10,100`` or
            ``tar@far=0.01`` with numbers of your own; or ``module:attribute`` for a metric of your own: a ``Metric``
            class or instance, or a function that carries ``higher_is_better``.
        num_classes: if given, a metric that does not fit it is refused here, before training.

    Example:
        >>> metric_named("balanced-error").higher_is_better
        False
    """
    metric = registered_metric(name)
    if metric is None:
        if ":" not in name:
            raise METRICS.unknown(name)
        return _imported(name, num_classes)
    if num_classes is not None:
        _check_fit(metric, num_classes)
    return metric


def as_metric(metric: object, higher_is_better: bool | None = None) -> Metric | PipelineMetric:
    """``metric`` in any of its forms, as a metric.

    Args:
        metric: one of ours; a ``torchmetrics.Metric``; a function ``(outputs, targets) -> float``; a function whose
            parameters are called ``(model, loader)``; or a name, see ``metric_named``.
        higher_is_better: the direction of a metric that has no ``higher_is_better`` of its own.

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
                "has its own direction."
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


def _is_pipeline(fn: Callable[..., object]) -> bool:
    try:
        return list(inspect.signature(fn).parameters)[:2] == ["model", "loader"]
    except ValueError:  # builtins without a signature
        return False


def _imported(name: str, num_classes: int | None) -> Metric:
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
    if num_classes is None:
        return metric
    try:
        metric(torch.eye(num_classes), torch.arange(num_classes))
    except InputError:
        raise
    except Exception as error:  # anything the user's metric raises
        raise InputError(
            f"metric {name!r} failed on outputs [{num_classes}, {num_classes}]: {type(error).__name__}: {error}"
        ) from error
    return metric


def _check_fit(metric: Metric, num_classes: int) -> None:
    """Score outputs of ``num_classes`` classes, so that a metric that cannot do so raises before training."""
    metric(torch.zeros(1, num_classes), torch.zeros(1, dtype=torch.long))
