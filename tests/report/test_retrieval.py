"""The pictures of metric learning show what ``retrieval.npz`` holds."""

import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from lossalign.core import RunFolderError
from lossalign.report import distances_figure, neighbours_figure, write_retrieval
from lossalign.report.retrieval import overlap
from lossalign.runs import SavedRetrieval
from lossalign.runs.folder import FORMAT, SCHEMA

GREEN, ORANGE = (0x00, 0x9E, 0x73), (0xD5, 0x5E, 0x00)


def write_run(folder: Path, *, methods=("fixed", "ala"), queries=8, count=8, shape=(8, 8, 1), name="cat", **arrays):
    """A run folder with made-up neighbours: the first half is right."""
    rng = np.random.default_rng(0)
    config = {"format": FORMAT, "schema": SCHEMA, "task": {"name": "two moons"}, "metric": "recall@1"}
    roles = {"fixed": "baseline", "ala": "learner"}
    arms = [{"method": name, "role": roles.get(name, "rival"), "plain": True} for name in methods]
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | {"higher_is_better": True, "percent": True}))
    (folder / "arms.json").write_text(json.dumps(arms))
    right = np.broadcast_to(np.arange(count) < max(1, count // 2), (len(methods), queries, count))
    np.savez(
        folder / "retrieval.npz",
        **{
            "methods": np.array(methods),
            "children": np.zeros(len(methods), np.int64),
            "seed": 3,
            "scores": np.full(len(methods), 0.8),
            "split": np.array("selection"),
            "samples": 240,
            "of": 13180,
            "edges": np.linspace(0, 2, 61),
            "before": rng.integers(0, 50, (2, 60)),
            "after": rng.integers(0, 50, (len(methods), 2, 60)),
            "images": rng.integers(0, 256, (30, *shape)).astype(np.uint8),
            "names": np.array([name] * 30),
            "queries": np.arange(queries),
            "neighbours": rng.integers(8, 30, (len(methods), queries, count)),
            "right": right,
        }
        | arrays,
    )
    return folder


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB"))


def count_of(image, colour):
    return int((image == np.array(colour, dtype=np.uint8)).all(-1).sum())


def assert_is_a_picture(path):
    image = pixels(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert min(image.shape[:2]) > 250
    assert max(image.shape[:2]) < 1800
    thinned = image[::3, ::3].astype(np.int64) @ [65536, 256, 1]
    assert len(np.unique(thinned)) > 50
    assert 0.2 < (thinned == 0xFFFFFF).mean() < 0.95


def test_both_pictures_lie_in_the_run_folder(tmp_path):
    run = write_run(tmp_path / "run")
    paths = write_retrieval(run)
    assert paths == [run / "neighbours.png", run / "distances.png"]
    for path in paths:
        assert_is_a_picture(path)


@pytest.mark.parametrize(
    "shape",
    [
        {"methods": ("ala",)},
        {"methods": ("fixed", "margin")},
        {"queries": 1, "count": 1},
        {"queries": 4, "count": 3, "methods": ("ala",)},
        {"shape": (96, 60, 3)},
        {"name": "a very long name of a class that nobody can read in one line, nor in two"},
        {"name": "$\\frac{"},
        {"scores": np.array([np.nan, 0.5])},
    ],
    ids=str,
)
def test_runs_of_every_shape(tmp_path, shape):
    run = write_run(tmp_path / "run", **shape)
    for path in write_retrieval(run):
        assert_is_a_picture(path)


def test_right_and_wrong_neighbours_are_framed_as_such(tmp_path):
    half = pixels(neighbours_figure(write_run(tmp_path / "half")))
    all_right = pixels(neighbours_figure(write_run(tmp_path / "right", right=np.ones((2, 8, 8), bool))))
    all_wrong = pixels(neighbours_figure(write_run(tmp_path / "wrong", right=np.zeros((2, 8, 8), bool))))
    assert min(count_of(half, GREEN), count_of(half, ORANGE)) > 5000
    assert count_of(all_right, ORANGE) == count_of(all_wrong, GREEN) == 0
    assert count_of(all_right, GREEN) > 1.2 * count_of(all_wrong, ORANGE)  # whole and broken lines


def test_a_method_shows_its_own_neighbours(tmp_path):
    run = write_run(tmp_path / "run")
    before = pixels(neighbours_figure(run))
    neighbours = SavedRetrieval.read(run).arrays["neighbours"].copy()
    neighbours[1] = 29
    after = pixels(neighbours_figure(write_run(run, neighbours=neighbours)))
    changed = (before != after).any((0, 2)).nonzero()[0]
    assert changed.min() > before.shape[1] / 2


def test_inputs_without_images_have_distances_alone(tmp_path):
    run = write_run(tmp_path / "run")
    arrays = {name: array for name, array in SavedRetrieval.read(run).arrays.items() if name != "images"}
    np.savez(run / "retrieval.npz", **arrays)
    assert write_retrieval(run) == [run / "distances.png"]


def test_embeddings_at_a_point_and_a_split_without_pairs_of_one_class(tmp_path):
    point = np.zeros((2, 60), np.int64)
    point[:, 0] = 100
    assert_is_a_picture(distances_figure(write_run(tmp_path / "a", before=point)))
    lonely = np.stack([np.zeros(60, np.int64), np.arange(60)])
    assert_is_a_picture(distances_figure(write_run(tmp_path / "b", before=lonely, after=np.stack([lonely] * 2))))


def test_overlap_is_the_area_under_both():
    apart, alike = np.zeros((2, 60)), np.ones((2, 60))
    apart[0, :20], apart[1, 30:] = 5, 1
    assert (overlap(apart), overlap(alike)) == (0, pytest.approx(1))
    assert overlap(np.array([[1, 1, 0], [0, 10, 10]])) == pytest.approx(0.5)


@pytest.mark.parametrize(("value", "shown"), [(0.8, "recall@1 80.0 %"), (np.nan, "recall@1 has no value")])
def test_the_score_of_a_method_is_said(tmp_path, value, shown):
    assert SavedRetrieval.read(write_run(tmp_path / "run", scores=np.full(2, value))).score(0) == shown


def test_what_was_left_out_is_said(tmp_path):
    assert SavedRetrieval.read(write_run(tmp_path / "a")).samples == "240 of the 13,180 samples of the selection split"
    assert SavedRetrieval.read(write_run(tmp_path / "b", of=240)).samples == "the 240 samples of the selection split"


def test_pictures_are_the_same_each_time_and_leave_matplotlib_alone(tmp_path):
    run, settings = write_run(tmp_path / "run"), dict(matplotlib.rcParams)
    first = [path.read_bytes() for path in write_retrieval(run)]
    assert [path.read_bytes() for path in write_retrieval(run)] == first
    assert dict(matplotlib.rcParams) == settings


def test_a_run_of_classification_has_no_such_pictures(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "retrieval.npz").unlink()
    assert write_retrieval(run) == []
    with pytest.raises(RunFolderError, match="finished run of metric learning"):
        distances_figure(run)


def test_a_damaged_file_is_named(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "retrieval.npz").write_bytes(b"PK but no more")
    with pytest.raises(RunFolderError, match=r"retrieval\.npz"):
        write_retrieval(run)
