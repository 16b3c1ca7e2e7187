"""The house rules: what is public, what README and docs promise, and that examples run."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import lossalign
from lossalign.cli.flags import parse
from lossalign.cli.listing import POLICIES, REGISTRIES
from lossalign.core import Registry
from lossalign.experiments import TASKS, configure
from lossalign.experiments.families import families
from lossalign.losses.registry import LossEntry
from lossalign.metrics import metric_named
from lossalign.metrics.registry import MetricEntry

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())

MODULES = {
    name: code
    for page in PAGES
    for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
}
"""Files whose code a page shows, by name."""


def test_the_public_names_are_these():
    assert sorted(lossalign.__all__) == [
        *("AdaptiveLoss", "AlignedLoss", "Aligner", "CheckpointError", "ClassCorrelationLoss", "Controller"),
        *("Decision", "DistanceMixtureLoss", "FocalWeightingLoss", "InputError", "Interrupted", "LossalignError"),
        *("NonFiniteError", "Observation", "ParameterGroup", "ParameterSpec", "Policy", "Preset", "RankError"),
        *("RunFolderError", "__version__", "default", "fit", "losses", "metrics", "paper"),
    ]
    assert len([name for name in lossalign.__all__ if name != "__version__"]) <= 25
    assert all(hasattr(lossalign, name) for name in lossalign.__all__)


@pytest.mark.parametrize("module", [lossalign, lossalign.losses, lossalign.metrics], ids=lambda module: module.__name__)
def test_nothing_else_leaks(module):
    """Beside its public names a module shows its files alone; registries are no part of the surface."""
    shown = {name: thing for name, thing in vars(module).items() if not name.startswith("_")}
    assert all(isinstance(thing, ModuleType) for name, thing in shown.items() if name not in module.__all__)
    assert not [name for name in module.__all__ if isinstance(getattr(module, name), Registry)]
    assert not [name for name in module.__all__ if getattr(module, name) in (LossEntry, MetricEntry)]


def test_importing_the_library_brings_no_plotting_no_oracle_and_no_command_line():
    code = "import sys, lossalign; print([m for m in ('matplotlib', 'sklearn', 'scipy', 'torchmetrics', 'tyro', 'rich',"
    code += " 'tensorboard', 'pandas', 'torchvision', 'torch._dynamo', 'torch._inductor') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(example, tmp_path):
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_own_loop_is_at_most_25_lines():
    lines = [line for line in (ROOT / "examples/own_loop.py").read_text().splitlines() if line.strip()]
    assert len(lines) <= 25


@each_page
def test_links_of_a_page_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


CODE = sorted(path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))


def test_pages_that_the_code_names_exist():
    named = {
        (path.relative_to(ROOT).as_posix(), page)
        for path in CODE
        for page in re.findall(r"\bdocs/[\w./-]*\w", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 3
    assert not [f"{path} names {page}" for path, page in named if not (ROOT / page).exists()]


@pytest.fixture
def at_home(monkeypatch, tmp_path):
    """A folder like a user's: the recipes are there, and the data that one of them names."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "data/tiny-imagenet-40/train").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)


@each_page
def test_commands_of_a_page_are_understood(page, at_home):
    """Every `lossalign …` command in a page parses: task, flags, methods and values are known."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for name, code in MODULES.items():  # the commands name some of them
        Path(name).write_text(code, encoding="utf-8")
    for line in re.findall(r"^(?:\$ )?lossalign (?:train|compare) .+$", text, re.MULTILINE):
        _, command, task, *args = shlex.split(line.removeprefix("$ "), comments=True)
        if not task.startswith(("table:", "images:")):
            config = parse(command, task, args).config
            assert families(config)
            metric_named(config.metric, 10)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_a_page_shows_runs(name, tmp_path):
    (tmp_path / name).write_text(MODULES[name], encoding="utf-8")
    done = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@each_page
def test_lists_of_a_page_are_understood(page):
    for words in re.findall(r"lossalign list ([a-z ]+)", page.read_text(encoding="utf-8")):
        assert words.split()[0] in (*REGISTRIES, POLICIES), f"{page.name} says lossalign list {words}"


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.name)
def test_a_recipe_is_understood(recipe, at_home):
    config = configure(f"recipes/{recipe.name}")
    assert config.task in TASKS or config.task.startswith(("table:", "images:"))
    assert families(config)


def test_the_tables_of_the_docs_are_those_of_the_results():
    check = [sys.executable, str(ROOT / "docs" / "make_tables.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def load_make_tables():
    spec = importlib.util.spec_from_file_location("make_tables", ROOT / "docs/make_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("number", "columns"), [(1, []), (8, ["networks"])])
def test_a_table_of_the_docs_says_how_many_networks_where_that_is_not_one(number, columns):
    row = {"mean": 0.1, "difference": None, "half_width": None, "wins": None, "seeds": 2, "p": None}
    names = ("fixed", "ala", "ala+decision", "fixed+val", "ensemble-fixed")
    entry = {
        "baseline": "fixed",
        "learner": "ala",
        "higher_is_better": False,
        "roles": dict.fromkeys(names, "derived") | {"fixed": "baseline", "ala": "learner"},
        "rivals": ["fixed+val", "ensemble-fixed"],
        "rows": dict.fromkeys(names, row),
        "last": dict.fromkeys(names, row),
        "per_seed": {},
        "networks": dict.fromkeys(names, 1) | {"ensemble-fixed": number},
    }
    table = load_make_tables().run_table(entry)
    assert table["columns"][5:] == ["against ensemble-fixed, the best rival on the same data", "last", *columns]
    assert [found[-1] for found in table["rows"]][-1] == (str(number) if columns else "0.1")


@each_page
def test_make_targets_of_a_page_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)`?$", page.read_text(encoding="utf-8"), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name} names make {target}"


@pytest.mark.parametrize("benchmark", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.name)
def test_a_benchmark_finds_what_it_imports(benchmark):
    code = f"import sys; sys.path.insert(0, {str(benchmark.parent)!r}); import {benchmark.stem}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
