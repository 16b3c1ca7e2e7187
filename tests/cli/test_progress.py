"""Without a terminal progress is a plain line every minute; Ctrl-C asks for a checkpoint, once."""

import io
import os
import re
import signal

import pytest
from rich.console import Console

from lossalign.cli.progress import PLAIN_SECONDS, SLOW_START, ProgressListener
from lossalign.core import Interrupted
from lossalign.experiments import build, configure


class Clock:
    """Stands still until it is moved."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def listener(clock):
    """A listener without a terminal, and what it has written."""
    console = Console(file=io.StringIO(), force_terminal=False, width=200)
    return ProgressListener(console, clock), console.file


@pytest.fixture(scope="module")
def experiment():
    return build(configure("digits-lt", {"children": 2, "seeds": 2, "methods": ("fixed", "ala"), "iterations": 205}))


def steps(experiment, listener, clock, number, seconds):
    (name, population) = next(iter(experiment.populations.items()))
    record = population.step()
    for _ in range(number):
        clock.now += seconds
        listener.stepped(name, record, experiment.arms_of(name))


def test_the_first_line_says_what_trains(experiment, listener):
    listener, written = listener
    listener.started(experiment, 0)
    first, second = written.getvalue().splitlines()
    assert first.startswith("digits-lt: mlp-16, 2 methods × 2 seeds × 2 children, 20 steps of 10 iterations; engine ")
    assert second == "The last 5 iterations are not a whole step and are not trained."


def test_a_plain_line_comes_every_minute(experiment, listener, clock):
    listener, written = listener
    listener.started(experiment, 0)
    steps(experiment, listener, clock, 12, PLAIN_SECONDS / 4)
    lines = written.getvalue().splitlines()[2:]
    assert lines.pop(0) == "first step after 15 s"
    pattern = r"step (\d+) of 20, ala: balanced error [\d.]+ %, entropy [\d.]+, about (\d+) (s|min) left"
    found = [re.fullmatch(pattern, line) for line in lines]
    assert [match[1] for match in found] == ["4", "8", "12"]
    assert [f"{match[2]} {match[3]}" for match in found] == ["4 min", "3 min", "2 min"]


def test_a_slow_start_is_said_once(experiment, listener, clock):
    listener, output = listener
    listener.started(experiment, 0)
    steps(experiment, listener, clock, 3, SLOW_START + 1)
    assert output.getvalue().count("first step after 6 s") == 1
    assert output.getvalue().count("first step") == 1


def test_a_fast_run_says_nothing_between_start_and_end(experiment, listener, clock):
    listener, written = listener
    listener.started(experiment, 0)
    steps(experiment, listener, clock, 20, 1.0)
    assert len(written.getvalue().splitlines()) == 2


def test_a_resumed_run_reckons_with_the_steps_of_this_session_alone(experiment, listener, clock):
    listener, written = listener
    listener.started(experiment, 10)
    steps(experiment, listener, clock, 2, 45.0)
    assert "step 12 of 20" in written.getvalue()
    assert "about 6 min left" in written.getvalue()


def test_a_terminal_shows_a_bar_instead(experiment, clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    listener = ProgressListener(console, clock)
    listener.started(experiment, 0)
    with listener.running():
        steps(experiment, listener, clock, 3, 2 * PLAIN_SECONDS)
    assert "about" not in console.file.getvalue()
    assert "3/20" in console.file.getvalue()


@pytest.mark.skipif(os.name == "nt", reason="SIGINT is a Unix signal")
def test_the_first_ctrl_c_asks_and_the_second_stops(listener):
    listener, written = listener
    with listener.running():
        assert not listener.stop()
        signal.raise_signal(signal.SIGINT)
        assert listener.stop()
        assert "Press Ctrl-C again" in written.getvalue()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.skipif(os.name == "nt", reason="Unix signals")
class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_while_training_they_ask_for_a_checkpoint(self, experiment, listener, number):
        listener, written = listener

        def train():
            with listener.running():
                listener.started(experiment, 0)
                signal.raise_signal(number)
                assert listener.stop()
                raise Interrupted("stopped at step 3.")

        with pytest.raises(Interrupted) as stopped:
            train()
        assert stopped.value.signal == number
        assert "Stopping after this step" in written.getvalue()

    @pytest.mark.parametrize("phase", ["preparing", "scoring"])
    def test_with_nothing_to_save_they_stop_at_once(self, listener, phase):
        listener, _ = listener
        if phase == "scoring":
            listener.trained()
        with pytest.raises(Interrupted, match=f"stopped while {phase}; resume") as stopped, listener.running():
            signal.raise_signal(signal.SIGTERM)
        assert stopped.value.signal == signal.SIGTERM

    def test_ctrl_c_while_scoring_says_what_will_happen(self, listener):
        listener, written = listener
        with listener.running():
            listener.trained()
            signal.raise_signal(signal.SIGINT)
            assert not listener.stop()
        assert "Training is finished and saved; its scores come in a moment." in written.getvalue()

    def test_nohup_is_respected_and_handlers_are_put_back(self, listener):
        listener, _ = listener
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with listener.running():
                signal.raise_signal(signal.SIGHUP)
                assert not listener.stop()
                assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        finally:
            signal.signal(signal.SIGHUP, before)


def test_a_sentence_is_printed_as_it_is(listener):
    listener, written = listener
    listener.said("a [bold] path [/x] of 100 %")
    assert written.getvalue() == "a [bold] path [/x] of 100 %\n"
