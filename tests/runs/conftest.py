"""Listeners of runs, and a run folder that has just begun."""

import pytest

from lossalign.experiments import configure, to_plain
from lossalign.runs import Listener
from lossalign.runs.find import find_folder
from lossalign.runs.folder import FORMAT, SCHEMA

CONFIG = configure("digits")


class StopAfter(Listener):
    """Stops a run after some steps, and keeps what was said."""

    def __init__(self, steps):
        self.left, self.sentences = steps, []

    def stepped(self, population, record, arms):
        self.left -= 1

    def said(self, sentence):
        self.sentences.append(sentence)

    def stop(self):
        return self.left <= 0


@pytest.fixture
def stop_after():
    """A listener that stops a run after some steps."""
    return StopAfter


@pytest.fixture
def described():
    """What a run folder says of its run, with changes."""

    def describe(**changes):
        return {"format": FORMAT, "schema": SCHEMA, "begun": "today", "run": to_plain(CONFIG), **changes}

    return describe


@pytest.fixture
def run(tmp_path, described):
    """A run folder that has just begun."""
    folder, resumed = find_folder(tmp_path / "run", "refuse", CONFIG)
    assert not resumed
    folder.clear()
    folder.write("config.json", described())
    return folder
