"""The house rules: what is public, what README and docs promise, and that examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lossalign

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def test_the_public_names_are_these():
    assert sorted(lossalign.__all__) == [
        *("AdaptiveLoss", "AlignedLoss", "Aligner", "CheckpointError", "ClassCorrelationLoss", "DistanceMixtureLoss"),
        *("FocalWeightingLoss", "InputError"),
        *("LossalignError", "NonFiniteError", "ParameterGroup", "ParameterSpec", "Policy", "Preset", "RunFolderError"),
        *("default", "fit", "metrics", "paper"),
    ]
    assert len(lossalign.__all__) <= 20


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


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_of_a_page_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text()):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_of_a_page_are_understood(page, monkeypatch, tmp_path):
    """Every `lossalign …` command in a page parses: task, flags, methods and values are known."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "data/tiny-imagenet-40/train").mkdir(parents=True)  # a recipe names it
    monkeypatch.chdir(tmp_path)
    from lossalign.cli.flags import parse
    from lossalign.experiments.families import families
    from lossalign.metrics import metric_named

    for line in re.findall(r"^lossalign (?:train|compare) .+$", page.read_text().replace("\\\n", " "), re.MULTILINE):
        _, command, task, *args = line.split()
        if not task.startswith(("table:", "images:")):
            config = parse(command, task, args).config()
            assert families(config)
            metric_named(config.metric, 10)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_make_targets_of_a_page_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)`?$", page.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name} names make {target}"
