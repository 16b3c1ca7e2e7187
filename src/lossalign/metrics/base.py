"""What a metric must offer to be a reward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol, final

from torch import Tensor


class Metric(ABC):
    """A number that a model is judged by, from its outputs on D_val; written for one child.

    Subclass it, set the three attributes, and write ``__call__``.

    Attributes:
        name: what tables and figures call it.
        higher_is_better: its direction; nothing else in the project asks which metric it is.
        vectorised: True if ``__call__`` is pure tensor code without data-dependent shapes, which ``torch.func.vmap``
            can lift over children; False and engines call it once for each child.
        percent: whether people read it in percent.
        pairwise: whether it compares samples with each other; a large set is then scored child by child.
        finer: for a metric that often stands still, another one of the same direction and scale that does not; it
            decides between children that this one cannot tell apart. It is never selected by, nor reported.
    """

    name: str
    higher_is_better: bool
    vectorised: bool
    percent: bool = False
    pairwise: bool = False
    finer: Metric | None = None

    @abstractmethod
    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric, a scalar tensor, of outputs [V, C] against labels [V]."""


class MeanMetric(Metric):
    """A metric that is a mean over samples: what vanishing errors would gain is a sum, for any number of classes."""

    @abstractmethod
    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What every sample contributes [V], from outputs [V, C] and labels [V]."""

    @final
    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean, a scalar, of outputs [V, C] against labels [V]."""
        return self.each(outputs, targets).mean(-1)


class Directed(Protocol):
    """Anything that says which way is better."""

    @property
    def higher_is_better(self) -> bool:
        """True if more is better."""
        ...


def error(metric: Directed, value: Tensor) -> Tensor:
    """``value`` of ``metric`` as an error, M of Eq. 5: lower is better whatever the metric.

    Example:
        >>> import torch
        >>> from lossalign.metrics import AUROC
        >>> error(AUROC(), torch.tensor(0.75))
        tensor(-0.7500)
    """
    return -value if metric.higher_is_better else value
