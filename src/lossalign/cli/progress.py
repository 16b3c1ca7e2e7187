"""A live line while a run trains: bar, step, metric, entropy, time left."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lossalign.core import Ranks
from lossalign.experiments import Listener
from lossalign.experiments.populations import Arm, Experiment
from lossalign.training import StepRecord


class ProgressListener(Listener):
    """Shows progress on a terminal, says what is worth a line, and stops politely on Ctrl-C."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._asked_to_stop = False
        self._percent = False
        self._metric = ""
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[live]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
        )
        self._bar = self._progress.add_task("steps", total=None, live="")

    def started(self, experiment: Experiment, steps_done: int) -> None:
        """Say in one line what trains, on which engine."""
        config, populations = experiment.config, experiment.populations
        total = sum(population.steps for population in populations.values())
        self._metric = experiment.metric.name.replace("-", " ")
        self._percent = experiment.metric.percent
        self._progress.update(self._bar, total=total, completed=steps_done)
        engines = {population.children.engine for population in populations.values()}
        ranks = Ranks.current().count
        self._progress.start()
        rest = config.iterations % config.every
        self.said(
            f"{config.task}: {config.model}, {len(config.methods)} method(s) × {config.seeds} policies × "
            f"{config.children} children, {config.steps} steps of {config.every} iterations"
            + (f" (the last {rest} make no whole step and are left out)" if rest else "")
            + f"; engine {' and '.join(sorted(engines))} on {experiment.device_name}"
            + (f", {ranks} ranks." if ranks > 1 else ".")
        )

    def stepped(self, population: str, record: StepRecord, arms: list[Arm]) -> None:
        """Move the bar; show the learning method's metric on the selection split and its entropy."""
        learning = [arm for arm in arms if arm.method == "ala"] or arms[:1]
        mean = sum(float(record.selection[arm.rows].mean()) for arm in learning) / len(learning)
        live = f"{learning[0].method}: {self._metric} " + (f"{100 * mean:.1f} %" if self._percent else f"{mean:.4g}")
        entropies = [float(record.logs["entropy"][arm.rows].mean()) for arm in learning if "entropy" in record.logs]
        if entropies and entropies[0] == entropies[0]:
            live += f", entropy {sum(entropies) / len(entropies):.2f}"
        self._progress.update(self._bar, advance=1, live=live)

    def said(self, sentence: str) -> None:
        """Print one line above the bar."""
        self._console.print(sentence, highlight=False, soft_wrap=True, markup=False)

    def stop(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._asked_to_stop

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show the bar; the first Ctrl-C asks for a checkpoint, the second leaves at once."""

        def ask(number: int, frame: FrameType | None) -> None:
            self._asked_to_stop = True
            signal.signal(signal.SIGINT, before)
            self.said("Stopping after this step, with a checkpoint. Press Ctrl-C again to leave at once.")

        before = signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            self._progress.stop()
            signal.signal(signal.SIGINT, before)
