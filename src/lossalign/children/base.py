"""Who trains: N children with their own weights, data order and Φ."""

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

Weights = Literal["raw", "averaged", "best"]
"""Today's weights, their moving average, or the average that was best on the selection split."""

CHUNK = 1000
"""Samples in one forward pass of an evaluation."""


class Stream(Protocol):
    """Where a child's batches come from."""

    def next(self) -> tuple[Tensor, Tensor]:
        """The next batch: inputs and targets."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        ...


@dataclass(frozen=True)
class Member:
    """One child to be.

    Args:
        model: its network, freshly initialised; the engine trains a copy.
        seed: children with the same seed see the same batches: paired rivals.
        stream: makes its batch stream.
    """

    model: nn.Module
    seed: int
    stream: Callable[[], Stream]


class Children(ABC):
    """N models training side by side. One network is a population of one."""

    count: int
    iteration: int

    @abstractmethod
    def advance(self, iterations: int, phi: Tensor) -> Tensor:
        """Train every child for ``iterations`` under its own ``phi`` [N, P]; returns mean training losses [N]."""

    @abstractmethod
    def outputs(self, inputs: Sequence[Tensor], weights: Weights) -> Tensor:
        """Outputs of every child in eval mode on its own inputs [N, V, …]; children may share one tensor."""

    @abstractmethod
    def keep_best(self, better: Tensor) -> None:
        """Make today's averaged weights the best ones of the children where ``better`` [N]."""

    @abstractmethod
    def child_state(self, child: int, weights: Weights) -> dict[str, Tensor]:
        """A plain ``state_dict`` of one child."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly from ``state``."""


def check_state(state: dict[str, Any], engine: str, count: int) -> None:
    """Refuse the state of another engine, or of another number of children."""
    found = state.get("engine"), state.get("children")
    if found != (engine, count):
        raise InputError(
            f"state: it holds {found[1]} children of the {found[0]} engine, this run has {count} of the {engine} "
            "engine; resume with the same children and engine."
        )


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bfloat16 autocast, or nothing."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def shared_inputs(inputs: Sequence[Tensor]) -> list[tuple[Tensor, slice]]:
    """Runs of neighbouring children that share one tensor of inputs.

    Example:
        >>> a, b = torch.zeros(1), torch.ones(1)
        >>> [(x.item(), s.start, s.stop) for x, s in shared_inputs([a, a, b])]
        [(0.0, 0, 2), (1.0, 2, 3)]
    """
    runs: list[tuple[Tensor, slice]] = []
    for child, tensor in enumerate(inputs):
        if runs and runs[-1][0] is tensor:
            runs[-1] = (tensor, slice(runs[-1][1].start, child + 1))
        else:
            runs.append((tensor, slice(child, child + 1)))
    return runs


class IsolatedRng:
    """Torch's global random stream as one child's own: layers such as dropout know no other."""

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
        """``work()`` on this stream, leaving the global one as it was."""
        with self._forked():
            torch.set_rng_state(self.state["cpu"])
            if self._cuda:
                torch.cuda.set_rng_state(self.state["cuda"])
            result = work()
            self._save()
        return result
