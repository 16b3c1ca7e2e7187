"""Adapters for metrics from elsewhere: torchmetrics objects, plain functions, whole pipelines."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn

from lossalign.core import InputError
from lossalign.metrics.base import Metric


@runtime_checkable
class TorchMetricLike(Protocol):
    """The methods of a ``torchmetrics.Metric`` that are used; the package itself is not imported here."""

    def reset(self) -> None:
        """Forget all samples."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in samples."""

    def compute(self) -> Any:
        """The metric of the samples so far."""


def as_scalar(value: object, name: str) -> Tensor:
    """One real number as a float32 scalar tensor; NaN and inf are allowed here, so that the caller can report the step.

    Example:
        >>> as_scalar(torch.zeros(3), "recall")
        Traceback (most recent call last):
        ...
        lossalign.core.errors.InputError: Metric 'recall' returned a tensor of shape (3,); it must return one number.
    """
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise InputError(
                f"Metric {name!r} returned a {'complex ' * value.is_complex()}tensor of shape {tuple(value.shape)}; "
                "it must return one number."
            )
        return value.detach().reshape(()).float()
    if not isinstance(value, Real):
        raise InputError(f"Metric {name!r} returned {type(value).__name__}; it must return one number.")
    return torch.tensor(float(value))


@final
class TorchMetric(Metric):
    """Any ``torchmetrics.Metric`` that computes one number.

    It uses a copy, which is reset before every call, so that calls are independent and the original is not
    changed. The metric gets all validation outputs at once, as the model returns them.

    Args:
        metric: the object, e.g. ``torchmetrics.CohenKappa(task="multiclass", num_classes=10)``.
        higher_is_better: its direction; read from the metric if not given.
        name: its name; the class name if not given.
    """

    vectorised = False

    def __init__(self, metric: TorchMetricLike, higher_is_better: bool | None = None, name: str | None = None) -> None:
        self.name = type(metric).__name__ if name is None else name
        if higher_is_better is None:
            higher_is_better = getattr(metric, "higher_is_better", None)
        self.higher_is_better = _said(higher_is_better, self.name)
        self._metric: Any = copy.deepcopy(metric)
        # Every process has all its validation outputs: synchronising them would count samples twice.
        if hasattr(self._metric, "sync_on_compute"):
            self._metric.sync_on_compute = False

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric, a scalar, of outputs against labels."""
        if hasattr(self._metric, "to"):
            self._metric = self._metric.to(outputs.device)
        self._metric.reset()
        self._metric.update(outputs.detach(), targets)
        value = as_scalar(self._metric.compute(), self.name).to(outputs.device)
        self._metric.reset()
        return value


@final
class FunctionMetric(Metric):
    """A function ``(outputs, targets) -> float`` or scalar tensor.

    Args:
        fn: the function; called once for each child.
        higher_is_better: its direction.
        name: its name; the function's name if not given.

    Example:
        >>> def largest(outputs, targets):
        ...     return outputs.max()
        >>> metric = FunctionMetric(largest, higher_is_better=True)
        >>> metric.name, metric(torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
        ('largest', tensor(2.))
    """

    vectorised = False

    def __init__(
        self, fn: Callable[[Tensor, Tensor], float | Tensor], *, higher_is_better: bool, name: str | None = None
    ) -> None:
        self.name = _name_of(fn) if name is None else name
        self.higher_is_better = _said(higher_is_better, self.name)
        self._fn = fn

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric, a scalar, of outputs against labels."""
        return as_scalar(self._fn(outputs, targets), self.name).to(outputs.device)


@final
class PipelineMetric:
    """A function ``(model, loader) -> float``, for metrics that need more than outputs: retrieval, decoding, latency.

    Not a ``Metric``: it runs the model itself, so nothing can be lifted or cached.

    Args:
        fn: the function.
        higher_is_better: its direction.
        name: its name; the function's name if not given.

    Example:
        >>> size = PipelineMetric(lambda model, loader: sum(p.numel() for p in model.parameters()),
        ...                       higher_is_better=False, name="size")
        >>> size(nn.Linear(2, 1), [])
        3.0
    """

    def __init__(
        self,
        fn: Callable[[nn.Module, Iterable[Any]], float | Tensor],
        *,
        higher_is_better: bool,
        name: str | None = None,
    ) -> None:
        self.name = _name_of(fn) if name is None else name
        self.higher_is_better = _said(higher_is_better, self.name)
        self._fn = fn

    def __call__(self, model: nn.Module, loader: Iterable[Any]) -> float:
        """The metric of ``model`` on ``loader``."""
        return float(as_scalar(self._fn(model, loader), self.name))


def _said(higher_is_better: bool | None, name: str) -> bool:
    if not isinstance(higher_is_better, bool):
        raise InputError(
            f"Metric {name!r} does not say which way is better; pass higher_is_better=True or higher_is_better=False."
        )
    return higher_is_better


def _name_of(fn: Callable[..., object]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
