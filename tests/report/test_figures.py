"""The pictures of a run folder show what is in it, and survive what a run folder may hold."""

import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lossalign.core import InputError, RunFolderError
from lossalign.report import curves_figure, figures, phi_figure, style, write_pictures
from lossalign.runs import Curves, PhiGroup
from lossalign.runs.folder import FORMAT, SCHEMA

ROLES = {"fixed": "baseline", "ala": "learner"}
GREY, BLUE, VERMILLION = (0x7F, 0x7F, 0x7F), (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)
EVERY = 10


def write_run(
    folder: Path,
    *,
    methods=("fixed", "ala"),
    roles=ROLES,
    seeds=2,
    children=3,
    steps=6,
    classes=4,
    groups=("offsets", "pairs"),
):
    """A run folder with made-up curves: `ala` in population `aligned`, all others in `rivals`."""
    rng = np.random.default_rng(0)
    arms, sizes = [], {}
    for method in methods:
        population = "aligned" if method == "ala" else "rivals"
        for seed in range(seeds):
            start = sizes.get(population, 0)
            who = {"method": method, "role": roles.get(method, "rival"), "plain": ":" not in method, "seed": seed}
            arms.append(
                {
                    **who,
                    "children": children,
                    "population": population,
                    "start": start,
                    "family": population,
                    "family_start": start,
                }
            )
            sizes[population] = start + children
    config = {
        "format": FORMAT,
        "schema": SCHEMA,
        "task": {"name": "two moons", "class_names": [f"class {c}" for c in range(classes)]},
        "metric": "balanced-error",
        "higher_is_better": False,
        "percent": True,
        "every": EVERY,
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "arms.json").write_text(json.dumps(arms))
    lines = [
        {"population": population, "step": step, "iteration": EVERY * (step + 1)}
        | {"selection": (0.5 / (step + 1) + 0.05 * rng.random(size)).tolist()}
        for step in range(steps)
        for population, size in sizes.items()
    ]
    write_lines(folder, lines)
    for population, size in sizes.items():
        write_phi(folder, population, size, steps, classes, groups, rng)
    return folder


def write_phi(folder, population, size, steps, classes, groups, rng):
    where = {
        "offsets": [(i, i) for i in range(classes)],
        "pairs": [(i, j) for i in range(classes) for j in range(i + 1, classes)],
        "mixture": [(-1, -1)] * 5,
    }
    pairs = [pair for group in groups for pair in where[group]]
    np.savez(
        folder / f"phi-{population}.npz",
        phi=rng.choice([-0.1, 0, 0.1], (steps, size, len(pairs))).cumsum(0).astype(np.float32),
        steps=np.arange(1, steps + 1),
        group_names=np.array(groups),
        group_sizes=np.array([len(where[group]) for group in groups]),
        group_relative=np.array([False] * len(groups)),
        group_readings=np.array([""] * len(groups)),
        labels=np.array([f"{i}·{j}" for i, j in pairs]),
        classes=np.array(pairs),
    )


def read_lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def write_lines(folder, lines):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_phi(folder, population, **arrays):
    path = folder / f"phi-{population}.npz"
    with np.load(path) as saved:
        np.savez(path, **(dict(saved) | arrays))


def pixels(path):
    return np.asarray(Image.open(path).convert("RGB"))


def count(image, colour):
    return int((image == np.array(colour, dtype=np.uint8)).all(-1).sum())


def assert_is_a_picture(path):
    assert path.read_bytes().startswith(b"\x89PNG")
    image = pixels(path)
    assert min(image.shape[:2]) > 400
    thinned = image[::3, ::3].astype(np.int64) @ [65536, 256, 1]
    assert len(np.unique(thinned)) > 50
    assert 0.2 < (thinned == 0xFFFFFF).mean() < 0.99


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


def test_both_pictures_lie_in_the_run_folder(run):
    paths = write_pictures(run)
    assert paths == [run / "curves.png", run / "phi.png"]
    for path in paths:
        assert_is_a_picture(path)


def test_the_baseline_is_grey_and_the_learner_has_its_own_colour_wherever_it_stands(tmp_path):
    both = pixels(curves_figure(write_run(tmp_path / "a", methods=("focal", "ala", "fixed"))))
    assert min(count(both, colour) for colour in (GREY, BLUE, VERMILLION)) > 200
    without = pixels(curves_figure(write_run(tmp_path / "b", methods=("ala",))))
    assert count(without, BLUE) > 200
    assert count(without, GREY) < 50
    assert count(without, VERMILLION) == 0


def test_colours_follow_roles_and_not_names():
    shown = style.method_colours(["b", "still", "a", "mine"], ["still", "other"], ["mine", "mine:horizon=1"])
    assert (shown["still"], shown["mine"]) == ("#7f7f7f", "#0072B2")
    assert len(set(shown.values())) == 4
    assert set(style.method_colours(["a", "b"], [], []).values()) == {"#0072B2", "#D55E00"}


def test_the_phi_picture_is_about_the_learner_whatever_its_name(tmp_path):
    roles = {"still": "baseline", "mine": "learner"}
    run = write_run(tmp_path / "run", methods=("still", "other", "mine"), roles=roles, seeds=1, groups=("offsets",))
    before = phi_figure(run).read_bytes()
    with np.load(run / "phi-rivals.npz") as saved:
        phi = saved["phi"]
    for rows, same in ((slice(0, 3), True), (slice(3, 6), True), (slice(6, 9), False)):
        changed = phi.copy()
        changed[:, rows] += 0.5
        change_phi(run, "rivals", phi=changed)
        assert (phi_figure(run).read_bytes() == before) is same


@pytest.mark.parametrize(
    ("moved", "relative", "reading", "title"),
    [
        (True, False, "", "offsets"),
        (True, False, "higher favours the class", "offsets: higher favours the class"),
        (True, True, "higher favours the class", "offsets, centred: higher favours the class"),
        (False, True, "higher favours the class", "offsets, centred: did not move"),
    ],
)
def test_the_title_of_a_group_says_which_direction_means_what(moved, relative, reading, title):
    values = np.arange(4, dtype=np.float32).reshape(2, 1, 2) * moved
    group = PhiGroup("offsets", values, ["0", "1"], np.array([[0, 0], [1, 1]]), ["cat", "dog"], relative, reading)
    assert figures._group_title(group) == title


def test_a_method_far_behind_is_still_in_sight(run):
    lines = read_lines(run)
    for line in lines:
        if line["population"] == "aligned":
            line["selection"] = [value + 0.3 for value in line["selection"]]
    write_lines(run, lines)
    image = pixels(curves_figure(run))
    assert min(count(image, GREY), count(image, BLUE)) > 200


def test_pictures_are_the_same_each_time_and_leave_matplotlib_alone(run):
    settings = dict(matplotlib.rcParams)
    first = [path.read_bytes() for path in write_pictures(run)]
    assert [path.read_bytes() for path in write_pictures(run)] == first
    assert dict(matplotlib.rcParams) == settings


@pytest.mark.parametrize(
    ("draw", "shape"),
    [
        (write_pictures, {"seeds": 1, "children": 1, "steps": 1, "classes": 2}),
        (curves_figure, {"seeds": 1, "children": 1}),
        (curves_figure, {"children": 31, "seeds": 3}),
        (curves_figure, {"methods": tuple(f"rival-{k}" for k in range(12))}),
        (phi_figure, {"children": 1, "seeds": 1}),
        (phi_figure, {"steps": 1}),
        (phi_figure, {"classes": 100}),
        (phi_figure, {"classes": 1000, "groups": ("offsets",), "steps": 2}),
        (phi_figure, {"groups": ("mixture",)}),
        (phi_figure, {"methods": ("fixed",), "groups": ("pairs",), "classes": 2}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_runs_of_every_shape(tmp_path, draw, shape):
    run = write_run(tmp_path / "run", **shape)
    assert draw(run)
    for path in run.glob("*.png"):
        assert_is_a_picture(path)


@pytest.mark.parametrize("hole", [None, float("nan"), float("inf")])
@pytest.mark.parametrize("children", [3, 40])
def test_values_that_are_not_finite(tmp_path, children, hole):
    run = write_run(tmp_path / "run", children=children)
    lines = read_lines(run)
    lines[2]["selection"][0] = hole
    lines[3]["selection"] = [hole] * len(lines[3]["selection"])
    lines[-1]["selection"][1] = hole
    write_lines(run, lines)
    assert_is_a_picture(curves_figure(run))


def test_a_method_without_any_value_does_not_hide_the_others(run):
    lines = read_lines(run)
    for line in lines:
        if line["population"] == "rivals":
            line["selection"] = [None] * len(line["selection"])
    write_lines(run, lines)
    assert count(pixels(curves_figure(run)), BLUE) > 200
    write_lines(run, [line | {"selection": [None] * len(line["selection"])} for line in lines])
    assert curves_figure(run).exists()


def test_phi_that_never_moved(run):
    with np.load(run / "phi-aligned.npz") as saved:
        change_phi(run, "aligned", phi=np.zeros_like(saved["phi"]))
    assert_is_a_picture(phi_figure(run))


def test_the_phi_picture_is_about_the_learner_alone(tmp_path):
    run = write_run(tmp_path / "run", groups=("offsets",))
    before = phi_figure(run).read_bytes()
    change_phi(run, "rivals", phi=np.ones((6, 6, 4), np.float32))
    assert phi_figure(run).read_bytes() == before
    change_phi(run, "aligned", phi=np.ones((6, 6, 4), np.float32))
    assert phi_figure(run).read_bytes() != before


def test_without_a_learner_the_phi_picture_is_about_the_first_method_that_is_no_baseline(tmp_path):
    run = write_run(tmp_path / "run", methods=("fixed", "hyper", "other"), seeds=1, groups=("offsets",))
    before = phi_figure(run).read_bytes()
    with np.load(run / "phi-rivals.npz") as saved:
        phi = saved["phi"]
    for rows, same in ((slice(0, 3), True), (slice(6, 9), True), (slice(3, 6), False)):
        changed = phi.copy()
        changed[:, rows] += 0.5
        change_phi(run, "rivals", phi=changed)
        assert (phi_figure(run).read_bytes() == before) is same


def test_names_are_text_and_not_formulas(tmp_path):
    run = write_run(tmp_path / "run", methods=("fixed", "$x_{"))
    config = json.loads((run / "config.json").read_text())
    task = config["task"] | {"name": "$\\frac{", "class_names": ["$\\beta"] * 4}
    (run / "config.json").write_text(json.dumps(config | {"task": task, "metric": "cost in $ per $"}))
    change_phi(run, "rivals", labels=np.array(["$\\alpha"] * 10))
    for path in write_pictures(run):
        assert_is_a_picture(path)


def test_one_lost_child_does_not_stretch_the_axes_and_a_lost_method_does():
    def curves(*ends):
        values = np.linspace(1, ends, 20)
        return Curves(np.arange(20.0), values, np.zeros(len(ends), dtype=np.int64))

    good = [0.2 + 0.001 * k for k in range(20)]
    lost = curves(*good, 50.0)
    assert figures._late_limits([lost])[1] < 5
    assert figures._end_limits([curves(*good), curves(*good)])[2] == 0
    assert figures._end_limits([lost, curves(*[9.0] * 20)])[1] > 9
    low, high, outside = figures._end_limits([lost])
    assert low < 0.2
    assert 2 < high < 5  # the seed's mean, 2.57, is in sight
    assert outside == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_labels_keep_their_order_and_their_distance(heights):
    wanted = np.array(heights)
    placed = figures._spread(wanted, gap=0.08)
    order = np.argsort(wanted, kind="stable")
    assert (np.diff(placed[order]) >= 0.08 - 1e-9).all()
    assert placed.max() <= 1 + 1e-9
    assert placed.min() >= -1e-9


def test_labels_with_room_stay_where_they_belong():
    wanted = np.array([0.9, 0.1, 0.5, 0.1])
    np.testing.assert_allclose(figures._spread(wanted, gap=0.1), [0.9, 0.05, 0.5, 0.15])


def test_the_way_out_when_matplotlib_is_missing(run, monkeypatch):
    monkeypatch.setattr(style, "_MISSING", ImportError("matplotlib"))
    with pytest.raises(InputError, match=r"lossalign\[report\]"):
        write_pictures(run)


@pytest.mark.parametrize("name", ["config.json", "arms.json", "metrics.jsonl", "phi-aligned.npz"])
def test_a_folder_that_lacks_a_file_is_no_run_folder(run, name):
    (run / name).unlink()
    with pytest.raises(RunFolderError, match=name):
        write_pictures(run)


def test_a_crowded_comparison_shows_means_alone_and_tells_equal_colours_apart(tmp_path):
    import matplotlib.pyplot as plt

    from lossalign.report.figures import _draw_curves
    from lossalign.report.style import method_colours

    names = ["fixed", "ala", *(f"ala:horizon={t}" for t in range(1, 12))]
    methods = {name: Curves(np.arange(3.0), np.ones((3, 4)), np.zeros(4, dtype=int)) for name in names}
    _, axes = plt.subplots()
    _draw_curves(axes, methods, method_colours(names, ["fixed"], ["ala"]), ["fixed"])
    shown = [(line.get_color(), line.get_linestyle()) for line in axes.lines if line.get_color() != "white"]
    assert len(shown) == len(set(shown)) == len(names)
