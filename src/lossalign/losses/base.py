"""The interface of a loss whose parameters Φ are moved while a model trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lossalign.core import ParameterSpec

if TYPE_CHECKING:
    from typing_extensions import Self


class AdaptiveLoss(ABC):
    """A loss with parameters Φ, written for one child.

    Subclass it, set ``spec`` and ``num_statistics``, and write ``__call__``, ``statistics`` and ``check_targets``;
    ``docs/own-loss.md`` has a worked example. The first two must be pure tensor code without data-dependent shapes, so
    that engines can lift them over children with ``torch.func.vmap``. With ``vectorised = False``, ``__call__`` need
    not be.

    Attributes:
        spec: the parameters, in groups, with start, range and beta.
        num_statistics: S, the number of statistics of one parameter.
        vectorised: whether vmap can lift ``__call__``; if False, children train one after another.
        statistics_name: given beside ``statistics``, the name under which policies know them; it must not change, so
            that policies learned before still fit. Empty: the name of the class.
    """

    spec: ParameterSpec
    num_statistics: int
    vectorised: bool = True
    statistics_name: str = ""

    @cached_property
    def classes(self) -> Tensor:
        """``spec.classes`` [P, 2], on the device of the loss."""
        return self.spec.classes

    def to(self, device: torch.device | str) -> Self:
        """Move all tensors of the loss to ``device``, in place: a captured iteration cannot copy from the CPU."""
        for name, value in {"classes": self.classes, **vars(self)}.items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self

    @abstractmethod
    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every example [B] of one child under ``phi`` [P]."""

    @abstractmethod
    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """S(f, D_val): statistics of the validation outputs for each parameter [P, S], of order one."""

    @abstractmethod
    def check_targets(self, targets: Tensor, name: str) -> None:
        """Raise ``InputError`` for labels that this loss cannot use; ``name`` says where they are from."""


@dataclass(frozen=True, repr=False)  # vmap asks for the repr of a callable, and a compiler cannot trace a dataclass's
class Narrowed:
    """A loss beside one of more parameters: it is given Φ of that length, and reads the first P.

    Args:
        loss: the loss of P parameters.
    """

    loss: AdaptiveLoss

    @property
    def vectorised(self) -> bool:
        """Whether vmap can lift it."""
        return self.loss.vectorised

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every example [B] of one child under the first P of ``phi``."""
        return self.loss(outputs, targets, phi[: self.loss.spec.size])
