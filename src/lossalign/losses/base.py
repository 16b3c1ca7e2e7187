"""What a loss must offer for its parameters to be moved while a model trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lossalign.core import ParameterSpec

if TYPE_CHECKING:
    from typing_extensions import Self


class AdaptiveLoss(ABC):
    """A loss with parameters Φ, written for one child.

    Subclass it, set ``spec`` and ``num_statistics``, and write three methods; ``docs/losses.md`` has a worked example.
    The first two must be pure tensor code without data-dependent shapes, so that engines can lift them over children
    with ``torch.func.vmap``; the first need not if ``vectorised`` says so.

    Attributes:
        spec: the parameters, in groups, with start, range and step.
        num_statistics: S, how many statistics describe one parameter.
        vectorised: True if ``__call__`` is such code; False and engines train one child after another.
    """

    spec: ParameterSpec
    num_statistics: int
    vectorised: bool = True

    @cached_property
    def classes(self) -> Tensor:
        """``spec.classes`` [P, 2], where :meth:`to` has put them."""
        return self.spec.classes

    def to(self, device: torch.device | str) -> Self:
        """Move all tensors of the loss to ``device``, in place: a step captured on a GPU may copy nothing to it."""
        for name, value in {"classes": self.classes, **vars(self)}.items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self

    @abstractmethod
    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of every example [B] of one child under ``phi`` [P]."""

    @abstractmethod
    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """S(f, D_val): what the validation outputs say about each parameter [P, S], of order one."""

    @abstractmethod
    def check_targets(self, targets: Tensor, name: str) -> None:
        """Refuse labels this loss cannot use; ``name`` says whose they are, e.g. ``"val_loader"``."""
