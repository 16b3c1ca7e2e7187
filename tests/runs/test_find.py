"""A run folder is refused, resumed or overwritten as asked; what is not a run is never touched."""

import pytest

from lossalign.core import InputError, RunFolderError
from lossalign.experiments import configure
from lossalign.runs import RunFolder, find_policies
from lossalign.runs.environment import launch
from lossalign.runs.find import find_folder, is_run_folder

CONFIG = configure("digits")


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


@pytest.mark.parametrize("existing", ["resume", "overwrite"])
@pytest.mark.parametrize(
    "left", [["config.json.part"], ["config.json.part", "metrics.jsonl", "notes.txt"], ["run.lock"]]
)
def test_a_run_that_was_killed_while_it_started_can_be_started_again(tmp_path, existing, left, described):
    for name in left:
        (tmp_path / name).touch()
    folder, resumed = find_folder(tmp_path, existing, CONFIG)
    assert not resumed
    folder.clear()
    folder.write("config.json", described())
    assert find_folder(tmp_path, "resume", CONFIG)[1]


def test_a_folder_with_nothing_but_a_ledger_is_ours(run):
    run.append("ledger.jsonl", {"command": "first look"})
    run.clear()
    (run.path / "config.json.part").unlink()
    assert is_run_folder(run.path)
    assert not find_folder(run.path, "resume", CONFIG)[1]


def test_an_unknown_word_for_existing_folders_is_refused(run):
    with pytest.raises(InputError, match="existing='nonsense'"):
        find_folder(run.path, "nonsense", CONFIG)


def test_policies_are_listed_with_the_command_that_began_their_run(run):
    run.policy(3).touch()
    run.append("environment.jsonl", {"command": "lossalign train digits"})
    run.append("environment.jsonl", {"command": "lossalign train digits --resume"})
    (run.path.parent / "other").mkdir()
    (run.path.parent / "other" / "config.json").write_text("{}")
    assert list(find_policies(run.path.parent)) == [(run.policy(3), "lossalign train digits")]


def test_only_a_restart_of_the_same_launch_resumes_by_itself(run, monkeypatch, described):
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
