"""Metric learning goes the same way as classification: only losses, metrics and the parts of the data differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lossalign import fit
from lossalign.api import train
from lossalign.cli.flags import parse
from lossalign.evaluation import score
from lossalign.experiments import METHODS, Config, build, configure
from lossalign.experiments.methods.names import COMPARED_CLASSES, COMPARED_EMBEDDINGS
from lossalign.losses.registry import LOSSES

ON_EMBEDDINGS = tuple(name for name in LOSSES if LOSSES[name].embeds)
ADAPTIVE = ("distance-mixture", "scale-matched", "focal-weighting")
FIXED = tuple(name for name in METHODS if getattr(METHODS[name], "loss", None) in ON_EMBEDDINGS)
SMALL = {"iterations": 60, "every": 10, "children": 2, "seeds": 2, "examples_per_class": 20}


def test_the_losses_on_embeddings_are_known() -> None:
    assert set(ADAPTIVE) <= set(ON_EMBEDDINGS)
    assert {"triplet", "margin", "contrastive", "multi-similarity"} <= set(FIXED)


def test_every_method_of_metric_learning_runs(tmp_path: Path) -> None:
    methods = ("fixed", *FIXED, "random-phi", "best-of-random", "random-walk", "ala", "guarded-ala")
    result = fit("digits-retrieval", out=tmp_path / "run", methods=methods, **SMALL)
    assert list(result.rows) == list(methods)
    assert all(0 <= row.mean <= 1 and row.seeds == 2 for row in result.rows.values())
    assert result.train_error == {}
    assert {"phi-distance-mixture.npz", "policy-0.safetensors", "curves.png", "phi.png"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    arms = json.loads((tmp_path / "run" / "arms.json").read_text())
    assert {arm["method"]: arm["children"] for arm in arms}["random-phi"] == 20


def test_losses_of_pytorch_metric_learning_are_rivals_like_any_other(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_metric_learning")
    methods = ("fixed", "pml-multi-similarity", "pml-triplet-margin", "pml-n-pairs", "pml-circle+val")
    result = fit("digits-retrieval", out=tmp_path / "run", methods=methods, **SMALL)
    assert list(result.rows) == list(methods)
    assert len({row.mean for row in result.rows.values()}) > 1
    with np.load(tmp_path / "run" / "phi-pml-circle.npz") as file:
        assert not file["phi"].any()


def test_a_loss_of_pytorch_metric_learning_learns_one_child_after_another_as_ours_does_at_once() -> None:
    pytest.importorskip("pytorch_metric_learning")
    methods = ("multi-similarity", "pml-multi-similarity")
    experiment = build(configure("digits-retrieval", {**SMALL, "methods": methods, "iterations": 300}))
    before = score(experiment, final=True).last
    for population in experiment.populations.values():
        for _ in range(30):
            population.step()
    after = score(experiment, final=True).last
    assert all(after[name].mean() > before[name].mean() + 0.02 for name in methods)
    engines = [population.children.engine for population in experiment.populations.values()]
    assert [engine.split(",")[0] for engine in engines] == ["fused", "sequential"]


@pytest.mark.parametrize("loss", ADAPTIVE)
@pytest.mark.parametrize("framework", ["triplet", "margin"])
def test_training_teaches_classes_never_seen(loss: str, framework: str) -> None:
    settings = {"loss": loss, "framework": framework, "children": 2, "iterations": 300, "methods": ("fixed",)}
    experiment = build(configure("digits-retrieval", settings))
    before = score(experiment, final=True).last["fixed"].mean()
    for _ in range(30):
        next(iter(experiment.populations.values())).step()
    assert score(experiment, final=True).last["fixed"].mean() > before + 0.02


@pytest.fixture
def photos(tmp_path: Path) -> str:
    """Ten classes of six images: a shade each, and noise."""
    draw = np.random.default_rng(0)
    for c in range(10):
        (tmp_path / "photos" / f"{c}").mkdir(parents=True)
        for i in range(6):
            pixels = draw.integers(0, 40, (8, 8, 3)) + 20 * c
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / f"{c}" / f"{i}.png")
    return f"images:{tmp_path / 'photos'}"


def texts(config: Config) -> tuple[str, ...]:
    return tuple(spec.text for spec in config.methods.specs)


def test_own_images_are_retrieved_with_a_loss_of_metric_learning(photos: str, tmp_path: Path) -> None:
    flags = (
        "--loss distance-mixture --validation-classes 2 --selection-classes 2 --test-classes 2 --examples-per-class 6"
    )
    more = "--image-size 8 --model mlp-8+unit --embedding 4 --batch-size 8 --crop 0 --children 2 --device cpu"
    asked = parse("compare", photos, f"{flags} {more} --iterations 20 --every 10 --seeds 2".split())
    assert texts(asked.config) == COMPARED_EMBEDDINGS
    assert asked.config.metric == "recall@1"
    result = train(asked.config, tmp_path / "run", final=True)
    assert set(result.rows) == set(COMPARED_EMBEDDINGS)
    assert texts(parse("compare", photos, ["--loss=focal-weighting"]).config) == COMPARED_EMBEDDINGS
    assert texts(parse("compare", photos, []).config) == COMPARED_CLASSES


def test_products_train_from_their_published_lists(tmp_path: Path) -> None:
    draw, root = np.random.default_rng(0), tmp_path / "Stanford_Online_Products"
    for kind in ("chair_final", "lamp_final"):
        (root / kind).mkdir(parents=True)
    for part, products in (("train", range(1, 13)), ("test", range(13, 17))):
        lines = ["image_id class_id super_class_id path"]
        for product in products:
            for i in range(4):
                name = f"{'chair' if product % 2 else 'lamp'}_final/{product}_{i}.JPG"
                pixels = draw.integers(0, 60, (8, 8, 3)) + 10 * product
                Image.fromarray(pixels.astype(np.uint8)).save(root / name)
                lines.append(f"{len(lines)} {product} 1 {name}")
        (root / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")
    settings = {"data": str(tmp_path), "image_size": 8, "model": "mlp-8+unit", "embedding": 4, "metric": "recall@1,2"}
    held_out = {
        "validation_classes": 3,
        "selection_classes": 3,
        "batch_size": 8,
        "per_class": 2,
        "crop": 0,
        "device": "cpu",
    }
    small = {"iterations": 20, "every": 10, "children": 2, "methods": ("fixed", "ala")}
    experiment = build(configure("sop", {**settings, **held_out, **small}))
    data = experiment.data[0]
    sizes = [int((part.counts > 0).sum()) for part in (data.splits.train, data.splits.validation, data.test)]
    assert sizes == [6, 3, 4]
    next(iter(experiment.populations.values())).step()
    assert 0 <= score(experiment, final=True).best["ala"][0] <= 1
