"""Listeners of runs."""

import pytest

from lossalign.runs import Listener


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
