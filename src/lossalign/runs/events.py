"""TensorBoard events, when tensorboard is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lossalign.experiments import Arm
from lossalign.runs.folder import EVENTS
from lossalign.training import StepRecord


class Events:
    """Writes the mean over each arm's children at every step; does nothing without a writer."""

    def __init__(self, writer: Any | None) -> None:
        self._writer = writer

    def record(self, record: StepRecord, arms: list[Arm]) -> None:
        """Record one step of a population."""
        if self._writer is None:
            return
        values = {"metric": record.metric, "selection": record.selection, "loss": record.loss, **record.logs}
        for arm in arms:
            for name, tensor in values.items():
                mean = float(tensor[arm.rows].nanmean())
                if mean == mean:
                    self._writer.add_scalar(f"{name}/{arm.method}-{arm.seed}", mean, record.iteration)


@contextmanager
def open_events(folder: Path) -> Iterator[Events]:
    """Events in ``folder``/tensorboard, closed at the end."""
    if find_spec("tensorboard") is None:
        yield Events(None)
        return
    from torch.utils.tensorboard import SummaryWriter  # an optional dependency, and slow to import

    writer = SummaryWriter(str(folder / EVENTS))
    try:
        yield Events(writer)
    finally:
        writer.close()
