"""TensorBoard events hold the mean over each arm's children at every step."""

import json
import sys

import pytest

from lossalign import fit
from lossalign.core import Interrupted
from lossalign.runs import events as events_module
from lossalign.runs.events import Events

SMALL = {"iterations": 30, "children": 2, "seeds": 2, "methods": ("fixed", "ala")}


def test_every_arm_has_its_curves(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    fit("digits-lt", out=tmp_path / "run", **SMALL)
    read = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    read.Reload()
    tags = set(read.Tags()["scalars"])
    assert {f"selection/{method}-{seed}" for method in ("fixed", "ala") for seed in (0, 1)} <= tags
    assert [point.step for point in read.Scalars("selection/ala-0")] == [10, 20, 30]
    assert "entropy/fixed-0" not in tags, "the baseline has no policy"


def test_steps_that_a_resumed_run_repeats_appear_once(tmp_path, stop_after):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    settings = {**SMALL, "iterations": 60}
    with pytest.raises(Interrupted):
        fit("digits-lt", out=tmp_path, listener=stop_after(2), **settings)
    with (tmp_path / "metrics.jsonl").open("a") as file:  # a step after the checkpoint, as before a kill
        last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
        file.write(json.dumps({**last, "step": 3, "iteration": 30}) + "\n")
    fit("digits-lt", out=tmp_path, existing="resume", **settings)
    steps = []
    for path in (tmp_path / "tensorboard").iterdir():
        read = accumulator.EventAccumulator(str(path))
        read.Reload()
        steps += [point.step for point in read.Scalars("selection/ala-0")]
    assert sorted(steps) == [10, 20, 30, 40, 50, 60]


def test_a_broken_tensorboard_costs_events_alone(tmp_path, monkeypatch, stop_after):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    listener = stop_after(1000)
    fit("digits-lt", out=tmp_path / "run", listener=listener, **SMALL)
    assert any(sentence.startswith("tensorboard: no events are written") for sentence in listener.sentences)


def test_without_tensorboard_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(events_module, "find_spec", lambda name: None)
    fit("digits-lt", out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run" / "tensorboard").exists()


class Arm:
    method, seed, rows = "ala", 3, slice(0, 2)


ROW = {
    "population": "mlp-16",
    "step": 1,
    "iteration": 10,
    "loss": [1.0, None],
    "metric": [0.25, 0.75],
    "selection": [0.25, 0.75],
    "reset": [None, None],
}


def test_a_value_that_is_given_for_no_child_is_left_out():
    class Writer:
        def __init__(self):
            self.said = []

        def add_scalar(self, name, value, iteration):
            self.said.append((name, value, iteration))

    writer = Writer()
    Events(writer).record(ROW, [Arm()])
    assert writer.said == [("loss/ala-3", 1.0, 10), ("metric/ala-3", 0.5, 10), ("selection/ala-3", 0.5, 10)]


def test_a_full_disk_ends_the_events_and_is_said_once():
    class Full:
        def add_scalar(self, *_):
            raise OSError(28, "No space left on device")

    said = []
    events = Events(Full(), said.append)
    for _ in range(2):
        events.record(ROW, [Arm()])
    assert len(said) == 1
    assert "No space left on device" in said[0]
