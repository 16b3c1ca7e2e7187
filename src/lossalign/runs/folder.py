"""Reading and writing of a run folder: config, environment, metrics, Φ history, checkpoints, policies, results, ledger.

All file names of a run are defined here.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossalign.core import VERSION, InputError, ParameterSpec, RunFolderError
from lossalign.experiments import Config, Experiment, by_key, from_plain, to_plain
from lossalign.training import StepRecord

FORMAT, SCHEMA = "lossalign-run", 3
"""Schema of ``config.json``; a folder of another schema is refused. Version 0.1 wrote no schema."""

CONFIG, ARMS, ENVIRONMENT = "config.json", "arms.json", "environment.jsonl"
METRICS, RESULTS, LEDGER = "metrics.jsonl", "results.json", "ledger.jsonl"
BEST, RETRIEVAL = "best.safetensors", "retrieval.npz"

_MAY_DIFFER = ("device", "engine", "compile", "in_memory_gb", "image_cache", "learning_rate")
"""Keys that a resumed run may change: where and how it is computed, and the learning rate, so that a run that diverged
can be resumed at a lower one."""

Existing = Literal["refuse", "resume", "overwrite"]


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
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{path} is not JSON ({error}); restore it or run again.") from error

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Lines of JSON; a line that was cut off or damaged is skipped."""
        path = self.path / name
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
            with suppress(json.JSONDecodeError):
                yield json.loads(line)

    def arrays(self, path: Path) -> dict[str, NDArray[Any]]:
        """The arrays of an npz file of this folder."""
        try:
            with np.load(path) as saved:
                return dict(saved)
        except (OSError, ValueError, BadZipFile) as error:
            raise RunFolderError(f"{path} cannot be read; give the folder of a run that has written it.") from error

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

    @property
    def config(self) -> Config:
        """The run's config."""
        return from_plain(self.about()["run"])

    @property
    def identity(self) -> str:
        """The start time of this run, as its identifier; kept when the run is resumed."""
        return str(self.about()["begun"])

    @property
    def scored_on_test(self) -> bool:
        """Whether the ledger has test scores of this run."""
        return any(row.get("begun") == self.identity for row in self.rows(LEDGER))

    # Writing

    def clear(self) -> None:
        """Create the folder, or delete all files in it except the ledger of test scores."""
        self.path.mkdir(parents=True, exist_ok=True)
        for item in self.path.iterdir():
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item)
            elif item.name != LEDGER:
                item.unlink()

    def write(self, name: str, content: Any) -> Path:
        """Write JSON; the file is replaced only when it is complete."""
        return self._replace(name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def _replace(self, name: str, text: str) -> Path:
        path = self.path / name
        beside = path.with_name(path.name + ".part")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
        return path

    def append(self, name: str, row: dict[str, Any]) -> None:
        """Append one line of JSON."""
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def describe(self, experiment: Experiment, *, resumed: bool, ranks: int) -> None:
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

    def record(self, population: str, step: StepRecord) -> None:
        """Append one step to ``metrics.jsonl``."""
        row: dict[str, Any] = {"population": population, "step": step.step, "iteration": step.iteration}
        tensors = {"loss": step.loss, "metric": step.metric, "selection": step.selection, **step.logs}
        for name, tensor in tensors.items():
            row[name] = [round(v, 7) if v == v else None for v in tensor.tolist()]
        self.append(METRICS, row)

    def rewind(self, population: str, step: int) -> None:
        """Delete the steps of a population after ``step``, which a resumed run writes again."""
        rows = [r for r in self.rows(METRICS) if r["population"] != population or r["step"] <= step]
        self._replace(METRICS, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def logged(self, population: str, name: str) -> NDArray[np.float64]:
        """A logged value of every step and child of a population [steps, N]; NaN where there was none."""
        rows = [row[name] for row in self.rows(METRICS) if row["population"] == population and name in row]
        return np.array(rows, dtype=float)

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


def command() -> str:
    """The command line of this process, or the script that called the library."""
    program, *args = sys.argv or ["python"]
    name = "lossalign" if Path(program).stem in ("lossalign", "__main__") else Path(program).name
    return shlex.join([name, *args])


def launch() -> str | None:
    """An identifier of the torchrun that started this process, kept over its restarts; None without torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    # Without --rdzv-id or --standalone every run is called "none"; the agent's process distinguishes them.
    return f"{platform.node()}/{os.getppid()}" if name == "none" else name


def _restarted_into(folder: RunFolder) -> bool:
    """Whether torchrun has restarted this process and the folder holds the run that it started."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if restarts == 0 or not is_run_folder(folder.path) or not (folder.path / CONFIG).exists():
        return False
    return bool(folder.about().get("launch") == launch())


def environment() -> dict[str, Any]:
    """Hardware and versions of this process."""
    packages = ("torch", "numpy", "safetensors", "torchmetrics", "rich")
    versions = {"lossalign": VERSION}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": versions,
        "command": command(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def is_run_folder(path: Path) -> bool:
    """Whether ``path`` holds a run of any schema, or the ledger of one."""
    if [item.name for item in path.iterdir()] == [LEDGER]:
        return True
    try:
        content = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def find_policies(runs: Path) -> Iterator[tuple[Path, str]]:
    """Learned policies in the run folders inside ``runs``, each with the command that started its run."""
    for config in sorted(runs.glob(f"*/{CONFIG}")):
        folder = RunFolder(config.parent)
        if is_run_folder(folder.path):
            began = next(folder.rows(ENVIRONMENT), {}).get("command", "an unknown command")
            yield from ((path, str(began)) for path in folder.policies().values())


def find_folder(path: Path, existing: Existing, config: Config) -> tuple[RunFolder, bool]:
    """The folder of a run, and whether it holds a run to resume. Nothing is written or deleted yet.

    An existing folder is refused unless it is to be resumed or overwritten; only a run folder is ever overwritten.
    A process that torchrun has restarted resumes its run, whatever ``existing`` says.
    """
    if existing not in get_args(Existing):
        raise InputError(f"existing={existing!r}: choose from {get_args(Existing)}.")
    folder = RunFolder(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return folder, False
    if path.is_dir() and _restarted_into(folder):
        existing = "resume"
    if existing == "refuse":
        raise RunFolderError(
            f"out={path} exists; resume it with --resume, replace it with --overwrite, or choose another folder."
        )
    if not path.is_dir() or not is_run_folder(path):
        raise RunFolderError(f"out={path} is not a run folder, so it is not overwritten; choose another folder.")
    if existing == "overwrite" or not (path / CONFIG).exists():
        return folder, False
    check_same_config(config, folder.config)
    return folder, True


def check_same_config(new: Config, old: Config) -> None:
    """Raise ``RunFolderError`` if a run is resumed with other settings."""
    if new.task != old.task:
        raise RunFolderError(f"resume: the task was {old.task!r} in this run and is {new.task!r} now.")
    before, now = by_key(old), by_key(new)
    for name, value in before.items():
        if name not in _MAY_DIFFER and now[name] != value:
            raise RunFolderError(
                f"resume: {name} was {value!r} in this run and is {now[name]!r} now; use the same settings or another "
                "--out."
            )
