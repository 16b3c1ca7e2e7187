"""``lossalign policy show | export``."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from lossalign.cli.parser import choose
from lossalign.control import Policy
from lossalign.core import InputError
from lossalign.runs import RunFolder

VERBS = {
    "show": "Show what a policy observes, and its actions in some states.",
    "export": "Copy the policy of a run into a file, for --policy or Policy.load.",
}


def policy_file(path: Path, seed: int | None) -> Path:
    """The policy file at ``path``, or in the run folder ``path``."""
    if not path.is_dir():
        return path
    found = RunFolder(path).policies()
    if not found or (seed is not None and seed not in found):
        wanted = "policy" if seed is None else f"policy of seed {seed}"
        raise InputError(f"{path} holds no {wanted}; train a method that learns first (`lossalign list methods`).")
    return found[next(iter(found)) if seed is None else seed]


def behaviour(policy: Policy) -> Table:
    """Action probabilities of a parameter with statistics above, at, or below the others', early and late."""
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
    """Run one of the two commands."""
    chosen = choose("policy", VERBS, args)
    if chosen is None:
        return 0
    verb, parser, rest = chosen
    parser.add_argument("path", type=Path, help="A policy file or a run folder." if verb == "show" else "A run folder.")
    parser.add_argument("--seed", type=int, default=None, help="Seed of the policy in a run folder. [the first]")
    if verb == "export":
        parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="The file to write.")
    given = parser.parse_args(rest)
    file = policy_file(given.path, given.seed)
    if verb == "show":
        _show(file, console)
    else:
        _export(file, given.out, console)
    return 0


def _show(file: Path, console: Console) -> None:
    policy = Policy.load(file)
    layout, weights = policy.layout, sum(p.numel() for p in policy.parameters())
    seen = f"{layout.statistics} statistic(s) at {layout.history} steps, their change, Φ, time"
    seen += ", sensitivity" if layout.sensitivity else ""
    seen += ", the logit of a rule (prior)" if layout.prior else ""
    console.print(f"{file}: {layout.size} → {' → '.join(map(str, policy.hidden))} → 3, {weights:,} weights.")
    console.print(f"It observes, for each loss parameter: {seen}.", highlight=False)
    if policy.about is not None:
        known = [f"{name} {value}" for name, value in policy.about.provenance.items()]
        console.print(f"Learned on {policy.about}{'; ' if known else ''}{', '.join(known)}.", highlight=False)
    console.print(behaviour(policy))


def _export(file: Path, out: Path, console: Console) -> None:
    Policy.load(file)
    if out.exists():
        raise InputError(f"out={out} exists; choose another file.")
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, out)
    console.print(f"Wrote {out}; use it with `lossalign train TASK --policy {out} --freeze`.")
