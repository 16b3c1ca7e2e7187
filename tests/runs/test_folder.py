"""A run folder is refused, resumed or overwritten as asked; what is not a run of this schema is never half read."""

import json

import pytest

from lossalign.core import InputError, RunFolderError
from lossalign.experiments import configure, to_plain
from lossalign.runs import RunFolder, SavedRetrieval, SavedRun, find_policies
from lossalign.runs.environment import launch
from lossalign.runs.folder import FORMAT, SCHEMA, find_folder, is_run_folder

CONFIG = configure("digits")


def described(**changes):
    return {"format": FORMAT, "schema": SCHEMA, "begun": "today", "run": to_plain(CONFIG), **changes}


@pytest.fixture
def run(tmp_path):
    folder, resumed = find_folder(tmp_path / "run", "refuse", CONFIG)
    assert not resumed
    folder.clear()
    folder.write("config.json", described())
    return folder


def test_an_existing_run_is_refused_unless_told(run):
    with pytest.raises(RunFolderError, match="--resume"):
        find_folder(run.path, "refuse", CONFIG)


class TestResuming:
    def test_it_needs_the_same_settings(self, run):
        assert find_folder(run.path, "resume", CONFIG)[1]
        with pytest.raises(RunFolderError, match=r"children was 20 in this run and is 3 now"):
            find_folder(run.path, "resume", configure("digits", {"children": 3}))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"horizon": 2}, "horizon was 5 in this run and is 2 now"),
            ({"methods": "fixed"}, r"methods was \('ala',\) in this run and is \('fixed',\) now"),
        ],
    )
    def test_options_and_methods_are_settings_too(self, run, changes, message):
        with pytest.raises(RunFolderError, match=message):
            find_folder(run.path, "resume", configure("digits", changes))

    def test_it_needs_the_same_task(self, run):
        with pytest.raises(RunFolderError, match="the task was 'digits' in this run and is 'digits-lt' now"):
            find_folder(run.path, "resume", configure("digits-lt"))

    def test_where_and_how_it_is_computed_may_change(self, run):
        changes = {"device": "auto", "engine": "sequential", "compile": "off", "in_memory_gb": 1, "learning_rate": 0.01}
        assert find_folder(run.path, "resume", configure("digits", changes))[1]


@pytest.mark.parametrize("existing", ["resume", "overwrite"])
def test_a_folder_that_is_no_run_is_never_touched(tmp_path, existing):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunFolderError, match="not a run folder"):
        find_folder(tmp_path, existing, CONFIG)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("content", ['{"format": "something else"}', "[1, 2]", "not JSON"])
def test_a_foreign_config_is_no_run_folder(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    assert not is_run_folder(tmp_path)
    with pytest.raises(RunFolderError):
        RunFolder(tmp_path).about()


class TestSchema:
    @pytest.fixture(params=[None, 1, 2, 3, 5, "4"], ids=lambda schema: f"schema {schema}")
    def other(self, request, run):
        content = described(schema=request.param, run={"task": "digits", "children": 3})
        run.write("config.json", {name: value for name, value in content.items() if value is not None})
        run.write("arms.json", [])
        run.append("metrics.jsonl", {"population": "aligned", "step": 1})
        run.append("ledger.jsonl", {"begun": "today"})
        return run

    def test_a_folder_of_another_is_refused_with_a_sentence(self, other):
        sentence = r"was written with schema .* reads schema 4; use the version that wrote it, or run again"
        for read in (
            lambda: other.config,
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
    assert run.config == CONFIG


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


@pytest.mark.parametrize("existing", ["resume", "overwrite"])
@pytest.mark.parametrize(
    "left", [["config.json.part"], ["config.json.part", "metrics.jsonl", "notes.txt"], ["run.lock"]]
)
def test_a_run_that_was_killed_while_it_started_can_be_started_again(tmp_path, existing, left):
    for name in left:
        (tmp_path / name).touch()
    folder, resumed = find_folder(tmp_path, existing, CONFIG)
    assert not resumed
    folder.clear()
    folder.write("config.json", described())
    assert find_folder(tmp_path, "resume", CONFIG)[1]


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


def test_a_folder_with_nothing_but_a_ledger_is_ours(run):
    run.append("ledger.jsonl", {"command": "first look"})
    run.clear()
    (run.path / "config.json.part").unlink()
    assert is_run_folder(run.path)
    assert not find_folder(run.path, "resume", CONFIG)[1]


def test_an_unknown_word_for_existing_folders_is_refused(run):
    with pytest.raises(InputError, match="existing='nonsense'"):
        find_folder(run.path, "nonsense", CONFIG)


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
    assert run.config == CONFIG


def test_policies_are_found_by_seed(run):
    for name in ("policy-10", "policy-2", "policy-2-ala-horizon=1"):
        (run.path / f"{name}.safetensors").touch()
    assert [(seed, path.stem) for seed, path in run.policies().items()] == [(2, "policy-2"), (10, "policy-10")]


def test_policies_are_listed_with_the_command_that_began_their_run(run):
    run.policy(3).touch()
    run.append("environment.jsonl", {"command": "lossalign train digits"})
    run.append("environment.jsonl", {"command": "lossalign train digits --resume"})
    (run.path.parent / "other").mkdir()
    (run.path.parent / "other" / "config.json").write_text("{}")
    assert list(find_policies(run.path.parent)) == [(run.policy(3), "lossalign train digits")]


def test_only_a_restart_of_the_same_launch_resumes_by_itself(run, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-1")
    run.write("config.json", described(launch=launch()))
    with pytest.raises(RunFolderError, match="--resume"):
        find_folder(run.path, "refuse", CONFIG)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert find_folder(run.path, "refuse", CONFIG)[1]
    for other in ("job-2", "none"):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", other)
        with pytest.raises(RunFolderError, match="--resume"):
            find_folder(run.path, "refuse", CONFIG)


def test_the_config_is_json_that_says_what_it_is(run):
    content = json.loads((run.path / "config.json").read_text())
    assert (content["format"], content["schema"]) == ("lossalign-run", 4)
