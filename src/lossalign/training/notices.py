"""What a user should know and no error says: one warning for each kind of thing."""

from __future__ import annotations

import warnings

from lossalign.core import Ranks


class Once:
    """Says each thing once; of many ranks only the first speaks.

    Example:
        >>> once = Once()
        >>> with warnings.catch_warnings(record=True) as heard:
        ...     warnings.simplefilter("always")
        ...     for _ in range(3):
        ...         once.say("late", "it is late.")
        >>> len(heard)
        1
    """

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, what: str, message: str) -> None:
        """Warn with ``message``, unless ``what`` was said before."""
        if what not in self._said and Ranks.current().first:
            warnings.warn(message, stacklevel=1)
        self._said.add(what)
