"""TensorBoard events, when tensorboard is installed: the log of a run, once more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np

from lossalign.experiments import Arm, Experiment
from lossalign.runs.folder import EVENTS, METRICS, RunFolder

_PLACE = ("population", "step", "iteration")
"""What says where a row of the log belongs; everything else is a value of every child."""


class Events:
    """Writes the mean over each arm's children at every step; does nothing without a writer.

    Args:
        writer: a ``SummaryWriter``.
        say: called once with a sentence, when nothing can be written any more; the run does not depend on it.
    """

    def __init__(self, writer: Any | None, say: Callable[[str], None] = lambda sentence: None) -> None:
        self._writer, self._say = writer, say

    def record(self, row: Mapping[str, Any], arms: Sequence[Arm]) -> None:
        """Record one row of the log of a population."""
        if self._writer is None:
            return
        for name, numbers in row.items():
            values = np.array([] if name in _PLACE else numbers, dtype=float)
            for arm in arms if len(values) else ():
                known = values[arm.rows][~np.isnan(values[arm.rows])]
                if len(known):
                    self._write(f"{name}/{arm.method}-{arm.seed}", float(known.mean()), row["iteration"])

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._attempt(self._writer.close)

    def _write(self, name: str, value: float, iteration: int) -> None:
        writer = self._writer
        if writer is not None:
            self._attempt(lambda: writer.add_scalar(name, value, iteration))

    def _attempt(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as error:  # whatever its threads met, such as a full disk
            self._writer = None
            self._say(f"tensorboard: events are no longer written ({type(error).__name__}: {error}).")


@contextmanager
def open_events(folder: RunFolder, experiment: Experiment, say: Callable[[str], None]) -> Iterator[Events]:
    """Events of a run, closed at the end. Those of steps that are in the log already are written again, so that steps
    that a resumed run repeats do not appear twice."""
    events = Events(_writer(folder, say), say)
    for row in folder.rows(METRICS):
        events.record(row, experiment.arms_of(row["population"]))
    try:
        yield events
    finally:
        events.close()


def _writer(folder: RunFolder, say: Callable[[str], None]) -> Any | None:
    folder.clear_events()
    if find_spec("tensorboard") is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter  # an optional dependency, and slow to import

        return SummaryWriter(str(folder.path / EVENTS))
    except Exception as error:  # a broken installation, or a full disk
        say(f"tensorboard: no events are written ({type(error).__name__}: {error}).")
        return None
