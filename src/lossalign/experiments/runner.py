"""Train an experiment into its run folder: start or resume, checkpoint, stop when asked, finish."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from lossalign.control import LearningController
from lossalign.core import NonFiniteError, Ranks, RunFolderError, check_same, fingerprint
from lossalign.experiments.config import RunConfig
from lossalign.experiments.events import Events, open_events
from lossalign.experiments.folder import LEDGER, Existing, RunFolder, find_folder
from lossalign.experiments.methods import entry
from lossalign.experiments.populations import Arm, Experiment, build
from lossalign.experiments.results import Result, finish
from lossalign.training import Population, StepRecord, load_checkpoint, previous, save_checkpoint

CHECKPOINT_SECONDS = 120.0
"""Time between checkpoints, at most …"""
CHECKPOINT_SHARE = 0.05
"""… and less where writing one costs less than this share of the time."""


class Listener:
    """Told what happens while a run trains; the command line's progress bar is one. Every method may be left as is."""

    def started(self, experiment: Experiment, steps_done: int) -> None:
        """Training begins."""

    def stepped(self, population: str, record: StepRecord, arms: list[Arm]) -> None:
        """One population has taken one step."""

    def said(self, sentence: str) -> None:
        """Something worth a line."""

    def stop(self) -> bool:
        """Whether to write a checkpoint and leave after this step."""
        return False


class Interrupted(Exception):
    """The run was stopped on request; its checkpoint is written."""


def run(
    config: RunConfig,
    out: Path,
    *,
    existing: Existing = "refuse",
    final: bool = False,
    listener: Listener | None = None,
) -> Result:
    """Train, checkpoint, score, draw.

    In a process group every rank calls it and gets the result; rank 0 alone writes the folder and tells its listener.

    Args:
        config: the run.
        out: its folder.
        existing: what to do if the folder exists.
        final: score the test split, once; otherwise the selection split.
        listener: who is told.

    Raises:
        Interrupted: the listener (of any rank) asked to stop; resume later.
    """
    ranks, listener = Ranks.current(), listener or Listener()
    folder, resumed = ranks.on_first(lambda: _open(config, out, existing, final))
    experiment = ranks.guarded(lambda: build(config, listener.said if ranks.first else (lambda sentence: None)))
    if resumed:
        _restore(folder, experiment, listener, ranks)
    ranks.on_first(lambda: _begin(folder, experiment, resumed, ranks))
    with open_events(folder.path) if ranks.first else nullcontext(Events(None)) as events:
        _train(folder, experiment, events, listener, ranks)
    return finish(folder, experiment, final=final, ranks=ranks)


def _open(config: RunConfig, out: Path, existing: Existing, final: bool) -> tuple[RunFolder, bool]:
    folder, resumed = find_folder(out, existing, config)
    if resumed and final and _scored_on_test(folder):
        raise RunFolderError(
            f"final: the test split of {out} was scored before ({LEDGER} has the scores); a test set is used once."
        )
    return folder, resumed


def _begin(folder: RunFolder, experiment: Experiment, resumed: bool, ranks: Ranks) -> None:
    if not resumed:
        folder.clear()
    folder.describe(experiment, resumed=resumed, ranks=ranks.count)


def _scored_on_test(folder: RunFolder) -> bool:
    return any(row.get("begun") == folder.identity for row in folder.rows(LEDGER))


def _restore(folder: RunFolder, experiment: Experiment, listener: Listener, ranks: Ranks) -> None:
    """Rank 0 reads the checkpoints and sends them: the others need not see its disk."""
    for name, population in experiment.populations.items():
        state = ranks.on_first(partial(_read, folder.checkpoint(name), listener))
        if state is not None:
            ranks.guarded(partial(population.load_state_dict, state))
        ranks.on_first(partial(folder.rewind, name, population.step_count))


def _read(checkpoint: Path, listener: Listener) -> dict[str, Any] | None:
    if not checkpoint.exists() and not previous(checkpoint).exists():
        return None
    state, warning = load_checkpoint(checkpoint)
    if warning:
        listener.said(warning)
    return state


def _train(folder: RunFolder, experiment: Experiment, events: Events, listener: Listener, ranks: Ranks) -> None:
    done = sum(p.step_count for p in experiment.populations.values())
    ranks.on_first(lambda: listener.started(experiment, done))
    for name, population in experiment.populations.items():
        arms = [arm for arm in experiment.arms if arm.population == name]
        saved, pause = time.monotonic(), 0.0
        while population.step_count < population.steps:
            record = _step(population, arms)

            def told(name: str = name, arms: list[Arm] = arms, record: StepRecord = record) -> None:
                folder.record(name, record)
                events.record(record, arms)
                listener.stepped(name, record, arms)

            ranks.on_first(told)
            late = population.step_count == population.steps or time.monotonic() - saved >= pause
            stop, save = _agree(population, listener.stop(), late, ranks)
            if save:
                began = time.monotonic()
                state = population.state_dict()
                ranks.on_first(partial(save_checkpoint, folder.checkpoint(name), state))
                saved = time.monotonic()
                pause = min(CHECKPOINT_SECONDS, (saved - began) / CHECKPOINT_SHARE)
            if stop and not _done(experiment):
                raise Interrupted(f"stopped at step {population.step_count}; go on with --resume.")
        ranks.on_first(partial(_tell_resets, folder, name, arms, listener))


def _step(population: Population, arms: list[Arm]) -> StepRecord:
    try:
        return population.step()
    except NonFiniteError as error:
        arm = next(arm for arm in arms if arm.start <= error.child < arm.rows.stop)
        where = f"{arm.method}, seed {arm.seed}, child {error.child - arm.start}"
        raise NonFiniteError(f"{error} ({where})", error.child) from error


def _agree(population: Population, stop: bool, late: bool, ranks: Ranks) -> tuple[bool, bool]:
    """Check that all ranks hold one policy and one Φ; stop if one was asked to, save when rank 0's clock says so."""
    if ranks.count == 1:
        return stop, stop or late
    votes = ranks.exchange(lambda: (fingerprint(_held(population)), stop, late))
    check_same([held for held, _, _ in votes], population.step_count)
    stop = any(asked for _, asked, _ in votes)
    return stop, stop or votes[0][2]


def _held(population: Population) -> Iterator[Tensor]:
    """What must be the same on all ranks."""
    yield population.best_errors
    for controller in population.controllers:
        yield controller.phi
        if isinstance(controller, LearningController):
            yield from controller.policy.state_dict().values()


def _done(experiment: Experiment) -> bool:
    return all(p.step_count == p.steps for p in experiment.populations.values())


def _tell_resets(folder: RunFolder, population: str, arms: list[Arm], listener: Listener) -> None:
    """Say how often children of the learning method got Φ_0 back; ``metrics.jsonl`` says which and when."""
    learning = [child for arm in arms if entry(arm.method).method.learns for child in range(arm.start, arm.rows.stop)]
    steps = [row["reset"] for row in folder.rows("metrics.jsonl") if row["population"] == population and "reset" in row]
    count = sum(bool(step[child]) for step in steps for child in learning)
    if count:
        listener.said(
            f"ala: {count} times in {len(steps)} steps × {len(learning)} children one fell far behind the others and "
            "got its starting Φ back."
        )
