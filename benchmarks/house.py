"""Figures of how easy the code is to read, for any checkout.

    python benchmarks/house.py [--src DIR ...] [--json]

Each DIR holds the package ``lossalign`` (default: src of this checkout); several give one column each. Files and
hand-offs are those of a real, small ``lossalign compare digits-lt``: a hand-off is a pair of files of the package, one
with a function that calls a function of the other, directly or through other packages. Everything else is read from the
syntax tree. Takes about a minute for each DIR.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

Figures = dict[str, "int | str"]
Function = ast.FunctionDef | ast.AsyncFunctionDef

FLAGS = "compare digits-lt --seeds 1 --children 2 --iterations 40 --device cpu --out"
PARSERS = {"parse_method", "entry"}
"""Names of the function that parses a method's text, now and before."""
DEFINITIONS = ("experiments/methods/names.py", "experiments/methods.py")
"""Where methods get their names, now and before."""

NAMES = """
import json
from lossalign.experiments.methods import METHODS
print(json.dumps(list(METHODS)))
"""

PROFILED = """
import importlib, json, os, pkgutil, sys, threading
import lossalign
from lossalign.cli.main import main

source = os.path.dirname(os.path.abspath(lossalign.__file__)) + os.sep
assert source.startswith(sys.argv.pop(1)), source
out = sys.argv.pop(1)
for module in pkgutil.walk_packages(lossalign.__path__, "lossalign."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError:
            pass  # needs a package that is not installed

files, edges, inside = set(), set(), {}

def file_of(frame):
    code = frame.f_code
    if code not in inside:
        name = os.path.abspath(code.co_filename)
        inside[code] = name if name.startswith(source) else None
    return inside[code]

def record(frame, event, _):
    if event == "call" and (callee := file_of(frame)):
        files.add(callee)
        while (frame := frame.f_back) and not (caller := file_of(frame)):
            pass
        if frame and caller != callee:
            edges.add((caller, callee))

def leave(code):
    raise SystemExit(code)

os._exit = leave
threading.setprofile(record)
sys.setprofile(record)
try:
    main()
except SystemExit as left:
    sys.setprofile(None)
    code = left.code
with open(out, "w") as file:
    json.dump({"files": len(files), "hand-offs": len(edges), "code": code}, file)
"""


def python(source: Path, code: str, *args: str) -> str:
    """What ``code`` prints when it runs on the package in ``source``."""
    env = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code, *args], env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{source}: {done.stderr}")
    return done.stdout


def passed_through(source: Path) -> Figures:
    """Files and hand-offs of a small run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        python(source, PROFILED, str(source), str(out), *FLAGS.split(), str(Path(folder) / "run"))
        found = json.loads(out.read_text())
    if found["code"]:
        raise SystemExit(f"{source}: `lossalign {FLAGS} …` failed with exit code {found['code']}.")
    return {"files a small compare passes through": found["files"], "hand-offs between them": found["hand-offs"]}


def walk(trees: dict[str, ast.Module]) -> Iterator[tuple[str, ast.AST]]:
    """Every node, with the file it is in."""
    for file, tree in trees.items():
        for node in ast.walk(tree):
            yield file, node


def is_call_of(node: ast.AST, name: str) -> bool:
    """Whether ``node`` is a call ``name(…)`` or ``module.name(…)``."""
    return isinstance(node, ast.Call) and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))


def plain_texts(trees: dict[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Every text constant that is not a statement of its own, as docstrings are, with its file."""
    for file, tree in trees.items():
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
                yield file, node.value


def arguments(trees: dict[str, ast.Module], folder: str, name: str) -> int:
    """Arguments of the function or class ``name`` in a folder or file; those of a dataclass are its fields."""
    for file, node in walk(trees):
        if file.startswith(folder) and isinstance(node, Function | ast.ClassDef) and node.name == name:
            made = node.body if isinstance(node, ast.ClassDef) else [node]
            made_by = [each for each in made if isinstance(each, Function) and each.name in ("__init__", name)]
            if not made_by:
                return len(fields_of(node))
            taken = made_by[0].args
            return len([*taken.posonlyargs, *taken.args, *taken.kwonlyargs]) - isinstance(node, ast.ClassDef)
    raise SystemExit(f"{name} is not in {folder}.")


def fields_of(node: ast.AST) -> list[ast.AnnAssign]:
    """The annotated fields of a class."""
    return [each for each in getattr(node, "body", []) if isinstance(each, ast.AnnAssign)]


def figures(source: Path) -> Figures:
    """All figures of the package in ``source``."""
    package = source / "lossalign"
    texts = {path.relative_to(package).as_posix(): path.read_text() for path in sorted(package.rglob("*.py"))}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    functions = {f"{file}: {node.name}": node for file, node in walk(trees) if isinstance(node, Function)}
    lengths = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions.items()}
    methods = set(json.loads(python(source, NAMES)))
    parser = next(
        node.name for file, node in walk(trees) if file in DEFINITIONS and getattr(node, "name", "") in PARSERS
    )
    literals = [text for file, text in plain_texts(trees) if text in methods and file not in DEFINITIONS]
    configs = {
        node.name: fields_of(node) for node in trees["experiments/config.py"].body if isinstance(node, ast.ClassDef)
    }
    sizes = {name: sum(ast.unparse(f.annotation) not in configs for f in held) for name, held in configs.items()}
    lines = {file: len(text.splitlines()) for file, text in texts.items()}
    longest, largest, section = (max(each, key=lambda n: each[n]) for each in (lengths, lines, sizes))
    return {
        **passed_through(source),
        "calls of the method parser": sum(is_call_of(node, parser) for _, node in walk(trees)),
        "method names as literals outside their definition": len(literals),
        "arguments of Aligner": arguments(trees, "training/", "Aligner"),
        "arguments of split": arguments(trees, "data/", "split"),
        "arguments of Population": arguments(trees, "training/", "Population"),
        "config fields": sum(sizes.values()),
        "config fields, largest class": f"{sizes[section]} ({section})",
        "functions": len(functions),
        "function lines, median": round(statistics.median(lengths.values())),
        "function lines, p90": round(statistics.quantiles(lengths.values(), n=10)[-1]),
        "function lines, longest": f"{lengths[longest]} ({longest})",
        "files": len(lines),
        "lines": sum(lines.values()),
        "lines, largest file": f"{lines[largest]} ({largest})",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[1] / "src"
    parser.add_argument("--src", type=Path, nargs="+", default=[default], metavar="DIR", help="holds lossalign")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args()
    found = {str(source): figures(source.resolve()) for source in given.src}
    if given.json:
        print(json.dumps(found, indent=2))
        return
    rows = [
        ("", *found),
        *((name, *(str(each[name]) for each in found.values())) for name in next(iter(found.values()))),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
