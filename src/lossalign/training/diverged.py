"""Children whose numbers stop being finite: set aside, restored from their best weights, or retired."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lossalign.children import Children

_STATE = ("failed", "lost", "good", "restored", "retired")


class Diverged:
    """Which of N children are not finite, and what becomes of them.

    Args:
        children: who trains.
        restores: how often a child is restored before it is retired; 0: it stays set aside.
    """

    def __init__(self, children: Children, restores: int) -> None:
        nobody = torch.zeros(children.count, dtype=torch.bool)
        self._children, self._restores = children, restores
        self.failed = nobody.clone()
        """Who was ever not finite [N]."""
        self.lost = nobody.clone()
        """Who is set aside: judged as if all outputs were zero, until it is restored or inherits a finite one [N]."""
        self.good = nobody.clone()
        """Who has best weights that are finite [N]."""
        self.restored = torch.zeros(children.count, dtype=torch.int64)
        """How often each was restored [N]."""
        self.retired = nobody.clone()
        """Who was lost once too often [N]."""

    def set_aside(self, bad: Tensor) -> None:
        """Children [N] that are not finite are lost, if another one is left."""
        lost = self.lost | bad
        if not lost.all():
            self.lost, self.failed = lost, self.failed | bad

    def may_be_best(self, better: Tensor) -> Tensor:
        """Which of the children that measured better than before [N] may keep their weights."""
        better = better & ~(self.lost & self.good)
        self.good = self.good | (better & ~self.lost)
        return better

    def inherit(self, parents: Tensor) -> None:
        """Children have copied the weights of ``parents`` [N]."""
        self.lost = self.lost[parents]
        self.retired = self.retired & self.lost

    def restore(self) -> tuple[Tensor, Tensor]:
        """Give lost children their best weights back, without momentum.

        Returns:
            Who was restored, and who was retired, as its best weights are not finite or it was lost once too often [N].
        """
        new = self.lost & ~self.retired if self._restores else torch.zeros_like(self.lost)
        back = new & self.good & (self.restored < self._restores)
        for child in back.nonzero().flatten().tolist():
            best, state = self._children.child_state(child, "best"), self._children.training_state(child)
            weights = {part: {name: best[name] for name in state[part]} for part in ("weights", "averaged")}
            momenta = {name: torch.zeros_like(momentum) for name, momentum in state["momenta"].items()}
            self._children.load_training_state(child, {**weights, "momenta": momenta})
        self.restored, self.lost = self.restored + back, self.lost & ~back
        self.retired = self.retired | (new & ~back)
        return back, new & ~back

    def state_dict(self) -> dict[str, Any]:
        """All of it, as tensors."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``."""
        for name in _STATE:
            setattr(self, name, state[name])
