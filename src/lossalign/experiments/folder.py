"""A run folder: config, environment, metrics, Φ history, checkpoints, policies, results, ledger."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from lossalign.core import InputError, ParameterSpec, RunFolderError
from lossalign.experiments.config import RunConfig
from lossalign.experiments.populations import Experiment
from lossalign.training import Population, StepRecord

FORMAT = "lossalign-run"
LEDGER = "ledger.jsonl"
_MAY_DIFFER = ("device", "engine", "compile", "in_memory_gb", "image_cache", "learning_rate")
"""What a resumed run may change: where and how it is computed; and one that diverged goes on from its last good
checkpoint with a lower rate."""

Existing = Literal["refuse", "resume", "overwrite"]


class RunFolder:
    """One folder on disk; ``find_folder`` says whether it may be written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def clear(self) -> None:
        """Make the folder, empty but for the ledger of test scores."""
        self.path.mkdir(parents=True, exist_ok=True)
        for item in self.path.iterdir():
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item)
            elif item.name != LEDGER:
                item.unlink()

    def checkpoint(self, population: str) -> Path:
        """Where a population's checkpoint is."""
        return self.path / f"checkpoint-{population}.pt"

    def write(self, name: str, content: Any) -> Path:
        """Write JSON, whole or not at all."""
        return self._replace(name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def _replace(self, name: str, text: str) -> Path:
        path = self.path / name
        beside = path.with_name(path.name + ".part")
        beside.write_text(text)
        beside.replace(path)
        return path

    def read(self, name: str) -> Any:
        """Read JSON back."""
        return json.loads((self.path / name).read_text())

    def append(self, name: str, row: dict[str, Any]) -> None:
        """Append one line of JSON."""
        with (self.path / name).open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Lines of JSON; a line that was cut off or damaged is passed over."""
        path = self.path / name
        for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
            with suppress(json.JSONDecodeError):
                yield json.loads(line)

    @property
    def identity(self) -> str:
        """When this run was begun; a resumed run keeps it, a new one in the same folder gets its own."""
        return str(self.read("config.json")["begun"])

    def describe(self, experiment: Experiment, *, resumed: bool, ranks: int) -> None:
        """Write what is known before training: config, arms, and one line of environment for every start."""
        config, metric = experiment.config, experiment.metric
        begun = self.identity if resumed else datetime.now(timezone.utc).isoformat()
        self.write(
            "config.json",
            {
                "format": FORMAT,
                "begun": begun,
                "launch": launch(),
                "run": config.to_json(),
                "task": {"name": config.short_name, "class_counts": experiment.counts.tolist()},
                "metric": metric.name,
                "higher_is_better": metric.higher_is_better,
                "percent": metric.percent,
                "every": config.every,
            },
        )
        self.write("arms.json", [vars(arm) for arm in experiment.arms])
        self.append("environment.jsonl", {**environment(), "ranks": ranks, "run": config.to_json()})

    def record(self, population: str, step: StepRecord) -> None:
        """Append one step to ``metrics.jsonl``."""
        row: dict[str, Any] = {"population": population, "step": step.step, "iteration": step.iteration}
        tensors = {"loss": step.loss, "metric": step.metric, "selection": step.selection, **step.logs}
        for name, tensor in tensors.items():
            row[name] = [round(v, 7) if v == v else None for v in tensor.tolist()]
        self.append("metrics.jsonl", row)

    def rewind(self, population: str, step: int) -> None:
        """Forget the steps of a population after ``step``: a resumed run writes them again."""
        rows = [r for r in self.rows("metrics.jsonl") if r["population"] != population or r["step"] <= step]
        self._replace("metrics.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def write_phi(self, name: str, population: Population, spec: ParameterSpec) -> Path:
        """Write the Φ history as ``phi-<population>.npz``."""
        phi, steps = population.history
        path = self.path / f"phi-{name}.npz"
        np.savez_compressed(
            path,
            phi=phi.numpy(),
            steps=steps.numpy(),
            group_names=np.array([group.name for group in spec.groups]),
            group_sizes=np.array([group.size for group in spec.groups]),
            labels=np.array([label for group in spec.groups for label in group.labels]),
            classes=spec.classes.numpy(),
        )
        return path


def command() -> str:
    """The command line of this process, or the script that called the library."""
    program, *args = sys.argv or ["python"]
    name = "lossalign" if Path(program).stem in ("lossalign", "__main__") else Path(program).name
    return shlex.join([name, *args])


def launch() -> str | None:
    """Which start of torchrun this process belongs to, the same over its restarts; None without torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    # Without --rdzv-id or --standalone every run is called "none"; the agent that started it tells them apart.
    return f"{platform.node()}/{os.getppid()}" if name == "none" else name


def restarted_into(folder: RunFolder) -> bool:
    """Whether torchrun has restarted this process and the folder holds the run that it had begun."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return restarts > 0 and folder.read("config.json").get("launch") == launch()


def environment() -> dict[str, Any]:
    """What the run ran on."""
    packages = ("lossalign", "torch", "numpy", "safetensors", "torchmetrics", "rich", "tyro")
    versions = {}
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
    """Whether ``path`` holds a run of ours, or the ledger that one left."""
    if [item.name for item in path.iterdir()] == [LEDGER]:
        return True
    try:
        content = json.loads((path / "config.json").read_text())
    except (OSError, json.JSONDecodeError, UnicodeDecodeError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def find_folder(path: Path, existing: Existing, config: RunConfig) -> tuple[RunFolder, bool]:
    """The folder of a run, and whether there is a run in it to go on with. Nothing is written or deleted yet.

    An existing folder is refused unless it is to be resumed or overwritten; only a run folder is ever overwritten.
    A process that torchrun has restarted goes on with what it had begun, whatever ``existing`` says.
    """
    if existing not in get_args(Existing):
        raise InputError(f"existing={existing!r}: choose from {get_args(Existing)}.")
    folder = RunFolder(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return folder, False
    if (path / "config.json").exists() and is_run_folder(path) and restarted_into(folder):
        existing = "resume"
    if existing == "refuse":
        raise RunFolderError(f"out={path} exists; go on with --resume, replace it with --overwrite, or choose another.")
    if not path.is_dir() or not is_run_folder(path):
        raise RunFolderError(f"out={path} is not a run folder, so nothing in it is touched; choose another folder.")
    if existing == "overwrite" or not (path / "config.json").exists():
        return folder, False
    check_same(config, RunConfig.from_json(folder.read("config.json")["run"]))
    return folder, True


def check_same(new: RunConfig, old: RunConfig) -> None:
    """Refuse to resume a run under other settings."""
    for name, value in old.to_json().items():
        if name not in _MAY_DIFFER and new.to_json()[name] != value:
            raise RunFolderError(
                f"resume: {name} was {value!r} in this run and is {new.to_json()[name]!r} now; use the same settings "
                "or another --out."
            )
