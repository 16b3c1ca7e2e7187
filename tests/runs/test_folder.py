"""A run folder is read whole or refused; its files appear complete, and overwriting deletes no others."""

import json
from pathlib import Path

import pytest

from lossalign.core import RunFolderError
from lossalign.experiments import configure, plain_by_key, to_plain
from lossalign.runs import RunFolder, SavedRetrieval, SavedRun
from lossalign.runs.find import find_folder, is_run_folder

CONFIG = configure("digits")


class TestSchema:
    @pytest.fixture(params=[None, 1, 2, 3, 5, "4"], ids=lambda schema: f"schema {schema}")
    def other(self, request, run, described):
        content = described(schema=request.param, run={"task": "digits", "children": 3})
        run.write("config.json", {name: value for name, value in content.items() if value is not None})
        run.write("arms.json", [])
        run.append("metrics.jsonl", {"population": "aligned", "step": 1})
        run.append("ledger.jsonl", {"begun": "today"})
        return run

    def test_a_folder_of_another_is_refused_with_a_sentence(self, other):
        sentence = r"was written with schema .* reads schema 4; use the version that wrote it, or run again"
        for read in (
            other.settings,
            lambda: other.identity,
            lambda: other.scored_on_test,
            lambda: SavedRun.read(other.path),
            lambda: SavedRetrieval.read(other.path),
            lambda: find_folder(other.path, "resume", CONFIG),
        ):
            with pytest.raises(RunFolderError, match=sentence):
                read()

    def test_it_may_be_overwritten(self, other):
        assert is_run_folder(other.path)
        folder, resumed = find_folder(other.path, "overwrite", CONFIG)
        assert not resumed
        folder.clear()
        assert sorted(path.name for path in other.path.iterdir()) == ["config.json.part", "ledger.jsonl"]


def test_the_config_is_read_back_as_it_was_written(run):
    assert run.settings() == ("digits", plain_by_key(to_plain(CONFIG)))


def test_overwriting_keeps_the_ledger_of_test_scores(run):
    run.append("ledger.jsonl", {"command": "first look"})
    run.append("metrics.jsonl", {"step": 1})
    folder, resumed = find_folder(run.path, "overwrite", CONFIG)
    assert not resumed
    assert (run.path / "metrics.jsonl").exists()  # nothing is lost until the new run can start
    folder.clear()
    assert sorted(p.name for p in run.path.iterdir()) == ["config.json.part", "ledger.jsonl"]


def test_overwriting_deletes_files_of_the_run_alone(run):
    own = ["notes.txt", "curves-mine.png", "results.json.bak", "model.pt", "tensorboard/mine.txt", "policy/notes.txt"]
    runs = ["metrics.jsonl", "checkpoint-mlp-16.previous.pt", "policy-0.safetensors", "phi-aligned.npz", "curves.png"]
    runs += ["checkpoint-mlp-16.pt.part", "tensorboard/events.out.tfevents.1"]
    for name in own + runs:
        (run.path / name).parent.mkdir(exist_ok=True)
        (run.path / name).touch()
    find_folder(run.path, "overwrite", CONFIG)[0].clear()
    left = {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}
    assert left == {*own, "config.json.part"}


def test_only_the_scores_of_this_run_count_as_a_look_at_its_test_split(run):
    run.append("ledger.jsonl", {"begun": "yesterday"})
    assert not run.scored_on_test
    run.append("ledger.jsonl", {"begun": "today"})
    assert run.scored_on_test


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


class TestTheLog:
    @pytest.fixture
    def log(self, tmp_path):
        folder = RunFolder(tmp_path)
        for population in "ab":
            for step in (1, 2, 3):
                folder.append("metrics.jsonl", {"population": population, "step": step})
        return folder

    def kept(self, folder):
        return [(row["population"], row["step"]) for row in folder.rows("metrics.jsonl")]

    def test_a_whole_one_needs_no_word(self, log):
        assert log.rewind("a", 3) is None
        assert log.rewind("b", 2) is None

    def test_doubled_lines_are_removed_and_said(self, log):
        log.append("metrics.jsonl", {"population": "a", "step": 2})
        assert "0 of 3 steps of a are missing and 1 lines were there twice" in log.rewind("a", 3)
        assert self.kept(log) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3)]

    def test_lost_lines_are_said(self, log):
        lines = (log.path / "metrics.jsonl").read_text().splitlines(keepends=True)
        (log.path / "metrics.jsonl").write_text("".join(lines[:1] + lines[2:]))
        assert "1 of 3 steps of a are missing" in log.rewind("a", 3)


def test_a_file_that_is_lost_or_damaged_is_named(run):
    with pytest.raises(RunFolderError, match=r"arms\.json cannot be read"):
        run.read("arms.json")
    (run.path / "arms.json").write_text("[")
    with pytest.raises(RunFolderError, match=r"arms\.json is not JSON"):
        run.read("arms.json")
    (run.path / "phi-aligned.npz").write_bytes(b"PK but no more")
    with pytest.raises(RunFolderError, match=r"phi-aligned\.npz cannot be read"):
        run.arrays(run.phi("aligned"))


def test_json_is_written_whole_or_not_at_all(run):
    with pytest.raises(TypeError):
        run.write("config.json", {"thing": object()})
    assert run.settings() == ("digits", plain_by_key(to_plain(CONFIG)))


def test_policies_are_found_by_seed(run):
    for name in ("policy-10", "policy-2", "policy-2-ala-horizon=1"):
        (run.path / f"{name}.safetensors").touch()
    assert [(seed, path.stem) for seed, path in run.policies().items()] == [(2, "policy-2"), (10, "policy-10")]


def test_the_config_is_json_that_says_what_it_is(run):
    content = json.loads((run.path / "config.json").read_text())
    assert (content["format"], content["schema"]) == ("lossalign-run", 4)


CONTENTS = [b"\xff\xfe", b"[" * 200_000, b"9" * 10_000, b"", b"null", b"{}", b'{"format": "lossalign-run"']


@pytest.mark.parametrize("content", CONTENTS)
def test_any_content_of_a_json_file_is_one_sentence(run, content):
    (run.path / "config.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"config\.json"):
        run.settings()
    assert not is_run_folder(run.path)


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about.pop("run"),
        lambda about: about["run"].pop("model"),
        lambda about: about["run"]["control"].update(options=[]),
        lambda about: about.update(run="digits"),
    ],
)
def test_a_config_with_gaps_is_one_sentence(run, described, change):
    about = described()
    change(about)
    run.write("config.json", about)
    with pytest.raises(RunFolderError, match=r"does not hold the config of a run"):
        run.settings()


@pytest.mark.parametrize("line", ["[1]", "null", "{}", '{"population": 3, "step": "x"}', "[" * 100_000, "\0"])
def test_any_line_of_the_log_is_left_out(run, line):
    run.append("metrics.jsonl", {"population": "a", "step": 1})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    assert run.rewind("a", 1) is None
    assert list(run.rows("metrics.jsonl")) == [{"population": "a", "step": 1}]


def test_a_full_disk_names_the_file(run, monkeypatch):
    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*results\.json'"):
        run.write("results.json", {})
