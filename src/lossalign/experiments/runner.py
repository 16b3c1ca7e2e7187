"""Train an experiment into its run folder: start or resume, checkpoint, stop when asked, finish."""

from __future__ import annotations

import time
from pathlib import Path

from lossalign.core import NonFiniteError, RunFolderError
from lossalign.experiments.config import RunConfig
from lossalign.experiments.events import Events, open_events
from lossalign.experiments.folder import LEDGER, Existing, RunFolder, find_folder
from lossalign.experiments.populations import Arm, Experiment, build
from lossalign.experiments.results import Result, finish
from lossalign.training import StepRecord, load_checkpoint, previous, save_checkpoint

CHECKPOINT_SECONDS = 30.0
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

    Args:
        config: the run.
        out: its folder.
        existing: what to do if the folder exists.
        final: score the test split, once; otherwise the selection split.
        listener: who is told.

    Raises:
        Interrupted: the listener asked to stop; resume later.
    """
    listener = listener or Listener()
    folder, resumed = find_folder(out, existing, config)
    if resumed and final and _scored_on_test(folder):
        raise RunFolderError(
            f"final: the test split of {out} was scored before ({LEDGER} has the scores); a test set is used once."
        )
    experiment = build(config)
    if resumed:
        _restore(folder, experiment, listener)
    else:
        folder.clear()
    folder.describe(experiment, resumed=resumed)
    with open_events(folder.path) as events:
        _train(folder, experiment, events, listener)
    return finish(folder, experiment, final=final)


def _scored_on_test(folder: RunFolder) -> bool:
    return any(row.get("begun") == folder.identity for row in folder.rows(LEDGER))


def _restore(folder: RunFolder, experiment: Experiment, listener: Listener) -> None:
    for name, population in experiment.populations.items():
        path = folder.checkpoint(name)
        if path.exists() or previous(path).exists():
            state, warning = load_checkpoint(path)
            if warning:
                listener.said(warning)
            population.load_state_dict(state)
        folder.rewind(name, population.step_count)


def _train(folder: RunFolder, experiment: Experiment, events: Events, listener: Listener) -> None:
    listener.started(experiment, sum(p.step_count for p in experiment.populations.values()))
    for name, population in experiment.populations.items():
        arms = [arm for arm in experiment.arms if arm.population == name]
        saved, pause = time.monotonic(), 0.0
        while population.step_count < population.steps:
            try:
                record = population.step()
            except NonFiniteError as error:
                arm = next(arm for arm in arms if arm.start <= error.child < arm.rows.stop)
                where = f"{arm.method}, seed {arm.seed}, child {error.child - arm.start}"
                raise NonFiniteError(f"{error} ({where})", error.child) from error
            folder.record(name, record)
            events.record(record, arms)
            listener.stepped(name, record, arms)
            stop = listener.stop()
            if stop or population.step_count == population.steps or time.monotonic() - saved >= pause:
                began = time.monotonic()
                save_checkpoint(folder.checkpoint(name), population.state_dict())
                saved = time.monotonic()
                pause = min(CHECKPOINT_SECONDS, (saved - began) / CHECKPOINT_SHARE)
            if stop and not _done(experiment):
                raise Interrupted(f"stopped at step {population.step_count}; go on with --resume.")
        _tell_resets(folder, name, arms, listener)


def _done(experiment: Experiment) -> bool:
    return all(p.step_count == p.steps for p in experiment.populations.values())


def _tell_resets(folder: RunFolder, population: str, arms: list[Arm], listener: Listener) -> None:
    """Say how often children of the learning method got Φ_0 back; ``metrics.jsonl`` says which and when."""
    learning = [child for arm in arms if arm.method == "ala" for child in range(arm.start, arm.rows.stop)]
    steps = [row["reset"] for row in folder.rows("metrics.jsonl") if row["population"] == population and "reset" in row]
    count = sum(bool(step[child]) for step in steps for child in learning)
    if count:
        listener.said(
            f"ala: {count} times in {len(steps)} steps × {len(learning)} children one fell far behind the others and "
            "got its starting Φ back."
        )
