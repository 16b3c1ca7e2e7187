"""Every task finds its data source by name."""

import pytest

from lossalign.core import InputError
from lossalign.data.registry import DATA_SOURCES, SourceSettings, load_source
from lossalign.experiments import TASKS


def test_the_source_of_every_task_is_registered():
    assert {TASKS[name].source for name in TASKS} <= set(DATA_SOURCES)


@pytest.mark.parametrize(("name", "classes"), [("digits", 10), ("turned-digits", 80)])
def test_what_comes_with_the_package_is_there_without_a_folder(name, classes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = load_source(name, SourceSettings())
    assert loaded.examples.num_classes == classes
    assert (loaded.test, loaded.pairs) == (None, None)


@pytest.mark.parametrize("name", sorted(set(DATA_SOURCES) - {"digits", "turned-digits"}))
def test_data_that_are_not_there_are_named_with_the_way_to_get_them(name, tmp_path):
    with pytest.raises(InputError, match=r"fetch|not a file|does not exist|no such|missing|cannot|not a folder"):
        load_source(name, SourceSettings(folder=str(tmp_path / "nowhere.csv")))


def test_an_unknown_source_is_answered_with_those_there_are():
    with pytest.raises(InputError, match=r"data source 'cifar1' is unknown; did you mean 'cifar10'\?"):
        load_source("cifar1", SourceSettings())


def test_a_folder_that_is_not_named_is_data():
    assert SourceSettings().path.as_posix() == "data"
