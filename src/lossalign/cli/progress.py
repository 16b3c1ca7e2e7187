"""Progress of a run: a bar on a terminal, a line every minute elsewhere."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lossalign.core import Interrupted, Ranks
from lossalign.experiments import Arm, Experiment
from lossalign.runs import Listener
from lossalign.training import StepRecord

PLAIN_SECONDS = 60.0
"""Seconds between two lines where there is no terminal."""
_STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
SLOW_START = 5.0
"""Seconds before the first step from which their number is printed: compiling, mostly."""


class ProgressListener(Listener):
    """Shows progress and messages, and stops after the current step when it is asked to."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._total, self._taken = 0, 0
        self._began = self._spoke = clock()
        self._asked: int | None = None
        self._phase = "preparing"
        self._percent = False
        self._metric = ""
        self._done_before = 0
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[live]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("steps", total=None, live="")

    def started(self, experiment: Experiment, steps_done: int) -> None:
        """Print one line with task, methods, steps and engine."""
        self._phase = "training"
        config, populations = experiment.config, experiment.populations
        self._total = sum(population.steps for population in populations.values())
        self._taken, self._began = steps_done, self._clock()
        self._done_before = steps_done
        self._metric = experiment.metric.name.replace("-", " ")
        self._percent = experiment.metric.percent
        self._progress.update(self._bar, total=self._total, completed=steps_done)
        self._progress.start()
        self.said(_opening(experiment, Ranks.current().count))
        rest = config.optimisation.iterations % config.control.every
        if rest:
            self.said(f"The last {rest} iterations are not a whole step and are not trained.")

    def stepped(self, population: str, record: StepRecord, arms: list[Arm]) -> None:
        """Advance the bar; show the learner's metric on the selection split and its entropy."""
        live = self._live(record, arms)
        self._taken += 1
        self._progress.update(self._bar, advance=1, live=live)
        now = self._clock()
        if self._taken == self._done_before + 1 and now - self._began >= SLOW_START:
            self.said(f"first step after {now - self._began:.0f} s")
        if not self._console.is_terminal and now - self._spoke >= PLAIN_SECONDS:
            self._spoke = now
            left = (now - self._began) / (self._taken - self._done_before) * (self._total - self._taken)
            self.said(f"step {self._taken} of {self._total}, {live}, about {_duration(left)} left")

    def _live(self, record: StepRecord, arms: list[Arm]) -> str:
        learning = [arm for arm in arms if arm.spec.role == "learner"] or arms[:1]
        mean = sum(float(record.selection[arm.rows].mean()) for arm in learning) / len(learning)
        live = f"{learning[0].method}: {self._metric} " + (f"{100 * mean:.1f} %" if self._percent else f"{mean:.4g}")
        entropies = [float(record.logs["entropy"][arm.rows].mean()) for arm in learning if "entropy" in record.logs]
        if entropies and entropies[0] == entropies[0]:
            live += f", entropy {sum(entropies) / len(entropies):.2f}"
        return live

    def said(self, sentence: str) -> None:
        """Print one line above the bar."""
        self._console.print(sentence, highlight=False, soft_wrap=True, markup=False)

    def stop(self) -> bool:
        """Whether a signal asked for it."""
        return self._asked is not None

    def trained(self) -> None:
        """Nothing is left to checkpoint."""
        self._phase = "scoring"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show the bar; Ctrl-C, SIGTERM and SIGHUP ask for a checkpoint, and stop at once when they come again.

        Raises:
            Interrupted: by SIGTERM or SIGHUP while there is nothing to checkpoint; it carries the signal, as one that
                was raised after a checkpoint does.
        """

        def ask(number: int, frame: FrameType | None) -> None:
            signal.signal(number, before[number])
            if number == signal.SIGINT and self._phase == "scoring":
                self.said(
                    "Training is finished and saved; its scores come in a moment. Press Ctrl-C again to stop now."
                )
                return
            alone = Ranks.current().count == 1  # the others wait for this one at the end of the step
            if alone and number != signal.SIGINT and self._phase != "training":
                raise Interrupted(f"stopped while {self._phase}; resume with --resume.", number)
            self._asked = number
            self.said("Stopping after this step, with a checkpoint. Press Ctrl-C again to stop at once.")

        before = {number: signal.getsignal(number) for number in _STOPPING}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, ask)
        try:
            yield
        except Interrupted as interrupted:
            interrupted.signal = self._asked or interrupted.signal
            raise
        finally:
            self._progress.stop()
            for number, handler in before.items():
                signal.signal(number, handler)


def _opening(experiment: Experiment, ranks: int) -> str:
    """``digits-lt: mlp-16, 2 methods × 5 seeds × 10 children, …``."""
    config = experiment.config
    engines = {population.children.engine for population in experiment.populations.values()}
    parts = [
        _count(len(config.methods.specs), "method"),
        _count(config.methods.seeds, "seed"),
        _count(config.methods.children, "child", "children"),
    ]
    return (
        f"{config.task}: {config.model.name}, {' × '.join(parts)}, {config.steps} steps of {config.control.every} "
        f"iterations; engine {' and '.join(sorted(engines))} on {experiment.device_name}"
        + (f", {ranks} ranks." if ranks > 1 else ".")
    )


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _duration(seconds: float) -> str:
    """A duration in words.

    Example:
        >>> _duration(42), _duration(125), _duration(7300)
        ('42 s', '2 min', '2 h 2 min')
    """
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
