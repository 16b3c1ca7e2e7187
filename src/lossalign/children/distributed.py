"""Children spread over processes, GPUs and machines: each rank trains its neighbours, all see everybody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lossalign.children.base import Children, Weights, check_state, copied
from lossalign.core import Ranks


class DistributedChildren(Children):
    """N children of which this rank trains a shard; every method is called by all ranks, in the same order.

    What it returns is the same on all ranks, bit for bit, so that whoever decides from it (controllers, selection) may
    run on every rank alike. With the sequential engine the numbers are those of one process with all children.

    Args:
        make: makes this rank's children, given which rows of the population they are.
        count: N, children of all ranks.
        ranks: who takes part.
    """

    def __init__(self, make: Callable[[slice], Children], count: int, ranks: Ranks) -> None:
        self.count, self.ranks = count, ranks
        self._shards = ranks.shards(count)
        self._mine = self._shards[ranks.rank]
        self._sizes = [part.stop - part.start for part in self._shards]
        self.local = make(self._mine)
        self.engine = self.local.engine
        self.iteration = self.local.iteration

    def advance(self, iterations: int, phi: Tensor) -> Tensor:
        """Train this rank's children; the mean losses of all [N]."""
        losses = self.ranks.guarded(lambda: self.local.advance(iterations, phi[self._mine]))
        self.iteration = self.local.iteration
        return self.ranks.gather(losses, self._sizes)

    def outputs(self, inputs: Sequence[Tensor], weights: Weights) -> Tensor:
        """Outputs of every child [N, V, …], each computed where the child lives."""
        outputs = self.ranks.guarded(lambda: self.local.outputs(inputs[self._mine], weights))
        return self.ranks.gather(outputs, self._sizes)

    def keep_best(self, better: Tensor) -> None:
        """Each rank keeps the best weights of its own."""
        self.local.keep_best(better[self._mine])

    def child_state(self, child: int, weights: Weights) -> dict[str, Tensor]:
        """A plain ``state_dict`` of one child, on the CPU of every rank."""
        here = child - self._mine.start
        state: dict[str, Tensor] = self.ranks.on(
            self._owner(child), lambda: copied(self.local.child_state(here, weights), "cpu")
        )
        return state

    def training_state(self, child: int) -> dict[str, dict[str, Tensor]]:
        """Weights, averages and momenta of one child, on the CPU of every rank."""
        here = child - self._mine.start
        state: dict[str, dict[str, Tensor]] = self.ranks.on(
            self._owner(child), lambda: copied(self.local.training_state(here), "cpu")
        )
        return state

    def load_training_state(self, child: int, state: dict[str, dict[str, Tensor]]) -> None:
        """Let one child go on from there, on the rank where it lives."""
        if self._owner(child) == self.ranks.rank:
            self.local.load_training_state(child - self._mine.start, state)

    def rest(self) -> None:
        """Each rank gives back its own memory."""
        self.local.rest()

    def _owner(self, child: int) -> int:
        return next(rank for rank, rows in enumerate(self._shards) if child < rows.stop)

    def state_dict(self) -> dict[str, Any]:
        """The state of all children on rank 0, as one process would give it; elsewhere without members."""
        state = self.ranks.guarded(self.local.state_dict)
        return {**state, "members": self.ranks.collect(copied(state["members"], "cpu"))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly from the state of all children, saved by any number of ranks."""
        check_state(state, self.count)
        self.local.load_state_dict({**state, "members": state["members"][self._mine]})
        self.iteration = self.local.iteration
