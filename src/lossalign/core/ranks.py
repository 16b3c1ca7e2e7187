"""Communication between the ranks of a distributed run; an error on one rank is raised on all.

Without a process group there is one rank, and nothing is sent.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lossalign.core.errors import InputError, LossalignError, RankError

T = TypeVar("T")


def shard(total: int, rank: int, count: int) -> slice:
    """The consecutive rows that ``rank`` of ``count`` owns; sizes differ by at most one.

    Example:
        >>> [(s.start, s.stop) for s in (shard(10, rank, 3) for rank in range(3))]
        [(0, 4), (4, 7), (7, 10)]
    """
    size, rest = divmod(total, count)
    start = rank * size + min(rank, rest)
    return slice(start, start + size + (rank < rest))


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """SHA-256 over the bytes of tensors, equal if the tensors are bitwise equal.

    Example:
        >>> fingerprint([torch.zeros(2)]) == fingerprint([torch.zeros(2)]), fingerprint([torch.zeros(2)])[:8]
        (True, 'af5570f5')
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(_bytes(tensor.detach().cpu()).numpy().tobytes())
    return digest.hexdigest()


def check_same(fingerprints: Sequence[str], step: int) -> None:
    """Raise ``RankError`` if the policy and Φ of a rank are not bitwise those of rank 0.

    Example:
        >>> check_same(["a", "a", "b"], step=7)
        Traceback (most recent call last):
        ...
        lossalign.core.errors.RankError: step 7: policy and Φ of rank 2 are not those of rank 0; give every rank the
        same seed, policy, versions and kind of device, and a metric that gives one number for the same outputs.
    """
    for rank, other in enumerate(fingerprints):
        if other != fingerprints[0]:
            raise RankError(
                f"step {step}: policy and Φ of rank {rank} are not those of rank 0; give every rank the same seed, "
                "policy, versions and kind of device, and a metric that gives one number for the same outputs."
            )


@dataclass(frozen=True)
class Ranks:
    """This process among ``count``. Every method is called by all ranks, in the same order."""

    rank: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> Ranks:
        """The ranks of the default process group; this process alone if there is none."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and prints."""
        return self.rank == 0

    def shards(self, children: int) -> list[slice]:
        """The rows of N children that each rank trains."""
        if children < self.count:
            raise InputError(
                f"{self.count} ranks for {children} children: each trains at least one; start at most {children} "
                "processes, or train more --children."
            )
        return [shard(children, rank, self.count) for rank in range(self.count)]

    def exchange(self, work: Callable[[], T]) -> list[T]:
        """The results of ``work()`` on all ranks, in rank order; if it raises on one rank, all ranks raise."""
        if self.count == 1:
            return [work()]
        mine, error = self._attempt(work)
        answers: list[Any] = [None] * self.count
        with self._connected():
            dist.all_gather_object(answers, mine)
        _raise_first(error, [sent for sent, _ in answers])
        return [value for _, value in answers]

    def guarded(self, work: Callable[[], T]) -> T:
        """The result of ``work()`` on this rank; if it raises on one rank, all ranks raise."""
        results: list[T] = []
        self.exchange(lambda: results.append(work()))
        return results[0]

    def on_first(self, work: Callable[[], T]) -> T:
        """The result of ``work()`` on rank 0, on every rank; the other ranks do not run it."""
        return self.on(0, work)

    def on(self, rank: int, work: Callable[[], T]) -> T:
        """The result of ``work()`` on ``rank``, on every rank; the other ranks do not run it."""
        if self.count == 1:
            return work()
        mine, error = self._attempt(work) if self.rank == rank else (None, None)
        mail: list[Any] = [mine]
        with self._connected():
            dist.broadcast_object_list(mail, src=rank)
        sent, value = mail[0]
        _raise_first(error, [sent])
        result: T = value
        return result

    def collect(self, items: list[Any]) -> list[Any]:
        """The items of all ranks, in rank order, on rank 0; an empty list on other ranks."""
        if self.count == 1:
            return items
        parts: list[Any] | None = [None] * self.count if self.first else None
        with self._connected():
            dist.gather_object(items, parts, dst=0)
        return [item for part in parts or [] for item in part]

    def gather(self, tensor: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        """Tensors [n_r, …] of all ranks as one [Σ n_r, …], in rank order.

        Args:
            tensor: of any type; shapes may differ in the first axis.
            sizes: n_r of each rank; exchanged between the ranks if not given.
        """
        if self.count == 1:
            return tensor
        sizes = self.exchange(lambda: len(tensor)) if sizes is None else sizes
        sent = tensor.detach().to(_carrier(tensor.device))
        if len(sent) < max(sizes):
            sent = torch.cat([sent, sent.new_zeros(max(sizes) - len(sent), *sent.shape[1:])])
        parts = [torch.empty_like(sent, memory_format=torch.contiguous_format) for _ in sizes]
        with self._connected():
            dist.all_gather([_bytes(part) for part in parts], _bytes(sent))
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]).to(tensor.device)

    def wait_at_most(self, seconds: float) -> None:
        """From now on, raise ``RankError`` where a rank does not answer for so long."""
        if self.count > 1:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), None)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Names the ranks that do not answer. Each says in the group's store how far it is."""
        store, number = dist.distributed_c10d._get_default_store(), next(_CALLS)
        store.set(f"lossalign/at/{self.rank}", str(number))
        try:
            yield
        except RuntimeError as error:
            raise RankError(
                f"{_silent(store, number, self.count)} has exited or does not answer; resume from the last checkpoint "
                f"with --resume, or let `torchrun --max-restarts` do so ({str(error)[:120]} …)."
            ) from error

    def _attempt(self, work: Callable[[], T]) -> tuple[tuple[LossalignError | None, T | None], Exception | None]:
        try:
            return (None, work()), None
        except Exception as error:  # any error: the other ranks must not wait for this one
            return (_named(error, self.rank), None), error


def _raise_first(mine: Exception | None, sent: Sequence[LossalignError | None]) -> None:
    if mine is not None:
        raise mine
    for error in sent:
        if error is not None:
            raise error


def _named(error: Exception, rank: int) -> LossalignError:
    """An error as the other ranks raise it: with its message, as a user's own class may not pickle."""
    if not isinstance(error, LossalignError):
        return RankError(f"rank {rank}: {type(error).__name__}: {error}")
    named = copy.copy(error)
    named.args = (f"rank {rank}: {error}",)
    return named


_CALLS = itertools.count()
"""Of this process; all ranks call in the same order, so that one with a smaller number is behind."""


def _silent(store: Any, number: int, count: int) -> str:
    """The ranks that have not come to call ``number``, in words."""
    try:
        keys = [f"lossalign/at/{rank}" for rank in range(count)]
        at = [int(store.get(key)) if store.check([key]) else -1 for key in keys]
    except RuntimeError:  # its host has exited too
        at = []
    behind = [str(rank) for rank, call in enumerate(at) if call < number]
    if not behind:
        return "another rank"
    return f"rank {behind[0]}" if len(behind) == 1 else f"one of the ranks {', '.join(behind)}"


def _carrier(device: torch.device) -> torch.device:
    """The device that tensors are sent from: a backend may support only one kind of device."""
    known = [pair.split(":")[0] for pair in dist.get_backend_config().split(",")]
    return device if device.type in known else torch.device(known[0])


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
