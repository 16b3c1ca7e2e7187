"""A user's code under ``torch.func.vmap``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lossalign.core.errors import InputError


@contextmanager
def lifting(what: str) -> Iterator[None]:
    """Refuse with one sentence what vmap cannot lift over children; ``what`` names the code that runs inside.

    Example:
        >>> import torch
        >>> with lifting("Mine.statistics"):
        ...     torch.func.vmap(torch.Tensor.item)(torch.zeros(2))
        Traceback (most recent call last):
        ...
        lossalign.core.errors.InputError: Mine.statistics: torch.func.vmap cannot lift it over children (vmap: It looks
        like you're calling .item() on a Tensor); write tensor code without .item(), ...
    """
    try:
        yield
    except RuntimeError as error:
        said = str(error)
        if not said.startswith("vmap:"):
            raise
        raise InputError(
            f"{what}: torch.func.vmap cannot lift it over children ({said.split('. ')[0]}); write tensor code without "
            ".item(), branches on values and shapes that depend on them, or set vectorised = False."
        ) from error
