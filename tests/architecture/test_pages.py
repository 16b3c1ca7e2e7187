"""The pages on a user's own loss, metric, controller and data: their files run, and so do their commands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lossalign.cli.main import run_command

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("own-loss", "own-metric", "own-controller", "own-data")
SMALL = ["--children", "2", "--iterations", "60", "--every", "10", "--device", "cpu", "--out", "runs/command"]


def program(page: str) -> str:
    """The one Python file of a page."""
    (found,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)
    return str(found)


def write_program(page: str, folder: Path) -> Path:
    """Write it under the name that its first line gives."""
    code = program(page)
    path = folder / code.splitlines()[0].removeprefix("# ")
    path.write_text(code)
    return path


@pytest.mark.parametrize("page", PAGES)
def test_the_file_of_a_page_has_fewer_than_30_lines_of_code(page: str) -> None:
    assert len([line for line in program(page).splitlines() if line.strip()]) < 30


@pytest.mark.parametrize("page", PAGES)
def test_the_file_and_the_command_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_program(page, tmp_path)
    assert path.stem == page.replace("-", "_")
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, path.name], cwd=tmp_path, env=one_thread, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/own/results.json").exists()

    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    (line,) = re.findall(r"^lossalign (.+)$", (DOCS / f"{page}.md").read_text(), re.MULTILINE)
    code = run_command([*line.split(), *SMALL])
    assert code == 0, capfd.readouterr().err
    assert (tmp_path / "runs/command/results.json").exists()


def test_every_promise_names_a_test_that_exists() -> None:
    page = (DOCS / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/.]+\.py)((?:::\w+)*)`", page)
    assert len(named) > 20
    for file, parts in named:
        code = (DOCS.parent / file).read_text(encoding="utf-8")
        for part in filter(None, parts.split("::")):
            assert re.search(rf"^ *(def|class) {part}\b", code, re.MULTILINE), f"{file}{parts}"
