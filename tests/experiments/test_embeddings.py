"""Metric learning goes the same way as classification: only losses, metrics and the parts of the data differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lossalign.cli.flags import COMPARED, RETRIEVED, parse
from lossalign.core import InputError
from lossalign.experiments import fit
from lossalign.experiments.config import EMBEDDING_LOSSES
from lossalign.experiments.methods import FIXED_EMBEDDINGS
from lossalign.experiments.populations import build, labelled
from lossalign.experiments.recipes import recipe_for
from lossalign.experiments.score import score
from lossalign.metrics import all_pairs, balanced_threshold

SMALL = {"iterations": 60, "every": 10, "children": 2, "seeds": 2, "examples_per_class": 20}


def test_every_method_of_metric_learning_runs(tmp_path: Path) -> None:
    methods = ("fixed", *FIXED_EMBEDDINGS, "random-phi", "best-of-random", "random-walk", "ala", "guarded-ala")
    result = fit("digits-retrieval", out=tmp_path / "run", methods=methods, **SMALL)
    assert list(result.rows) == list(methods)
    assert all(0 <= row.mean <= 1 and row.policies == 2 for row in result.rows.values())
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
    experiment = build(recipe_for("digits-retrieval", methods=methods, **SMALL | {"iterations": 300}))
    before = score(experiment, final=True).last
    for population in experiment.populations.values():
        for _ in range(30):
            population.step()
    after = score(experiment, final=True).last
    assert all(after[name].mean() > before[name].mean() + 0.02 for name in methods)
    engines = [population.children.engine for population in experiment.populations.values()]
    assert [engine.split(",")[0] for engine in engines] == ["fused", "sequential"]


@pytest.mark.parametrize("loss", EMBEDDING_LOSSES)
@pytest.mark.parametrize("framework", ["triplet", "margin"])
def test_training_teaches_classes_never_seen(loss: str, framework: str) -> None:
    settings = {"loss": loss, "framework": framework, "children": 2, "iterations": 300, "methods": ("fixed",)}
    experiment = build(recipe_for("digits-retrieval", **settings))
    before = score(experiment, final=True).last["fixed"].mean()
    for _ in range(30):
        experiment.populations[loss].step()
    assert score(experiment, final=True).last["fixed"].mean() > before + 0.02


@pytest.mark.parametrize(("changes", "initial"), [({}, 2.0), ({"start": "paper"}, 1.0), ({"preset": "paper"}, 1.0)])
def test_phi_starts_where_it_is_best_or_where_the_paper_does(changes: dict[str, str], initial: float) -> None:
    experiment = build(recipe_for("digits-retrieval", **{**SMALL, "loss": "focal-weighting", **changes}))
    assert float(experiment.losses["focal-weighting"].spec.initial.exp()[0]) == pytest.approx(initial)


def test_parts_share_no_class_and_batches_hold_as_many_of_each() -> None:
    experiment = build(recipe_for("digits-retrieval", **SMALL))
    for data in experiment.data.values():
        parts = [data.train.targets, data.reward.targets, data.selection.targets, data.test.targets]
        classes = [set(part.tolist()) for part in parts]
        assert [len(some) for some in classes] == [44, 12, 12, 12]
        assert len(set.union(*classes)) == 80
        assert len(data.reward.targets) == 240
    _, targets = next(iter(experiment.populations["distance-mixture"].children._feed.batches(1)))  # type: ignore[attr-defined]
    assert all(sorted(torch.bincount(row)[torch.bincount(row) > 0].tolist()) == [4] * 16 for row in targets)


def test_the_papers_preset_starts_where_the_paper_does() -> None:
    ours, theirs = (build(recipe_for("digits-retrieval", preset=name, **SMALL)) for name in ("default", "paper"))
    first = [each.losses["distance-mixture"].spec.initial[0] for each in (ours, theirs)]
    assert first == [0.25, 1.0]


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("digits-retrieval", {"methods": ("logit-adjustment",)}, "'logit-adjustment' is for classification"),
        ("digits-retrieval", {"methods": ("fixed", "post-hoc-offsets")}, "'post-hoc-offsets' is for classification"),
        ("digits-lt", {"methods": ("triplet",)}, "'triplet' is for metric learning, and digits-lt is classification"),
        ("digits-lt", {"methods": ("pml-circle",)}, "'pml-circle' is for metric learning, and digits-lt is"),
        ("digits-retrieval", {"methods": ("quadruplet",)}, "'quadruplet' is unknown; .* or pml-NAME for a loss of"),
        ("digits-retrieval", {"methods": ("pml-quadruplet",)}, "(unknown to|run pip install)"),
        ("digits-lt", {"loss": "distance-mixture"}, "metric learning needs both"),
        ("digits-retrieval", {"loss": "aligned"}, "metric learning needs both"),
        ("digits-retrieval", {"reward_classes": 1}, "at least 2"),
        ("digits-retrieval", {"per_class": 7}, "batch_size"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(task: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(recipe_for(task, **changes))


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


def test_own_images_are_retrieved_with_a_loss_of_metric_learning(photos: str, tmp_path: Path) -> None:
    flags = "--loss distance-mixture --reward-classes 2 --selection-classes 2 --test-classes 2 --examples-per-class 6"
    more = "--image-size 8 --model mlp-8+unit --embedding 4 --batch-size 8 --crop 0 --children 2 --device cpu"
    asked = parse("compare", photos, f"{flags} {more} --iterations 20 --every 10 --seeds 2".split())
    assert asked.methods == RETRIEVED
    assert asked.config().metric == "recall@1"
    result = fit(photos, out=tmp_path / "run", final=True, **_changes(photos, asked.config()))
    assert set(result.rows) == set(RETRIEVED)
    assert parse("compare", photos, ["--loss=focal-weighting"]).methods == RETRIEVED
    assert parse("compare", photos, []).methods == COMPARED


def _changes(task: str, config: object) -> dict[str, object]:
    base = vars(recipe_for(task, loss="distance-mixture"))
    return {name: value for name, value in vars(config).items() if value != base[name]} | {"loss": "distance-mixture"}


PAIRS = ("Person_10 1 2", "Person_11 1 3", "Person_10 1 Person_11 1", "Person_10 3 Person_11 4")


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """A tiny LFW: twelve people with four images; two of them are tested with four pairs."""
    draw, root = np.random.default_rng(0), tmp_path / "data" / "lfw"
    people = [f"Person_{c:02d}" for c in range(12)]
    for c, name in enumerate(people):
        (root / name).mkdir(parents=True)
        for i in range(1, 5):
            pixels = draw.integers(0, 30, (8, 8, 3)) + 18 * c
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{name}_{i:04d}.jpg")
    lines = {
        "peopleDevTrain.txt": ["10", *(f"{name}\t4" for name in people[:10])],
        "peopleDevTest.txt": ["2", *(f"{name}\t4" for name in people[10:])],
        "pairsDevTest.txt": ["2", *(pair.replace(" ", "\t") for pair in PAIRS)],
    }
    for name, text in lines.items():
        (root / name).write_text("\n".join(text) + "\n")
    return tmp_path / "data"


def test_faces_are_tested_by_the_published_pairs_at_a_distance_of_the_selection_split(faces: Path) -> None:
    settings = {"data": str(faces), "image_size": 8, "model": "mlp-16+unit", "embedding": 8, "crop": 0, "flip": False}
    held_out = {"reward_classes": 3, "selection_classes": 3, "batch_size": 8, "per_class": 2, "device": "cpu"}
    small = {"iterations": 100, "every": 10, "children": 2, "methods": ("fixed", "ala", "guarded-ala")}
    experiment = build(recipe_for("lfw", **settings, **held_out, **small))
    assert len(experiment.data[0].test) == 6
    for _ in range(10):
        experiment.populations["distance-mixture"].step()
    data, children = experiment.data[0], experiment.populations["distance-mixture"].children
    test = labelled(data.test, data.transform, torch.device("cpu"))
    expected = []
    for child in range(2):
        seen = children.outputs([data.selection.inputs] * 4, "best")[child]
        threshold = balanced_threshold(*all_pairs(seen, data.selection.targets))
        shown = children.outputs([test.inputs] * 4, "best")[child]
        told = {
            pair: (shown[pair[0]] - shown[pair[1]]).norm() <= threshold for pair in ((0, 1), (3, 4), (0, 3), (2, 5))
        }
        expected.append(sum(said == (pair[0] // 3 == pair[1] // 3) for pair, said in told.items()) / 4)
    scores = score(experiment, final=True)
    assert scores.best["fixed"][0] == pytest.approx(float(sum(expected)) / 2)
    assert scores.pairs["fixed"].shape == (4,), "one share of the networks for each published pair"
    for method in ("fixed", "ala", "guarded-ala"):
        assert scores.pairs[method].mean() == pytest.approx(scores.best[method][0])
    assert score(experiment, final=False).pairs == {}


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
        "reward_classes": 3,
        "selection_classes": 3,
        "batch_size": 8,
        "per_class": 2,
        "crop": 0,
        "device": "cpu",
    }
    small = {"iterations": 20, "every": 10, "children": 2, "methods": ("fixed", "ala")}
    experiment = build(recipe_for("sop", **settings, **held_out, **small))
    data = experiment.data[0]
    sizes = [int((part.counts > 0).sum()) for part in (data.splits.train, data.splits.reward, data.test)]
    assert sizes == [6, 3, 4]
    experiment.populations["distance-mixture"].step()
    assert 0 <= score(experiment, final=True).best["ala"][0] <= 1
