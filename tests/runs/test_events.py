"""TensorBoard events hold the mean over each arm's children at every step."""

import pytest
import torch

from lossalign import fit
from lossalign.runs import events as events_module
from lossalign.runs.events import Events, open_events

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


def test_without_tensorboard_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(events_module, "find_spec", lambda name: None)
    with open_events(tmp_path) as events:
        events.record(None, [])
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_is_told_for_nobody_is_left_out():
    class Writer:
        def __init__(self):
            self.said = []

        def add_scalar(self, name, value, iteration):
            self.said.append((name, value, iteration))

    class Arm:
        method, seed, rows = "ala", 3, slice(0, 2)

    class Record:
        metric = selection = torch.tensor([0.25, 0.75])
        loss, iteration, logs = torch.tensor([1.0, torch.nan]), 10, {"reset": torch.tensor([torch.nan, torch.nan])}

    writer = Writer()
    Events(writer).record(Record(), [Arm()])
    assert writer.said == [("metric/ala-3", 0.5, 10), ("selection/ala-3", 0.5, 10), ("loss/ala-3", 1.0, 10)]
