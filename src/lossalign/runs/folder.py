"""Reading and writing of a run folder: config, environment, metrics, Φ history, checkpoints, policies, results, ledger.

All file names of a run are defined here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lossalign.core import ParameterSpec, RunFolderError
from lossalign.core.errors import UNREADABLE, naming
from lossalign.data import SplitDigests, changed
from lossalign.experiments import Experiment, plain_by_key, to_plain
from lossalign.runs.environment import environment, launch
from lossalign.training import StepRecord

FORMAT, SCHEMA = "lossalign-run", 4
"""Schema of ``config.json``; a folder of another schema is refused. Version 0.1 wrote no schema."""

CONFIG, ARMS, ENVIRONMENT = "config.json", "arms.json", "environment.jsonl"
METRICS, RESULTS, LEDGER = "metrics.jsonl", "results.json", "ledger.jsonl"
BEST, RETRIEVAL = "best.safetensors", "retrieval.npz"
EVENTS, PICTURES = "tensorboard", ("curves.png", "phi.png", "neighbours.png", "distances.png")

_STAGE = "final.part"
MARK = CONFIG + ".part"
"""Says that a folder is ours although it has no config: a run was stopped while it was started or overwritten."""
_NAMES = "|".join(map(re.escape, (ARMS, ENVIRONMENT, METRICS, RESULTS, BEST, RETRIEVAL, *PICTURES)))
_OURS = re.compile(rf"({_NAMES}|checkpoint-.+\.pt|policy-.+\.safetensors|phi-.+\.npz)(\.part|\.old)?")
"""Files that overwriting deletes: those of a run, except its config, ledger and lock."""


def as_file_name(name: str) -> str:
    """A method's or population's name as part of a file's name.

    Example:
        >>> as_file_name("my_module:my_loss+cosine-average=4.0")
        'my-module-my-loss+cosine-average=4.0'
    """
    return re.sub(r"[^A-Za-z0-9=.+]+", "-", name)


class RunFolder:
    """One run on disk; ``find_folder`` decides whether it may be written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # Files

    def checkpoint(self, population: str) -> Path:
        """The file of a population's checkpoint."""
        return self.path / f"checkpoint-{as_file_name(population)}.pt"

    def policy(self, seed: int, method: str = "") -> Path:
        """The file of a learned policy; ``method`` is needed for methods with options of their own."""
        return self.path / f"policy-{seed}{f'-{as_file_name(method)}' if method else ''}.safetensors"

    def policies(self) -> dict[int, Path]:
        """The policy of every seed, by seed."""
        numbers = {file.stem.removeprefix("policy-"): file for file in self.path.glob("policy-*.safetensors")}
        return {int(number): numbers[number] for number in sorted(filter(str.isdigit, numbers), key=int)}

    def phi(self, family: str) -> Path:
        """The file of a family's Φ history."""
        return self.path / f"phi-{as_file_name(family)}.npz"

    # Reading

    def read(self, name: str) -> Any:
        """The content of a JSON file."""
        path = self.path / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read; give the folder of a run.") from error
        except UNREADABLE as error:
            raise RunFolderError(f"{path} is not JSON ({error}); restore it or run again.") from error

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Lines of JSON; a line that was cut off or damaged is skipped."""
        path = self.path / name
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
            row = None
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
            if isinstance(row, dict):
                yield row

    def arrays(self, path: Path) -> dict[str, NDArray[Any]]:
        """The arrays of an npz file of this folder."""
        try:
            with np.load(path) as saved:
                return dict(saved)
        except (*UNREADABLE, BadZipFile) as error:
            raise RunFolderError(f"{path} cannot be read; give the folder of a run that has written it.") from error

    @contextmanager
    def _complete(self) -> Iterator[None]:
        """A file of the run that lacks what lossalign writes is refused."""
        try:
            yield
        except UNREADABLE as error:
            raise RunFolderError(
                f"{self.path} holds no whole run ({type(error).__name__}: {error}); restore its files or run again."
            ) from error

    def about(self) -> dict[str, Any]:
        """``config.json``, of this schema."""
        content = self.read(CONFIG)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise RunFolderError(f"{self.path} is not a run folder: lossalign did not write its {CONFIG}.")
        found = content.get("schema", 1)
        if found != SCHEMA:
            raise RunFolderError(
                f"{self.path} was written with schema {found} of run folders, and this version of lossalign reads "
                f"schema {SCHEMA}; use the version that wrote it, or run again into another folder."
            )
        return content

    def settings(self) -> tuple[str, dict[str, Any]]:
        """The run's task, and its settings by key, as data."""
        about = self.about()
        try:
            return str(about["run"]["task"]), plain_by_key(about["run"])
        except UNREADABLE as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise RunFolderError(
                f"{self.path / CONFIG} does not hold the config of a run ({what}); restore it or run again."
            ) from error

    @property
    def identity(self) -> str:
        """The start time of this run, as its identifier; kept when the run is resumed."""
        return str(self.about().get("begun"))

    @property
    def scored_on_test(self) -> bool:
        """Whether the ledger has test scores of this run."""
        return any(row.get("begun") == self.identity for row in self.rows(LEDGER))

    @property
    def unentered(self) -> dict[str, Any] | None:
        """Test scores of this run that are not in the ledger: it was killed between the two files."""
        try:
            results = self.read(RESULTS)
        except RunFolderError:
            return None
        is_test = isinstance(results, dict) and results.get("split") == "test"
        return results if is_test and not self.scored_on_test else None

    # Writing

    def enter(self, results: dict[str, Any], command: str) -> None:
        """Enter the test scores of ``results`` into the ledger."""
        about = self.about()
        self.append(
            LEDGER,
            {
                "begun": about["begun"],
                "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "command": command,
                "task": about["run"]["task"],
                "metric": results["metric"],
                "scores": {name: row["mean"] for name, row in results["rows"].items()},
            },
        )

    def clear(self) -> None:
        """Create the folder, or delete all files of the run in it except the ledger of test scores.

        The config goes first, to a name that marks what is left as a folder of ours without a run.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / CONFIG).exists():
            (self.path / CONFIG).replace(self.path / MARK)
        for item in self.path.iterdir():
            if item.name == _STAGE:
                shutil.rmtree(item)
            elif _OURS.fullmatch(item.name) and not item.is_dir():
                item.unlink()
        self.clear_events()

    def clear_events(self) -> None:
        """Delete TensorBoard events."""
        for file in (self.path / EVENTS).glob("events.out.tfevents.*"):
            file.unlink()
        with suppress(OSError):  # there is none, or a file of the user's is in it
            (self.path / EVENTS).rmdir()

    @contextmanager
    def together(self) -> Iterator[RunFolder]:
        """A folder for files that appear in this one when all are complete, ``results.json`` last."""
        stage = self.path / _STAGE
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir()
        try:
            yield RunFolder(stage)
            for file in sorted(stage.iterdir(), key=lambda file: file.name == RESULTS):
                sync(file)
                file.replace(self.path / file.name)
        finally:
            shutil.rmtree(stage, ignore_errors=True)

    def write(self, name: str, content: Any) -> Path:
        """Write JSON; the file is replaced only when it is complete."""
        return self._replace(name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def _replace(self, name: str, text: str) -> Path:
        path = self.path / name
        beside = path.with_name(path.name + ".part")
        with naming(path):
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)
        return path

    def append(self, name: str, row: dict[str, Any]) -> None:
        """Append one line of JSON."""
        with naming(self.path / name), (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def sync_log(self) -> None:
        """Have the log on disk, so that no checkpoint is ahead of it."""
        sync(self.path / METRICS)

    def check_data(self, digests: SplitDigests) -> None:
        """Raise ``RunFolderError`` if a run is resumed on other data."""
        with self._complete():
            what = changed(self.about()["data"], digests)
        if what:
            raise RunFolderError(
                f"resume: the data have changed since this run began ({what}), so that it would train on examples it "
                "is tested on; restore the data, or run again into another --out."
            )

    def describe(self, experiment: Experiment, digests: SplitDigests, *, resumed: bool, ranks: int) -> None:
        """Write the files of a run's start: config, arms, and one line of environment for every start."""
        config, metric = experiment.config, experiment.metric
        begun = self.identity if resumed else datetime.now(timezone.utc).isoformat()
        plain = to_plain(config)
        self.write(
            CONFIG,
            {
                "format": FORMAT,
                "schema": SCHEMA,
                "begun": begun,
                "launch": launch(),
                "run": plain,
                "task": {
                    "name": config.short_name,
                    "class_counts": experiment.counts.tolist(),
                    "class_names": list(experiment.class_names),
                },
                "data": digests,
                "metric": metric.name,
                "higher_is_better": metric.higher_is_better,
                "percent": metric.percent,
                "every": config.control.every,
            },
        )
        self.write(
            ARMS,
            [
                {
                    "method": arm.method,
                    "role": arm.spec.role,
                    "plain": arm.spec.plain,
                    "seed": arm.seed,
                    "population": arm.population,
                    "start": arm.start,
                    "family": arm.family,
                    "family_start": arm.family_rows.start,
                    "children": arm.children,
                    "without": arm.spec.without,
                }
                for arm in experiment.arms
            ],
        )
        self.append(ENVIRONMENT, {**environment(), "ranks": ranks, "run": plain})

    def record(self, population: str, step: StepRecord) -> dict[str, Any]:
        """Append one step to ``metrics.jsonl``; the row."""
        row: dict[str, Any] = {"population": population, "step": step.step, "iteration": step.iteration}
        tensors = {"loss": step.loss, "metric": step.metric, "selection": step.selection, **step.logs}
        for name, tensor in tensors.items():
            row[name] = [round(v, 7) if v == v else None for v in tensor.tolist()]
        self.append(METRICS, row)
        return row

    def rewind(self, population: str, step: int) -> str | None:
        """Delete the steps of a population after ``step``, which a resumed run writes again, and repeated lines.

        Returns:
            A sentence if the log lacks steps that were trained, or has some twice.
        """
        kept: dict[tuple[str, int], dict[str, Any]] = {}
        repeated = 0
        for row in self.rows(METRICS):
            name, number = row.get("population"), row.get("step")
            if not isinstance(name, str) or not isinstance(number, int):
                continue  # a line that no run has written
            place = name, number
            if place[0] != population or 1 <= place[1] <= step:
                repeated += place in kept
                kept.setdefault(place, row)
        self._replace(METRICS, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept.values()))
        lost = step - sum(place[0] == population for place in kept)
        if not lost and not repeated:
            return None
        return (
            f"{self.path / METRICS}: {lost} of {step} steps of {population} are missing and {repeated} lines were "
            "there twice; curves have gaps there, scores and weights do not depend on it."
        )

    def write_phi(self, name: str, phi: Tensor, steps: Tensor, spec: ParameterSpec) -> Path:
        """Write the Φ history of a family: Φ [steps, n, P] under which each of ``steps`` trained."""
        np.savez_compressed(
            self.phi(name),
            phi=phi.numpy(),
            steps=steps.numpy(),
            group_names=np.array([group.name for group in spec.groups]),
            group_sizes=np.array([group.size for group in spec.groups]),
            labels=np.array([label for group in spec.groups for label in group.labels]),
            classes=spec.classes.numpy(),
            group_relative=np.array([group.relative for group in spec.groups]),
            group_readings=np.array([group.reading for group in spec.groups]),
        )
        return self.phi(name)


def sync(path: Path) -> None:
    """Have a file on disk."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())
