"""The interface of a metric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol, final

from torch import Tensor


class Metric(ABC):
    """A metric of a model's outputs on D_val, written for one child.

    Subclass it, set the three attributes, and write ``__call__``.

    Attributes:
        name: its name in tables and figures.
        higher_is_better: its direction.
        vectorised: whether ``__call__`` is pure tensor code without data-dependent shapes, which ``torch.func.vmap``
            can lift over children; if False, it is called once for each child.
        percent: whether it is shown in percent.
        ranks: whether it ranks the samples of each class by their scores, so that an ensemble averages ranks.
        pairwise: whether it compares samples with each other; a large set is then scored one child at a time.
        tie_breaker: for a metric that often plateaus, another one of the same direction and scale that does not. It is
            added to the error that the controller observes; selection and reports do not use it.
    """

    name: str
    higher_is_better: bool
    vectorised: bool
    percent: bool = False
    ranks: bool = False
    pairwise: bool = False
    tie_breaker: Metric | None = None

    @abstractmethod
    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric, a scalar tensor, of outputs [V, C] against labels [V]."""


class MeanMetric(Metric):
    """A metric that is a mean over samples; its sensitivity is cheap for any number of classes."""

    @abstractmethod
    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The value of every sample [V], from outputs [V, C] and labels [V]."""

    @final
    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean, a scalar, of outputs [V, C] against labels [V]."""
        return self.each(outputs, targets).mean(-1)


class Directed(Protocol):
    """Anything with a direction."""

    @property
    def higher_is_better(self) -> bool:
        """True if more is better."""
        ...


def error(metric: Directed, value: Tensor) -> Tensor:
    """``value`` of ``metric`` as an error, M of Eq. 5: lower is better for every metric.

    Example:
        >>> import torch
        >>> from lossalign.metrics import AUROC
        >>> error(AUROC(), torch.tensor(0.75))
        tensor(-0.7500)
    """
    return -value if metric.higher_is_better else value
