"""Every metric lifted over children equals the metric of each child."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.metrics import MeanCost, RecallAtK, metric_named, over_children, score_children
from lossalign.metrics.registry import METRICS


@pytest.mark.parametrize("name", METRICS)
def test_vmap_equals_a_loop(name: str) -> None:
    g = torch.Generator().manual_seed(0)
    size = 2 if name.endswith("binary") else 7
    outputs = torch.randn(3, 60, size, generator=g).round(decimals=1)
    targets = torch.randint(0, min(size, 6), (3, 60), generator=g)  # class 6 has no samples
    metric = MeanCost(torch.rand(7, 7, generator=g)) if name == "mean-cost" else metric_named(name, size)
    assert metric.vectorised
    lifted, looped = (over_children(metric, vectorised, outputs, targets) for vectorised in (True, False))
    assert lifted.shape == (3,)
    torch.testing.assert_close(lifted, looped)
    torch.testing.assert_close(looped[1], metric(outputs[1], targets[1]))


def test_a_function_may_return_more_than_a_number() -> None:
    outputs, targets = torch.arange(12.0).view(2, 3, 2), torch.zeros(2, 3, dtype=torch.long)
    for vectorised in (True, False):
        assert over_children(lambda o, t: o.sum(0), vectorised, outputs, targets).tolist() == [[6, 9], [24, 27]]


def reading(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum() * float(targets.float().mean())


def raising(outputs: Tensor, targets: Tensor) -> Tensor:
    raise RuntimeError("of its own")


def test_a_function_that_reads_values_is_told_to_say_so() -> None:
    outputs, targets = torch.zeros(2, 3, 2), torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(InputError, match=r"reading: torch.func.vmap cannot lift it .*\.item\(\).*vectorised = False"):
        over_children(reading, True, outputs, targets)
    assert over_children(reading, False, outputs, targets).tolist() == [0, 0]
    with pytest.raises(RuntimeError, match="of its own"):
        over_children(raising, True, outputs, targets)


@pytest.mark.parametrize("samples", [30, 800])
def test_a_large_set_is_scored_child_by_child_where_samples_are_compared(
    samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    plain = RecallAtK.__call__

    def counted(self: RecallAtK, outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return plain(self, outputs, targets)

    monkeypatch.setattr(RecallAtK, "__call__", counted)
    g = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(3, samples, 4, generator=g), torch.randint(0, 9, (3, samples), generator=g)
    scores = score_children(RecallAtK(), outputs, targets)
    assert calls == (1 if samples == 30 else 3)
    torch.testing.assert_close(scores, over_children(RecallAtK(), True, outputs, targets))
