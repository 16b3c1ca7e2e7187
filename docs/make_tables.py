"""Write the tables and commands of the docs from ``results/*.json``.

    python docs/make_tables.py                      rewrite the blocks in docs/**/*.md and README.md
    python docs/make_tables.py --check              change nothing; exit 1 and name what is out of date
    python docs/make_tables.py add RUN_FOLDER NAME  copy a finished run's figures into results/NAME.json

In a page, a table stands between ``<!-- table: NAME -->`` (``NAME 2``: the second table of that file) and
``<!-- end -->``, the commands between ``<!-- command: NAME -->`` and ``<!-- end -->``. In a table, ``[text](@NAME)``
links to the heading above the table of another file.

A result file holds ``schema`` (1), ``title``, ``command`` (a list of command lines), ``metric``, ``higher_is_better``,
``split``, ``seeds`` (their number), and optionally ``children``, ``machine``, ``date``, ``source`` and ``note``. Its
figures come in one of three forms:

- ``transcribed: true``, typed from an earlier run: ``tables``, a list of ``{columns, rows}``. Cells are Markdown.
  ``highlight`` lists rows in bold, counted from 0. A table may have its own value of any field above.
- ``transcribed: false``, written by ``add``: ``percent``, ``baseline``, ``learner``, ``rivals``, ``roles``, ``rows``,
  ``last``, ``against_learner``, ``train_error``, ``cost`` and ``networks`` by method, and ``per_seed``, the values
  behind them. See ``Result`` in ``lossalign.evaluation``. A benchmark writes ``tables`` itself, as above.
- ``runs``, column → name of a file that ``add`` has written, all with the same methods and seeds. Table 1 holds the
  mean of every method (or of those in ``methods``) in each run, table 2 the paired differences of ``pairs``, a list of
  two methods each. Commands, seeds, split and machine are those of the runs; the file gives ``title`` and ``note``.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import statistics
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 120
BLOCK = re.compile(r"<!-- (table|command): (\S+)(?: (\d+))? -->\n(.*?)<!-- end -->", re.DOTALL)
LINK = re.compile(r"\]\(@([\w.-]+)\)")
PAIRED = ("mean", "difference", "half_width", "wins", "seeds", "p")
COPIED = (
    *(
        "metric",
        "higher_is_better",
        "percent",
        "split",
        "baseline",
        "learner",
        "rivals",
        "roles",
        "train_error",
        "cost",
    ),
    "networks",
)

Entry = dict[str, Any]


class DocsError(Exception):
    """Something in a page, a result file or the arguments that a person must correct."""


def joined(entry: Entry, entries: dict[str, Entry]) -> Entry:
    """A file that names ``runs``, with what it takes from them; any other file as it is."""
    if "runs" not in entry:
        return entry
    missing = [name for name in entry["runs"].values() if name not in entries]
    if missing:
        raise DocsError(f"it names the run {missing[0]!r}, which is no result file")
    runs = {column: entries[name] for column, name in entry["runs"].items()}
    first = next(iter(runs.values()))
    facts = {key: first.get(key) for key in ("seeds", "split", "machine", "date")}
    facts |= {"metric": "a metric for each column", "higher_is_better": None, "transcribed": False}
    title = f"{entry['title']}, paired: gain of the first over the second, positive is better, with 95 % interval"
    tables = [level_table(runs, entry.get("methods")), {**pair_table(runs, entry["pairs"]), "title": title}]
    return {**facts, **entry, "command": [line for run in runs.values() for line in run["command"]], "tables": tables}


def level_table(runs: dict[str, Entry], methods: list[str] | None = None) -> Entry:
    """The mean of each method, selected weights, in each of several runs."""
    chosen = methods or list(next(iter(runs.values()))["rows"])
    heads = [f"{column} {'↑' if run['higher_is_better'] else '↓'}" for column, run in runs.items()]
    cells = [[shown(run["rows"][m]["mean"], run.get("percent", False)) for run in runs.values()] for m in chosen]
    return {"columns": ["method", *heads], "rows": [[m, *row] for m, row in zip(chosen, cells, strict=True)]}


def pair_table(runs: dict[str, Entry], pairs: list[list[str]]) -> Entry:
    """What one method gains over another, in each of several runs; bold where the interval leaves out 0."""
    rows = []
    for one, other in pairs:
        cells = []
        for run in runs.values():
            values, sign = run["per_seed"]["best"], 1 if run["higher_is_better"] else -1
            mean, half = paired([sign * x for x in values[one]], [sign * x for x in values[other]])
            text = interval(mean, half, run.get("percent", False))
            cells.append(f"**{text}**" if half is not None and abs(mean) > half else text)
        rows.append([one, other, *cells])
    return {"columns": ["method", "over", *runs], "rows": rows}


def table_block(entry: Entry, number: int) -> str:
    """The table in Markdown, and below it what it shows."""
    tables = entry["tables"] if "tables" in entry else [run_table(entry)]
    if not 1 <= number <= len(tables):
        raise DocsError(f"it has {len(tables)} tables, not {number}")
    table = tables[number - 1]
    wrong = [row for row in table["rows"] if len(row) != len(table["columns"])]
    if wrong:
        raise DocsError(f"table {number}: {wrong[0]} does not have {len(table['columns'])} cells")
    rows = [[str(cell).replace("|", "\\|") for cell in row] for row in table["rows"]]
    for index in table.get("highlight", []):
        rows[index][0] = f"**{rows[index][0]}**"
    lines = [table["columns"], ["---"] * len(table["columns"]), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{caption({**entry, **table})}\n"


def caption(facts: Entry) -> str:
    """What a table shows, in one or two lines.

    Example:
        >>> facts = {"title": "Digits", "metric": "error %", "higher_is_better": False, "split": "test", "seeds": 5}
        >>> caption({**facts, "children": 4, "transcribed": True})
        '*Digits: error %, lower is better; test split; 5 seeds × 4 children; transcribed.*'
    """
    way = (
        "" if facts["higher_is_better"] is None else f", {'higher' if facts['higher_is_better'] else 'lower'} is better"
    )
    seeds = f"{facts['seeds']} seeds" if facts["seeds"] else ""
    children = f" × {facts['children']} children" if facts.get("children") else ""
    origin = f"transcribed{facts.get('source', '') and ' from ' + facts['source']}" if facts["transcribed"] else ""
    metric = f"{facts['metric'].replace('-', ' ')} %" if facts.get("percent") else facts["metric"]
    parts = [f"{facts['title']}: {metric}{way}", f"{facts['split']} split" if facts["split"] else ""]
    said = "; ".join(part for part in (*parts, seeds + children, facts.get("machine"), origin) if part)
    return textwrap.fill(f"*{said}.* {facts.get('note', '')}".strip(), WIDTH, break_on_hyphens=False)


def command_block(entry: Entry) -> str:
    """The commands as a block of shell."""
    if not entry["command"]:
        raise DocsError("it has no command")
    return "```sh\n" + "\n".join(wrapped(line) for line in entry["command"]) + "\n```\n"


def wrapped(command: str) -> str:
    """A command line, continued on further lines where it is long; a flag stays with its first value.

    Example:
        >>> wrapped("lossalign compare digits-lt --seeds 8")
        'lossalign compare digits-lt --seeds 8'
    """
    kept = re.sub(r"(--\S+) (?!--)", "\\1\0", command)
    lines = textwrap.wrap(kept, WIDTH - 2, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(lines).replace("\0", " ")


def run_table(entry: Entry) -> Entry:
    """The table of a run that ``add`` has copied: one row for each method."""
    baseline, percent, rival = entry["baseline"], entry.get("percent", False), best_rival(entry)
    values = entry["per_seed"].get("best", {})
    head = [
        f"against {baseline}",
        "wins",
        "p",
        *([f"against {rival}, the best rival on the same data"] if rival else []),
    ]
    rows = []
    for method, row in entry["rows"].items():
        wins = "–" if row["wins"] is None else f"{row['wins']} of {row['seeds']}"
        p = "–" if row["p"] is None else f"{row['p']:.3f}"
        cells = [method, shown(row["mean"], percent), interval(row["difference"], row["half_width"], percent), wins, p]
        if rival:
            known = method != rival and method in values and rival in values
            cells.append(interval(*paired(values[method], values[rival]), percent) if known else "–")
        rows.append([*cells, shown(entry["last"][method]["mean"], percent)])
    networks = entry.get("networks") or {}
    several = any(number > 1 for number in networks.values())
    if several:
        rows = [[*row, str(networks[method])] for row, method in zip(rows, entry["rows"], strict=True)]
    highlight = [at for at, method in enumerate(entry["rows"]) if method == entry.get("learner")]
    columns = ["method", "selected", *head, "last", *["networks"] * several]
    return {"columns": columns, "rows": rows, "highlight": highlight}


def best_rival(entry: Entry) -> str | None:
    """The best method that is not the baseline, does not learn a policy, is not made of one that does (``…-ala``), and
    does not train on more data (``…+val``). Files since ``rivals`` was copied say which methods those are."""
    made = [f"-{method}" for method, role in entry["roles"].items() if role == "learner" and ":" not in method]
    made.append("+val")
    rivals = [
        method
        for method in entry["rows"]
        if method != entry["baseline"] and entry["roles"].get(method) != "learner" and not method.endswith(tuple(made))
    ]
    if entry.get("rivals") is not None:
        rivals = [method for method in entry["rivals"] if "+val" not in method]
    best = max if entry["higher_is_better"] else min
    return best(rivals, key=lambda method: entry["rows"][method]["mean"]) if rivals else None


def paired(values: list[float], others: list[float]) -> tuple[float, float | None]:
    """Mean paired difference over seeds, and half its 95 % t-interval; None with one seed.

    Example:
        >>> mean, half = paired([1.0, 2.0, 3.0], [2.0, 3.0, 5.0])
        >>> round(mean, 2), round(half, 2)
        (-1.33, 1.43)
    """
    differences = [a - b for a, b in zip(values, others, strict=True)]
    n = len(differences)
    half = t_quantile(n - 1) * statistics.stdev(differences) / math.sqrt(n) if n > 1 else None
    return statistics.fmean(differences), half


@functools.cache
def t_quantile(degrees: int, confidence: float = 0.95) -> float:
    """t with P(|T| < t) = confidence for Student's T: with T = √ν tan θ the density is cos^{ν−1} θ; integrate.

    Example:
        >>> round(t_quantile(7), 3), round(t_quantile(1), 2)
        (2.365, 12.71)
    """
    steps = 100_000
    density = [math.cos(math.pi / 2 * (k + 0.5) / steps) ** (degrees - 1) for k in range(steps)]
    left = confidence * sum(density)
    for k, each in enumerate(density):
        if left <= each:
            return math.sqrt(degrees) * math.tan(math.pi / 2 * (k + left / each) / steps)
        left -= each
    raise ValueError(f"confidence={confidence}: it must lie between 0 and 1.")


def shown(value: float, percent: bool) -> str:
    """A value of the metric, in percent if people read it so."""
    return f"{100 * value:.2f}" if percent else f"{value:.4g}"


def interval(difference: float | None, half_width: float | None, percent: bool) -> str:
    """A difference with its interval: ``−3.00 ± 1.00``."""
    if difference is None:
        return "–"
    text = (f"{100 * difference:+.2f}" if percent else f"{difference:+.4g}").replace("-", "−")
    return (
        text if half_width is None else f"{text} ± {100 * half_width:.2f}" if percent else f"{text} ± {half_width:.2g}"
    )


def add(folder: Path, name: str) -> Path:
    """Copy what tables need of a finished run into ``results/NAME.json``; an older file lends its title."""
    try:
        found = json.loads((folder / "results.json").read_text())
        started = json.loads((folder / "environment.jsonl").read_text().splitlines()[0])
    except (OSError, IndexError, json.JSONDecodeError) as error:
        raise DocsError(f"{folder}: results.json or environment.jsonl cannot be read ({error}).") from error
    path = ROOT / "results" / f"{name}.json"
    title = json.loads(path.read_text())["title"] if path.exists() else name
    seeds = max(row["seeds"] for row in found["rows"].values())
    entry = {"schema": 1, "title": title, "command": [started["command"]], "transcribed": False, "seeds": seeds}
    entry |= {"date": started["started"][:10], "machine": started.get("gpu") or "CPU"}
    entry |= {key: found.get(key) for key in COPIED}
    for key in ("rows", "last", "against_learner"):
        entry[key] = {method: {part: row.get(part) for part in PAIRED} for method, row in found.get(key, {}).items()}
    path.write_text(json.dumps({**entry, "per_seed": found["seeds"]}, indent=1, ensure_ascii=False) + "\n")
    return path


def homes(pages: list[Path]) -> dict[str, tuple[Path, str]]:
    """The page that shows each result file, and GitHub's anchor of the heading above its first block there."""
    found: dict[str, tuple[Path, str]] = {}
    for page in pages:
        heading = ""
        for line in page.read_text().splitlines():
            if line.startswith("#"):
                heading = anchor(line)
            elif (match := re.match(r"<!-- (?:table|command): (\S+)", line)) and found.get(match[1], ("",))[0] != page:
                found[match[1]] = page, heading
    return found


def anchor(heading: str) -> str:
    """GitHub's anchor of a heading.

    Example:
        >>> anchor("## CIFAR-10-LT, ratio 10: a `smaller` gain")
        'cifar-10-lt-ratio-10-a-smaller-gain'
    """
    return re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower()).replace(" ", "-")


def linked(text: str, page: Path, places: dict[str, tuple[Path, str]]) -> str:
    """A table with its links to other result files resolved, as seen from ``page``."""

    def link(match: re.Match[str]) -> str:
        if match[1] not in places:
            raise DocsError(f"it links to @{match[1]}, which no page shows")
        target, heading = places[match[1]]
        return f"]({Path(os.path.relpath(target, page.parent)).as_posix()}#{heading})"

    return LINK.sub(link, text)


def rendered(root: Path) -> tuple[dict[Path, str], list[str]]:
    """The pages as they should be, and what is wrong with them or with the result files."""
    entries = {path.stem: json.loads(path.read_text()) for path in sorted((root / "results").glob("*.json"))}
    paths = sorted([root / "README.md", *(root / "docs").rglob("*.md")])
    places = homes(paths)
    pages, problems, used = {}, [], set()
    for page in paths:

        def block(match: re.Match[str], page: Path = page) -> str:
            kind, name, number, old = match.groups()
            used.add(name)
            try:
                if name not in entries:
                    raise DocsError("there is no such file")
                if "<!--" in old:
                    raise DocsError(f"the {kind} block has no <!-- end -->")
                entry = joined(entries[name], entries)
                new = command_block(entry) if kind == "command" else table_block(entry, int(number or 1))
                new = linked(new, page, places)
            except DocsError as error:
                problems.append(f"{page.relative_to(root)}: results/{name}.json: {error}")
                return match.group()
            return match.group()[: match.start(4) - match.start()] + new + "<!-- end -->"

        pages[page] = BLOCK.sub(block, page.read_text())
    used |= {name for entry in entries.values() for name in entry.get("runs", {}).values()}
    problems += [f"results/{name}.json: no page shows it" for name in sorted(set(entries) - used)]
    return pages, problems


def main(args: list[str]) -> int:
    """Run one of the three commands; the exit status."""
    if args[:1] == ["add"] and len(args) == 3:
        try:
            print(f"wrote {add(Path(args[1]), args[2])}; name it in a page, then run this script without arguments")
        except DocsError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    if args not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    pages, problems = rendered(ROOT)
    changed = [page for page, text in pages.items() if text != page.read_text()]
    for page in changed:
        if args:
            problems.append(f"{page.relative_to(ROOT)}: out of date; run python docs/make_tables.py")
        else:
            page.write_text(pages[page])
            print(f"wrote {page.relative_to(ROOT)}")
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
