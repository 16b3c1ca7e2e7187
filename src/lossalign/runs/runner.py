"""Train an experiment into its run folder: start or resume, checkpoint, stop when asked, finish."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lossalign.control import LearningController
from lossalign.core import (
    CheckpointError,
    InputError,
    Interrupted,
    NonFiniteError,
    RankError,
    Ranks,
    RunFolderError,
    check_same,
    fingerprint,
)
from lossalign.core.errors import UNREADABLE
from lossalign.data import SplitDigests, changed
from lossalign.evaluation import Result
from lossalign.experiments import Arm, Config, Experiment, build
from lossalign.runs.events import Events, open_events
from lossalign.runs.find import Existing, find_folder
from lossalign.runs.finish import finish
from lossalign.runs.folder import LEDGER, RunFolder
from lossalign.runs.lock import locked
from lossalign.training import Population, StepRecord, load_checkpoint, previous, save_checkpoint

CHECKPOINT_SECONDS = 120.0
"""Longest time between checkpoints."""
CHECKPOINT_SHARE = 0.05
"""Checkpoints are more frequent if writing them takes less than this fraction of the time."""


class Listener:
    """Callbacks of a run, such as the command line's progress bar. Every method is optional."""

    def started(self, experiment: Experiment, steps_done: int) -> None:
        """Training begins."""

    def stepped(self, population: str, record: StepRecord, arms: list[Arm]) -> None:
        """Called after each step of a population."""

    def said(self, sentence: str) -> None:
        """Called with a message for the user."""

    def stop(self) -> bool:
        """Asked after each step: whether to write a checkpoint and stop."""
        return False

    def trained(self) -> None:
        """Training is over; scoring begins."""


def run(
    config: Config,
    out: Path,
    *,
    existing: Existing = "refuse",
    final: bool = False,
    listener: Listener | None = None,
) -> Result:
    """Train a run into its folder, with checkpoints, and score it.

    In a process group every rank calls it and gets the result; rank 0 alone writes the folder and calls its listener.

    Args:
        config: the run.
        out: its folder.
        existing: what to do if the folder exists: ``refuse``, ``resume`` or ``overwrite``.
        final: score the test split, once; otherwise the selection split.
        listener: callbacks.

    Raises:
        RunFolderError: another process holds the folder, or it must not be written.
        Interrupted: the listener (of any rank) asked to stop; resume later.
    """
    ranks, listener = Ranks.current(), listener or Listener()
    with ExitStack() as held:
        folder, resumed = ranks.on_first(lambda: _open(config, out, existing, final, held))
        experiment = ranks.guarded(lambda: build(config, listener.said if ranks.first else (lambda sentence: None)))
        digests = _same_data(experiment, ranks)
        if resumed:
            ranks.on_first(lambda: folder.check_data(digests))
            _restore(folder, experiment, listener, ranks)
        ranks.on_first(lambda: _begin(folder, experiment, digests, resumed, ranks))
        with open_events(folder, experiment, listener.said) if ranks.first else nullcontext(Events(None)) as events:
            _train(folder, experiment, events, listener, ranks)
        ranks.on_first(listener.trained)
        return finish(folder, experiment, final=final, ranks=ranks, say=listener.said)


def _open(config: Config, out: Path, existing: Existing, final: bool, held: ExitStack) -> tuple[RunFolder, bool]:
    """The folder, locked until ``held`` ends, and whether it holds a run to resume."""
    find_folder(out, existing, config)  # refuses a folder that is not ours before anything is written into it
    held.enter_context(locked(out))
    folder, resumed = find_folder(out, existing, config)
    unentered = folder.unentered if resumed else None
    if unentered is not None and not final:  # with final, they are scored and entered again
        folder.enter(unentered, "lossalign, stopped before it entered these scores")
    if resumed and final and folder.scored_on_test:
        raise RunFolderError(
            f"final: the test split of {out} was scored already (see {LEDGER}); it can be scored once."
        )
    return folder, resumed


def _same_data(experiment: Experiment, ranks: Ranks) -> SplitDigests:
    """The digests of the data; ``RankError`` if a rank has other data than rank 0."""
    found = ranks.exchange(experiment.data_digests)
    for rank, digests in enumerate(found):
        what = changed(found[0], digests)
        if what:
            raise RankError(
                f"rank {rank} has other data than rank 0 ({what}); give every rank the same data and settings."
            )
    return found[0]


def _begin(folder: RunFolder, experiment: Experiment, digests: SplitDigests, resumed: bool, ranks: Ranks) -> None:
    if not resumed:
        folder.clear()
    folder.describe(experiment, digests, resumed=resumed, ranks=ranks.count)


def _restore(folder: RunFolder, experiment: Experiment, listener: Listener, ranks: Ranks) -> None:
    """Load the checkpoints on rank 0 and send them to the others, which need not share its disk."""
    for name, population in experiment.populations.items():
        state = ranks.on_first(partial(_read, folder.checkpoint(name), listener))
        if state is not None:
            ranks.guarded(partial(_load, population, state, folder.checkpoint(name)))
        warning = ranks.on_first(partial(folder.rewind, name, population.step_count))
        if warning and ranks.first:
            listener.said(warning)


def _load(population: Population, state: dict[str, Any], checkpoint: Path) -> None:
    try:
        population.load_state_dict(state)
    except InputError:
        raise
    except UNREADABLE as error:
        raise CheckpointError(
            f"checkpoint {checkpoint} does not fit this run ({type(error).__name__}: {error}); start with --overwrite."
        ) from error


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
        arms = experiment.arms_of(name)
        saved, pause = time.monotonic(), 0.0
        while population.step_count < population.steps:
            record = _step(population, arms)

            def publish(name: str = name, arms: list[Arm] = arms, record: StepRecord = record) -> None:
                events.record(folder.record(name, record), arms)
                _report_diverged(record, arms, listener)
                listener.stepped(name, record, arms)

            ranks.on_first(publish)
            due = population.step_count == population.steps or time.monotonic() - saved >= pause
            stop, save = _agree(population, listener.stop(), due, ranks)
            if save:
                began = time.monotonic()
                state = population.state_dict()
                ranks.on_first(partial(_save, folder, name, state))
                saved = time.monotonic()
                pause = min(CHECKPOINT_SECONDS, (saved - began) / CHECKPOINT_SHARE)
            if stop and not _done(experiment):
                raise Interrupted(f"stopped at step {population.step_count}; resume with --resume.")
        ranks.on_first(partial(_report_resets, population, arms, listener))


def _step(population: Population, arms: list[Arm]) -> StepRecord:
    try:
        return population.step()
    except NonFiniteError as error:
        arm = next(arm for arm in arms if arm.start <= error.child < arm.rows.stop)
        where = f"{arm.method}, seed {arm.seed}, child {error.child - arm.start}"
        raise NonFiniteError(f"{error} ({where})", error.child) from error


def _agree(population: Population, stop: bool, due: bool, ranks: Ranks) -> tuple[bool, bool]:
    """Check that policy and Φ are the same on all ranks; return whether to stop and to save."""
    if ranks.count == 1:
        return stop, stop or due
    votes = ranks.exchange(lambda: (fingerprint(_held(population)), stop, due))
    check_same([held for held, _, _ in votes], population.step_count)
    stop = any(asked for _, asked, _ in votes)
    return stop, stop or votes[0][2]


def _held(population: Population) -> Iterator[Tensor]:
    """Tensors that must be the same on all ranks."""
    yield population.best_errors
    for owner in population.owners:
        yield owner.controller.phi
        if isinstance(owner.controller, LearningController):
            for policy in owner.controller.policies:
                yield from policy.state_dict().values()


def _done(experiment: Experiment) -> bool:
    return all(p.step_count == p.steps for p in experiment.populations.values())


def _save(folder: RunFolder, population: str, state: dict[str, Any]) -> None:
    folder.sync_log()
    save_checkpoint(folder.checkpoint(population), state)


def _report_diverged(record: StepRecord, arms: list[Arm], listener: Listener) -> None:
    """Say which children were restored or retired in this step."""
    words = {
        "restored": "restored from its best weights, with its initial Φ",
        "retired": "retired, as it did so before",
    }
    for what, then in words.items():
        for child in record.logs.get(what, torch.empty(0)).nonzero().flatten().tolist():
            arm = next(arm for arm in arms if child in range(arm.rows.start, arm.rows.stop))
            listener.said(
                f"step {record.step}: child {child - arm.start} of {arm.method}, seed {arm.seed}, was not finite; it "
                f"is {then}."
            )


def _report_resets(population: Population, arms: list[Arm], listener: Listener) -> None:
    """Report how often children of learners got Φ_0 back; ``metrics.jsonl`` has the details."""
    learning = [arm for arm in arms if arm.spec.role == "learner"]
    children = [child for arm in learning for child in range(arm.start, arm.rows.stop)]
    count = int(population.past.resets[children].sum())
    if count:
        listener.said(
            f"{learning[0].spec.method.name}: {count} times in {population.step_count} steps × {len(children)} "
            "children, a child was far behind the others and got its initial Φ back."
        )
