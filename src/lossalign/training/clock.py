"""Where the time of a population goes."""

from __future__ import annotations

import time


class Clock:
    """Where the time of a population goes, in seconds since it was made."""

    def __init__(self, children: int) -> None:
        self._children, self._at = children, 0.0
        self.seconds: dict[str | int, float] = {}

    def start(self) -> None:
        """A step begins."""
        self._at = time.perf_counter()

    def lap(self, what: str | int) -> None:
        """The time since the last lap went into ``what``: train, validate, observe, select, or a controller by its
        number."""
        now = time.perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self._at
        self._at = now

    def cost(self, controller: int, children: int, watching: int) -> float | None:
        """A controller's time over its children's share of training and selecting alone; None before the first step.

        Args:
            controller: its number.
            children: n, how many are its own.
            watching: how many children's controllers watch, if this is one of them; it then pays for measuring the
                validation split too. Else 0.
        """
        share, spent = children / self._children, self.seconds
        alone = share * (spent.get("train", 0.0) + spent.get("select", 0.0))
        more = spent.get(controller, 0.0)
        if watching:
            more += share * spent.get("validate", 0.0) + children / watching * spent.get("observe", 0.0)
        return (alone + more) / alone if alone else None
