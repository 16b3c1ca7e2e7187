"""Children spread over processes, GPUs and machines: each rank trains some, all ranks get all results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lossalign.children.base import Children, Weights, check_state, copied
from lossalign.core import Ranks


class DistributedChildren(Children):
    """N children of which this rank trains a shard; every method is called by all ranks, in the same order.

    Results are the same on all ranks, bit for bit, so controllers and selection run on every rank and decide alike.
    With the sequential engine, results equal those of one process with all children.

    Args:
        make: makes this rank's children from their rows in the population.
        count: N, the number of children on all ranks.
        ranks: the ranks of the run.
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
        """Train this rank's children; return the mean losses of all [N]."""
        losses = self.ranks.guarded(lambda: self.local.advance(iterations, phi[self._mine]))
        self.iteration = self.local.iteration
        return self.ranks.gather(losses, self._sizes)

    def outputs(self, inputs: Sequence[Tensor], weights: Weights) -> Tensor:
        """Outputs of every child [N, V, …], each computed on the rank that trains it."""
        outputs = self.ranks.guarded(lambda: self.local.outputs(inputs[self._mine], weights))
        return self.ranks.gather(outputs, self._sizes)

    def keep_best(self, better: Tensor) -> None:
        """Keep the best weights of this rank's children."""
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
        """Load a training state into one child, on the rank that trains it."""
        if self._owner(child) == self.ranks.rank:
            self.local.load_training_state(child - self._mine.start, state)

    def release_memory(self) -> None:
        """Free this rank's memory; see ``Children.release_memory``."""
        self.local.release_memory()

    def _owner(self, child: int) -> int:
        return next(rank for rank, rows in enumerate(self._shards) if child < rows.stop)

    def state_dict(self) -> dict[str, Any]:
        """The state of all children on rank 0, as of one process; on other ranks it has no members."""
        state = self.ranks.guarded(self.local.state_dict)
        return {**state, "members": self.ranks.collect(copied(state["members"], "cpu"))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly from the state of all children, saved by any number of ranks."""
        check_state(state, self.count)
        self.local.load_state_dict({**state, "members": state["members"][self._mine]})
        self.iteration = self.local.iteration
