"""Randomness is passed: every draw comes from a generator that somebody handed in."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, *path: str | int) -> torch.Generator:
    """A CPU generator of its own for every purpose.

    Streams with different ``path`` are independent, so that adding a consumer never shifts another's draws.

    Args:
        seed: the run's seed.
        path: what the stream is for, e.g. ``("child", 3, "batches")``.

    Example:
        >>> a, b = generator(0, "child", 1), generator(0, "child", 1)
        >>> torch.equal(torch.rand(3, generator=a), torch.rand(3, generator=b))
        True
        >>> torch.equal(torch.rand(3, generator=a), torch.rand(3, generator=generator(0, "child", 2)))
        False
    """
    digest = hashlib.sha256("/".join(map(str, (seed, *path))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
