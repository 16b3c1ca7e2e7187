"""The order of examples in batches: all of them, reshuffled every epoch, or a few of each of some classes."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lossalign.core import InputError


class Order(Protocol):
    """Endless batches of example indices, drawn from a CPU generator that is not part of the state."""

    batch_size: int
    """B, the examples in a batch."""

    def take(self, most: int) -> Tensor:
        """Example indices [b, B] of the next 1 to ``most`` batches; random numbers are drawn only for the first."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The position of the order, in tensors that are not written to afterwards."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Resume from ``state``, which an order over the same examples gave."""
        ...


class Shuffled:
    """All examples, reshuffled every epoch; an epoch's remainder that does not fill a batch is dropped.

    Args:
        number: number of examples.
        batch_size: examples in a batch; all of them if there are fewer.
        generator: a CPU generator.
    """

    def __init__(self, number: int, batch_size: int, generator: torch.Generator) -> None:
        self.batch_size, self._number, self._generator = min(batch_size, number), number, generator
        self._shuffle()

    def _shuffle(self) -> None:
        self._permutation = torch.randperm(self._number, generator=self._generator)
        self._position = 0

    def take(self, most: int) -> Tensor:
        """Example indices [b, B] of the next 1 to ``most`` batches, all of one epoch."""
        if self._position + self.batch_size > self._number:
            self._shuffle()
        batches = min(most, (self._number - self._position) // self.batch_size)
        taken = self._permutation[self._position : self._position + batches * self.batch_size]
        self._position += len(taken)
        return taken.view(batches, self.batch_size)

    def state(self) -> dict[str, Tensor]:
        """The epoch's order (not a copy; it is never written to) and the position in it."""
        return {"permutation": self._permutation, "position": torch.tensor(self._position)}

    def load(self, state: dict[str, Tensor]) -> None:
        """Resume from ``state``, which an order over the same examples gave."""
        _check_same("examples", len(state["permutation"]), self._number)
        self._permutation = state["permutation"].to("cpu", copy=True)
        self._position = int(state["position"])


class PerClass:
    """Batches of P different classes with M examples of each, class after class.

    Classes come in rounds: each once, in an order reshuffled every round. A class's examples are reshuffled whenever
    fewer than M are left; a class that has fewer than M repeats them. Classes without examples are left out, and
    classes with one example if M is more than 1, as they have no pairs to compare.

    Args:
        targets: class of each example [n].
        batch_size: P · M.
        per_class: M.
        generator: a CPU generator.

    Example:
        >>> targets = torch.tensor([0, 0, 0, 1, 2, 2])
        >>> targets[PerClass(targets, 4, 2, torch.Generator()).take(1)].sort().values
        tensor([[0, 0, 2, 2]])
    """

    def __init__(self, targets: Tensor, batch_size: int, per_class: int, generator: torch.Generator) -> None:
        if per_class < 1:
            raise InputError(f"per_class={per_class}: a batch needs at least 1 example of each of its classes.")
        if batch_size % per_class:
            raise InputError(
                f"batch_size={batch_size}, per_class={per_class}: batches hold whole classes; give a batch_size that "
                "per_class divides."
            )
        counts, least = torch.bincount(targets.cpu()), min(2, per_class)
        self._sizes, self._in_batch = counts[counts >= least], batch_size // per_class
        present = len(self._sizes)
        if self._in_batch > present:
            raise InputError(
                f"batch_size={batch_size}, per_class={per_class}: such a batch holds {self._in_batch} classes, but "
                f"{present} have {least} examples or more; give a batch_size of at most {present * per_class}, or a "
                "larger per_class."
            )
        self.batch_size, self._per_class, self._generator = batch_size, per_class, generator
        self._starts = self._sizes.cumsum(0) - self._sizes
        self._class_of = torch.arange(present).repeat_interleave(self._sizes)
        examples = targets.cpu().argsort(stable=True)
        self._examples = examples[counts[targets.cpu()[examples]] >= least]
        self._taken = self._sizes.clone()
        self._classes = torch.empty(0, dtype=torch.int64)
        self._rows = torch.empty(0, per_class, dtype=torch.int64)

    def take(self, most: int) -> Tensor:
        """Example indices [b, B] of the next 1 to ``most`` batches."""
        if len(self._classes) < self._in_batch:
            self._begin_round()
        batches = min(most, len(self._classes) // self._in_batch)
        number = batches * self._in_batch
        taken, self._rows, self._classes = self._rows[:number], self._rows[number:], self._classes[number:]
        return taken.reshape(batches, self.batch_size)

    def _begin_round(self) -> None:
        """Queue every class once; those that complete the last round's batch differ from the classes in it."""
        shuffled = torch.randperm(len(self._sizes), generator=self._generator)
        others = shuffled[~torch.isin(shuffled, self._classes)]
        first = others[: self._in_batch - len(self._classes)]
        classes = torch.cat([first, shuffled[~torch.isin(shuffled, first)]])
        self._shuffle_examples(self._taken + self._per_class > self._sizes)
        within = (self._taken[:, None] + torch.arange(self._per_class)) % self._sizes[:, None]
        rows = self._examples[self._starts[:, None] + within]
        self._taken = self._taken + self._per_class
        self._classes, self._rows = torch.cat([self._classes, classes]), torch.cat([self._rows, rows[classes]])

    def _shuffle_examples(self, used_up: Tensor) -> None:
        """Put the examples of each class that is ``used_up`` [classes] into a new order."""
        if not used_up.any():
            return
        at = used_up[self._class_of].nonzero().squeeze(1)
        keys = self._class_of[at] + torch.rand(len(at), generator=self._generator, dtype=torch.float64)
        order = at[keys.argsort(stable=True)]
        self._examples = self._examples.index_copy(0, at, self._examples[order])
        self._taken = self._taken.masked_fill(used_up, 0)

    def state(self) -> dict[str, Tensor]:
        """The examples class by class, how many of each class are taken, and the queue: classes and their examples.

        Nothing is a copy; the tensors are never written to.
        """
        return {"examples": self._examples, "taken": self._taken, "classes": self._classes, "rows": self._rows}

    def load(self, state: dict[str, Tensor]) -> None:
        """Resume from ``state``, which an order over the same examples gave."""
        _check_same("examples", len(state["examples"]), len(self._examples))
        _check_same("classes", len(state["taken"]), len(self._sizes))
        _check_same("examples per class", state["rows"].shape[1], self._per_class)
        self._examples, self._taken, self._classes, self._rows = (
            state[name].to("cpu", copy=True) for name in ("examples", "taken", "classes", "rows")
        )


def _check_same(what: str, theirs: int, ours: int) -> None:
    if theirs != ours:
        raise InputError(
            f"state: it is of a stream over {theirs} {what}, but this one has {ours}; load it into a stream over the "
            "same data set, with the same per_class."
        )
