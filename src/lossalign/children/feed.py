"""Batches for all children at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from lossalign.children.base import Member, Stream

BLOCK = 16
"""Number of iterations whose random decisions are drawn at once; noise is as large as the batches themselves."""


class JointStream(Protocol):
    """Several streams read together: random decisions on the CPU for many iterations, batches on the device."""

    def draws(self, iterations: int) -> tuple[Tensor, ...]:
        """The decisions of the next iterations, each [K, S, …]; every stream advances by as many batches."""
        ...

    def make(self, *drawn: Tensor) -> tuple[Tensor, Tensor]:
        """The batches [S, B, …] and targets [S, B] of one iteration's decisions: tensors in, tensors out."""
        ...


class Feed:
    """The batches of N children; members with the same ``stream`` object share one stream, as paired children do."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        makers = list(dict.fromkeys(member.stream for member in members))
        self._device = device
        self._streams: list[Stream] = [make() for make in makers]
        self._of = [makers.index(member.stream) for member in members]
        self._index = torch.tensor(self._of, device=device)
        together = getattr(type(self._streams[0]), "together", None)
        self._joint: JointStream | None = None if together is None else together(self._streams)

    def batches(self, iterations: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs [N, B, …] and targets [N, B], iteration after iteration."""
        return (self.make(*drawn) for drawn in self.draws(iterations))

    def draws(self, iterations: int) -> Iterator[tuple[Tensor, ...]]:
        """The random decisions of each iteration, on the device: tensors of the same shapes each time."""
        if self._joint is None:
            for _ in range(iterations):
                batches = [stream.next() for stream in self._streams]
                yield torch.stack([x for x, _ in batches]), torch.stack([y for _, y in batches])
            return
        for start in range(0, iterations, BLOCK):
            blocks = self._joint.draws(min(BLOCK, iterations - start))
            yield from zip(*(block.to(self._device, non_blocking=True).unbind(0) for block in blocks), strict=True)

    def make(self, *drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [N, B, …] and targets [N, B] of one iteration's ``draws``: tensors in, tensors out."""
        inputs, targets = drawn if self._joint is None else self._joint.make(*drawn)
        if len(self._streams) == len(self._of):
            return inputs, targets
        return inputs.index_select(0, self._index), targets.index_select(0, self._index)

    def states(self) -> list[dict[str, Any]]:
        """Each child's stream state."""
        states = [stream.state_dict() for stream in self._streams]
        return [states[stream] for stream in self._of]

    def load_states(self, states: Sequence[dict[str, Any]]) -> None:
        """Resume from each child's stream state."""
        for number, stream in enumerate(self._streams):
            stream.load_state_dict(states[self._of.index(number)])
