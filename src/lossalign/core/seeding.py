"""Random generators: every random draw comes from a generator that is passed as an argument."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, *path: str | int) -> torch.Generator:
    """A CPU generator for one purpose, given by ``seed`` and ``path``.

    Generators with different ``path`` are independent, so a new one does not change the draws of the others.

    Args:
        seed: the run's seed.
        path: what the generator is for, e.g. ``("child", 3, "batches")``.

    Example:
        >>> a, b = generator(0, "child", 1), generator(0, "child", 1)
        >>> torch.equal(torch.rand(3, generator=a), torch.rand(3, generator=b))
        True
        >>> torch.equal(torch.rand(3, generator=a), torch.rand(3, generator=generator(0, "child", 2)))
        False
    """
    digest = hashlib.sha256("/".join(map(str, (seed, *path))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
