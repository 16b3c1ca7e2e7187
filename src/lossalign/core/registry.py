"""Objects by name, each with a one-line summary; every object is registered in the file that defines it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from lossalign.core.errors import InputError

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects by name.

    Args:
        what: the word for one of them in error messages, e.g. ``"metric"``.
        hint: what may be given instead of a name.
        renamed: names of earlier versions, each with its current name.

    Example:
        >>> colours = Registry[int]("colour")
        >>> colours.add("red", "like a rose", 0xFF0000)
        16711680
        >>> colours["red"], colours.summary("red"), list(colours)
        (16711680, 'like a rose', ['red'])
    """

    def __init__(self, what: str, hint: str = "", renamed: Mapping[str, str] | None = None) -> None:
        self._what, self.hint, self._renamed = what, hint, renamed or {}
        self._things: dict[str, tuple[str, T]] = {}

    def add(self, name: str, summary: str, thing: T) -> T:
        """Register ``thing`` under ``name``, with a one-line summary."""
        assert name not in self._things, f"{self._what} {name!r} is registered twice"
        self._things[name] = (summary, thing)
        return thing

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            raise self.unknown(name)
        return self._things[name][1]

    def unknown(self, name: str) -> InputError:
        """The error for a name that is not registered."""
        if name in self._renamed:
            return InputError(f"{self._what} {name!r}: it is now called {self._renamed[name]!r}.")
        close = difflib.get_close_matches(name, self._things, 1)
        known = f"{f'did you mean {close[0]!r}? C' if close else 'c'}hoose from {', '.join(self._things)}"
        return InputError(f"{self._what} {name!r} is unknown; {known}{f', or give {self.hint}' if self.hint else ''}.")

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def summary(self, name: str) -> str:
        """The one-line summary of an entry."""
        return self._things[name][0]
