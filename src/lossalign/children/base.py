"""The interface of every engine: N children with their own weights, data order and Φ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from lossalign.core import InputError

LossFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(outputs, targets, phi) → per-example losses [B], for one child."""

Losses = LossFunction | Sequence[LossFunction]
"""The loss of all children, or one for each."""

Weights = Literal["raw", "averaged", "best"]
"""The current weights, their moving average, or the average that was best on the selection split."""

CHUNK = 1000
"""Number of samples in one forward pass of an evaluation."""


class Stream(Protocol):
    """The batch stream of a child."""

    def next(self) -> tuple[Tensor, Tensor]:
        """The next batch: inputs and targets."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position of the stream."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``."""
        ...


@dataclass(frozen=True)
class Member:
    """A child before training.

    Args:
        model: its initialised network; the engine trains a copy.
        seed: seed of random layers such as dropout.
        stream: makes its batch stream; children with the same ``stream`` are paired: they get the same batches, which
            are drawn once for all of them.
    """

    model: nn.Module
    seed: int
    stream: Callable[[], Stream]


Members = Sequence[Member]
Device = torch.device | str


@dataclass(frozen=True)
class Block:
    """Consecutive children that train under one loss."""

    rows: slice
    loss: LossFunction


def blocks(losses: Losses, children: int) -> list[Block]:
    """The children by loss, in their order.

    Example:
        >>> one, other = torch.add, torch.mul
        >>> [(block.rows.start, block.rows.stop) for block in blocks([one, one, other], 3)]
        [(0, 2), (2, 3)]
    """
    if callable(losses):
        return [Block(slice(0, children), losses)]
    assert len(losses) == children, "one loss for each child"
    starts = [i for i in range(children) if i == 0 or losses[i] != losses[i - 1]]
    return [Block(slice(a, b), losses[a]) for a, b in zip(starts, [*starts[1:], children], strict=True)]


class Children(ABC):
    """N models that train side by side; one model is a population of one."""

    count: int
    iteration: int
    engine: str = ""
    """Description of the engine, and why a faster one is not used."""

    @abstractmethod
    def advance(self, iterations: int, phi: Tensor) -> Tensor:
        """Train every child for ``iterations`` under its own ``phi`` [N, P]; return the mean training losses [N]."""

    @abstractmethod
    def outputs(self, inputs: Sequence[Tensor], weights: Weights) -> Tensor:
        """Outputs of every child in eval mode on its own inputs [N, V, …]; children may share one tensor."""

    @abstractmethod
    def keep_best(self, better: Tensor) -> None:
        """Keep the current averaged weights as the best ones of the children where ``better`` [N] is true."""

    @abstractmethod
    def child_state(self, child: int, weights: Weights) -> dict[str, Tensor]:
        """A plain ``state_dict`` of one child."""

    @abstractmethod
    def training_state(self, child: int) -> dict[str, dict[str, Tensor]]:
        """The training state of one child: ``weights``, ``averaged`` and ``momenta`` by name."""

    @abstractmethod
    def load_training_state(self, child: int, state: dict[str, dict[str, Tensor]]) -> None:
        """Load a training state into one child, which keeps its own batches, random state and best weights."""

    def inherit(self, parents: Tensor) -> None:
        """Copy the training state of child ``parents[i]`` into every child i."""
        copies = [(child, parent) for child, parent in enumerate(parents.tolist()) if parent != child]
        given = {parent: copied(self.training_state(parent)) for _, parent in copies}
        for child, parent in copies:
            self.load_training_state(child, given[parent])

    @abstractmethod
    def release_memory(self) -> None:
        """Free memory that only training needs; ``advance`` allocates it again."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume exactly, in the same form for every engine.

        ``iteration``, and ``members``: for every child its ``weights``, ``averaged`` and ``best`` (plain
        ``state_dict``s), its ``momenta`` by name, its ``stream`` and its ``rng``.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly from ``state``."""


def copied(value: Any, device: torch.device | str | None = None) -> Any:
    """Nested dictionaries and lists with their tensors copied (to ``device``): saving or sending a slice of a stacked
    tensor would include all of it."""
    if isinstance(value, Tensor):
        return value.detach().to(device or value.device, copy=True)
    if isinstance(value, dict):
        return {name: copied(part, device) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(copied(part, device) for part in value)
    return value


def check_state(state: dict[str, Any], count: int) -> None:
    """Raise ``InputError`` if the state is of another number of children."""
    found = len(state["members"])
    if found != count:
        raise InputError(f"state: it holds {found} children, this run has {count}; resume with the same number.")


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bfloat16 autocast, or nothing."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


class IsolatedRng:
    """Torch's global random stream, saved and restored for one child: layers such as dropout use no other."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        with self._forked():
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed GPUs that are not forked
            if self._cuda:
                torch.cuda.manual_seed(seed)
            self._save()

    def _forked(self) -> AbstractContextManager[None]:
        devices = [torch.cuda.current_device()] if self._cuda else []
        return torch.random.fork_rng(devices)

    def _save(self) -> None:
        self.state = {"cpu": torch.get_rng_state()}
        if self._cuda:
            self.state["cuda"] = torch.cuda.get_rng_state()

    def run(self, work: Callable[[], Tensor]) -> Tensor:
        """Run ``work()`` on this child's stream; the global stream is left as it was."""
        with self._forked():
            torch.set_rng_state(self.state["cpu"])
            if self._cuda:
                torch.cuda.set_rng_state(self.state["cuda"])
            result = work()
            self._save()
        return result
