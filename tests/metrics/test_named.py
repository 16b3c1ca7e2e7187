"""A metric is found by its name, its file or its module, and one that does not fit is refused before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lossalign.core import InputError
from lossalign.metrics import BalancedError, FunctionMetric, PipelineMetric, as_metric, metric_named

OWN = """
def seen(outputs, targets):
    seen.calls += 1
    return float(outputs.shape[1])


def of_three(outputs, targets):
    if outputs.shape[1] != 3:
        raise ValueError("three classes, please")
    return 0.0


seen.calls, seen.higher_is_better, of_three.higher_is_better = 0, True, False
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "named_metrics.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "named_metrics", raising=False)
    return "named_metrics"


def test_without_a_number_of_classes_a_users_metric_is_found_but_not_tried(own: str) -> None:
    metric: Any = metric_named(f"{own}:seen")
    assert __import__(own).seen.calls == 0
    assert float(metric(torch.zeros(2, 5), torch.zeros(2).long())) == 5
    assert metric_named(f"{own}:of_three").name


def test_with_one_it_is_tried_on_that_many(own: str) -> None:
    assert metric_named(f"{own}:of_three", 3).higher_is_better is False
    with pytest.raises(InputError, match=r"failed on outputs \[4, 4\]: ValueError: three classes, please"):
        metric_named(f"{own}:of_three", 4)


@pytest.mark.parametrize("higher", [None, False])
def test_a_metric_of_ours_keeps_its_direction(higher: bool | None) -> None:
    metric = BalancedError()
    assert as_metric(metric, higher) is metric
    with pytest.raises(InputError, match="higher_is_better=True contradicts metric 'balanced-error'"):
        as_metric(metric, True)


def test_a_function_of_model_and_loader_is_a_pipeline_by_its_parameters_alone() -> None:
    assert isinstance(as_metric(lambda model, loader: 0.0, True), PipelineMetric)
    assert isinstance(as_metric(lambda outputs, targets: 0.0, True), FunctionMetric)
    assert isinstance(as_metric(lambda loader, model: 0.0, True), FunctionMetric)


def test_a_direction_that_is_given_comes_before_the_functions_own() -> None:
    def mine(outputs: Any, targets: Any) -> float:
        return 0.0

    mine.higher_is_better = True  # type: ignore[attr-defined]
    assert as_metric(mine).higher_is_better is True
    assert as_metric(mine, False).higher_is_better is False
