import json

import pytest

from lossalign.core import InputError, RunFolderError
from lossalign.experiments import recipe_for
from lossalign.experiments.folder import RunFolder, find_folder, is_run_folder

CONFIG = recipe_for("digits")


@pytest.fixture
def run(tmp_path):
    folder, resumed = find_folder(tmp_path / "run", "refuse", CONFIG)
    assert not resumed
    folder.clear()
    folder.write("config.json", {"format": "lossalign-run", "run": CONFIG.to_json()})
    return folder


def test_an_existing_run_is_refused_unless_told(run):
    with pytest.raises(RunFolderError, match="--resume"):
        find_folder(run.path, "refuse", CONFIG)


def test_resuming_needs_the_same_settings(run):
    assert find_folder(run.path, "resume", CONFIG)[1]
    with pytest.raises(RunFolderError, match=r"children was 20 in this run and is 3 now"):
        find_folder(run.path, "resume", recipe_for("digits", children=3))


@pytest.mark.parametrize("existing", ["resume", "overwrite"])
def test_a_folder_that_is_no_run_is_never_touched(tmp_path, existing):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunFolderError, match="not a run folder"):
        find_folder(tmp_path, existing, CONFIG)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_foreign_config_is_no_run_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"format": "something else"}))
    assert not is_run_folder(tmp_path)


def test_overwriting_keeps_the_ledger_of_test_scores(run):
    run.append("ledger.jsonl", {"command": "first look"})
    run.append("metrics.jsonl", {"step": 1})
    folder, resumed = find_folder(run.path, "overwrite", CONFIG)
    assert not resumed
    assert (run.path / "metrics.jsonl").exists()  # nothing is lost until the new run can start
    folder.clear()
    assert [p.name for p in run.path.iterdir()] == ["ledger.jsonl"]


def test_rewinding_forgets_later_steps_of_one_population(tmp_path):
    folder = RunFolder(tmp_path)
    for population in "ab":
        for step in (1, 2, 3):
            folder.append("metrics.jsonl", {"population": population, "step": step})
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"population": "a", "st\n')
    folder.rewind("a", 1)
    kept = [(row["population"], row["step"]) for row in folder.rows("metrics.jsonl")]
    assert kept == [("a", 1), ("b", 1), ("b", 2), ("b", 3)]


def test_a_folder_with_nothing_but_a_ledger_is_ours(run):
    run.append("ledger.jsonl", {"command": "first look"})
    run.clear()
    assert is_run_folder(run.path)
    assert not find_folder(run.path, "resume", CONFIG)[1]


def test_an_unknown_word_for_existing_folders_is_refused(run):
    with pytest.raises(InputError, match="existing='nonsense'"):
        find_folder(run.path, "nonsense", CONFIG)
