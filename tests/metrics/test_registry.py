"""Names make metrics; a name that cannot, says why before training begins."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import lossalign.metrics
from lossalign.core import InputError
from lossalign.metrics import MeanCost, Metric, metric_named
from lossalign.metrics.registry import METRICS

OWN = """
from lossalign.metrics import ErrorRate, Metric

class Largest(Metric):
    name, higher_is_better, vectorised = "largest", True, True
    def __call__(self, outputs, targets):
        return outputs.max()

class Picky(Largest):
    def __init__(self, size):
        pass

instance = Largest()
def told(outputs, targets):
    return 0.5
told.higher_is_better = False
def untold(outputs, targets):
    return 0.5
def pipeline(model, loader):
    return 0.5
pipeline.higher_is_better = True
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_metrics.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_metrics"
    sys.modules.pop("own_metrics", None)


@pytest.mark.parametrize("name", [name for name in METRICS if name != "mean-cost"])
def test_every_name_makes_the_metric_that_bears_it(name: str) -> None:
    metric = metric_named(name, num_classes=2 if name.endswith("binary") else 10)
    assert isinstance(metric, Metric)
    assert metric.name == name


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        metric_named("acuracy")
    assert all(name in str(caught.value) for name in METRICS)


@pytest.mark.parametrize("suffix", ["csv", "npy"])
def test_costs_come_from_a_file(tmp_path, suffix: str) -> None:
    path = tmp_path / f"costs.{suffix}"
    path.write_text("0, 10\n1, 0\n") if suffix == "csv" else np.save(path, np.array([[0, 10], [1, 0]]))
    metric = metric_named(f"mean-cost:{path}", num_classes=2)
    assert isinstance(metric, MeanCost)
    assert metric.costs.tolist() == [[0, 10], [1, 0]]
    with pytest.raises(InputError, match=r"costs is for 2 classes, .*the outputs have 3"):
        metric_named(f"mean-cost:{path}", num_classes=3)


def test_costs_that_cannot_be_read_are_refused(tmp_path) -> None:
    (tmp_path / "words.csv").write_text("a,b\n")
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    for wrong in ("missing.csv", "words.csv", "objects.npy"):
        with pytest.raises(InputError, match=f"{wrong}' cannot be read"):
            metric_named(f"mean-cost:{tmp_path / wrong}")
    with pytest.raises(InputError, match=r"must end in \.csv or \.npy"):
        metric_named("mean-cost:costs.txt")


@pytest.mark.parametrize(
    ("name", "way_out"), [("mean-cost", "write 'mean-cost:costs.csv'"), ("error:x", "write 'error'")]
)
def test_a_file_is_named_where_one_is_needed_and_only_there(name: str, way_out: str) -> None:
    with pytest.raises(InputError, match=way_out):
        metric_named(name)


@pytest.mark.parametrize(("name", "classes"), [("top5-error", 5), ("aucpr-binary", 3), ("auroc-binary", 10)])
def test_a_metric_that_does_not_fit_the_classes_is_refused(name: str, classes: int) -> None:
    with pytest.raises(InputError, match="choose"):
        metric_named(name, num_classes=classes)


@pytest.mark.parametrize(("attribute", "value"), [("Largest", 2.0), ("instance", 2.0), ("told", 0.5)])
def test_a_metric_of_ones_own_by_import_path(own: str, attribute: str, value: float) -> None:
    assert metric_named(f"{own}:{attribute}", 2)(torch.tensor([[1.0, 2.0]]), torch.tensor([0])) == value


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_metrics:untold", "pass higher_is_better"),
        ("own_metrics:pipeline", "pipeline"),
        ("own_metrics:absent", "has no 'absent'"),
        ("own_metrics:Picky", "name an instance instead"),
        ("no_such_module:x", "there is no module 'no_such_module'"),
        (":x", "write module:attribute"),
    ],
)
def test_an_import_path_that_leads_nowhere_says_so(own: str, path: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        metric_named(path)


def test_importing_metrics_is_light_and_all_names_are_there() -> None:
    heavy = ("torchmetrics", "scipy", "sklearn", "matplotlib")
    code = f"import sys, lossalign.metrics; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert all(hasattr(lossalign.metrics, name) for name in lossalign.metrics.__all__)
