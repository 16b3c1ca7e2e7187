"""The parts of a population: children of one network that train side by side, each part under a loss of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lossalign.core import Controller, InputError, Observation
from lossalign.losses import AdaptiveLoss


@dataclass(frozen=True)
class Owner:
    """A controller, and the children whose Φ it moves.

    Args:
        controller: of n children.
        rows: their rows in the population [n].
        watches: whether it reads statistics and sensitivity; one that does not sees NaN there.
    """

    controller: Controller
    rows: Tensor
    watches: bool = True

    def look_at_errors(self, errors: Tensor, statistics: int, progress: float) -> Observation:
        """What a controller sees that does not watch: the errors [N] and the time."""
        phi = self.controller.phi
        unknown = torch.full((1, 1, 1), torch.nan, device=phi.device)
        return Observation(
            error=errors[self.rows],
            statistics=unknown.expand(*phi.shape, statistics),
            sensitivity=unknown.expand(*phi.shape, 2),
            progress=progress,
        )


@dataclass(frozen=True)
class Part:
    """Neighbouring children of a population that train under one loss, and the controllers that move their Φ.

    Args:
        loss: gives statistics (the children hold it too, to train under).
        owners: each child has one.
    """

    loss: AdaptiveLoss
    owners: tuple[Owner, ...]

    @classmethod
    def of(cls, loss: AdaptiveLoss, controllers: Sequence[Controller], first: int = 0) -> Part:
        """A part from row ``first`` on, whose controllers own neighbouring children, in this order.

        Example:
            >>> from lossalign.losses import AlignedLoss
            >>> from lossalign.rivals import fixed
            >>> spec = AlignedLoss(2).spec
            >>> [owner.rows.tolist() for owner in Part.of(AlignedLoss(2), [fixed(spec, 2), fixed(spec, 1)]).owners]
            [[0, 1], [2]]
        """
        owners = []
        for controller in controllers:
            owners.append(Owner(controller, first + torch.arange(len(controller.phi))))
            first += len(controller.phi)
        return cls(loss, tuple(owners))

    @property
    def rows(self) -> slice:
        """The rows of its children in the population."""
        rows = torch.cat([owner.rows for owner in self.owners]).sort().values
        first, end = int(rows[0]), int(rows[-1]) + 1
        if not torch.equal(rows, torch.arange(first, end)):
            raise InputError(f"controllers own the children {rows.tolist()}; give each of a part's children one owner.")
        return slice(first, end)

    def phi(self, device: torch.device) -> Tensor:
        """Φ of its children, in the order of their rows [n, P]."""
        if len(self.owners) == 1:
            return self.owners[0].controller.phi.to(device)
        rows = torch.cat([owner.rows for owner in self.owners])
        return torch.cat([owner.controller.phi.to(device) for owner in self.owners])[rows.argsort().to(device)]

    def parents(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of children that may copy weights, and the rows of those whose weights they copy."""
        for owner in self.owners:
            if owner.controller.parents is not None:
                yield owner.rows, owner.rows[owner.controller.parents]
