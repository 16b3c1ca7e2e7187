"""``lossalign policy show | export``."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.table import Table

from lossalign.control import Policy
from lossalign.core import InputError


@dataclass(frozen=True, kw_only=True)
class Show:
    """What a policy looks at, and what it does in a few telling states."""

    policy: tyro.conf.Positional[Path]
    """A policy file, or a run folder."""
    seed: int | None = None
    """Which policy of a run folder; the first if not given."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """Copy the policy of a run into a file of its own, for --policy or Policy.load."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    out: Path
    """The file to write."""
    seed: int | None = None
    """Which policy of the run; the first if not given."""


def policy_file(path: Path, seed: int | None) -> Path:
    """The policy file behind a path that may be a run folder."""
    if not path.is_dir():
        return path
    found = [file for file in path.glob("policy-*.safetensors") if file.stem.split("-", 1)[1].isdigit()]
    found.sort(key=lambda file: int(file.stem.split("-")[1]))
    if seed is not None:
        found = [file for file in found if file.stem == f"policy-{seed}"]
    if not found:
        wanted = "policy" if seed is None else f"policy of seed {seed}"
        raise InputError(f"{path} holds no {wanted}; train with the method ala first.")
    return found[0]


def behaviour(policy: Policy) -> Table:
    """Action probabilities of a parameter whose statistics stand above, at, or below the others', early and late."""
    layout = policy.layout
    table = Table(title="probability of −β, 0, +β")
    for column in ("statistics against the others", "progress", "−β", "0", "+β"):
        table.add_column(column, justify="right")
    change = layout.statistics * (layout.history + 1)
    for level, words in ((1.5, "1.5 deviations above"), (0.0, "the same"), (-1.5, "1.5 deviations below")):
        for progress in (0.1, 0.9):
            state = torch.zeros(layout.size)
            state[: layout.statistics * layout.history] = level
            state[change + 1] = progress
            with torch.no_grad():
                chances = torch.softmax(policy(state), -1).tolist()
            table.add_row(words, f"{progress:.1f}", *(f"{chance:.2f}" for chance in chances))
    return table


def main(args: list[str], console: Console) -> int:
    """Run one of the two."""
    chosen: Show | Export = tyro.cli(
        Show | Export,
        prog="lossalign policy",
        description="Policies: show, export.",
        args=args,
    )
    if isinstance(chosen, Show):
        file = policy_file(chosen.policy, chosen.seed)
        policy = Policy.load(file)
        layout, weights = policy.layout, sum(p.numel() for p in policy.parameters())
        sees = f"{layout.statistics} statistic(s) at {layout.history} steps, their change, Φ, time"
        sees += ", sensitivity" if layout.sensitivity else ""
        console.print(f"{file}: {layout.size} → {' → '.join(map(str, policy.hidden))} → 3, {weights:,} weights.")
        console.print(f"It sees, for each loss parameter: {sees}.", highlight=False)
        console.print(behaviour(policy))
        return 0
    file = policy_file(chosen.run, chosen.seed)
    Policy.load(file)
    if chosen.out.exists():
        raise InputError(f"out={chosen.out} exists; choose another file.")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, chosen.out)
    console.print(f"Wrote {chosen.out}; use it with `lossalign train TASK --policy {chosen.out} --freeze`.")
    return 0
