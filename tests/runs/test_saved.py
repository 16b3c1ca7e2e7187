"""A run folder is read row by row, whatever order and state its lines are in."""

import json

import numpy as np
import pytest

from lossalign.core import RunFolderError
from lossalign.runs import Curves, SavedRun, finite_mean, read_groups, saved
from lossalign.runs.folder import FORMAT, SCHEMA


def arm(method, seed, start, population="p", children=2, role="rival"):
    who = {"method": method, "role": role, "plain": ":" not in method, "seed": seed}
    return {
        **who,
        "children": children,
        "population": population,
        "start": start,
        "family": population,
        "family_start": start,
    }


def line(step, selection, population="p"):
    return {"population": population, "step": step, "iteration": 10 * step, "selection": selection}


def write(folder, arms, lines, metric="error", tail="", percent=True):
    config = {
        "format": FORMAT,
        "schema": SCHEMA,
        "task": {"name": "t", "class_names": ["cat", "dog"]},
        "metric": metric,
        "every": 10,
    }
    config |= {"higher_is_better": False, "percent": percent}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "arms.json").write_text(json.dumps(arms))
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(entry) for entry in lines) + "\n" + tail)
    return SavedRun.read(folder)


def test_an_arm_owns_its_rows(tmp_path):
    run = write(tmp_path, [arm("a", 0, 0), arm("b", 0, 2), arm("a", 1, 4)], [line(1, [1, 2, 3, 4, 5, 6])])
    a, b = Curves.read(run, "a"), Curves.read(run, "b")
    assert a.values.tolist() == [[1, 2, 5, 6]]
    assert a.seeds.tolist() == [0, 0, 1, 1]
    assert a.last_by_seed.tolist() == [1.5, 5.5]
    assert b.values.tolist() == [[3, 4]]


def test_steps_are_sorted_and_the_last_word_on_a_step_counts(tmp_path):
    run = write(tmp_path, [arm("a", 0, 0)], [line(2, [5, 7]), line(1, [1, 3]), line(2, [6, 8])])
    curves = Curves.read(run, "a")
    assert curves.iterations.tolist() == [10, 20]
    assert curves.mean.tolist() == [2, 7]


def test_populations_that_stopped_at_different_steps_share_one_axis(tmp_path):
    arms = [arm("a", 0, 0, "p"), arm("a", 1, 0, "q")]
    run = write(tmp_path, arms, [line(1, [1, 1]), line(2, [2, 2]), line(1, [3, 3], "q")])
    curves = Curves.read(run, "a")
    np.testing.assert_equal(curves.values, [[1, 1, 3, 3], [2, 2, np.nan, np.nan]])
    assert curves.mean.tolist() == [2, 2]


def test_a_line_cut_short_by_a_stop_is_left_out(tmp_path):
    run = write(tmp_path, [arm("a", 0, 0)], [line(1, [1, 1])], tail='{"population": "p", "st')
    assert len(run.steps["p"]) == 1


def test_a_broken_line_in_the_middle_is_reported(tmp_path):
    with pytest.raises(RunFolderError, match="line 2 is not JSON"):
        write(tmp_path, [arm("a", 0, 0)], [line(1, [1, 1])], tail="{\n" + json.dumps(line(2, [1, 1])))


def test_a_population_without_steps_is_reported(tmp_path):
    with pytest.raises(RunFolderError, match=r"no finished step of \['q'\]"):
        write(tmp_path, [arm("a", 0, 0), arm("b", 0, 0, "q")], [line(1, [1, 1])])
    with pytest.raises(RunFolderError, match="any arm"):
        write(tmp_path, [], [line(1, [1, 1])])


@pytest.mark.parametrize("percent", [True, False])
def test_the_metric_says_whether_it_is_read_in_percent(tmp_path, percent):
    assert write(tmp_path, [arm("a", 0, 0)], [line(1, [0.1, 0.2])], percent=percent).percent is percent


def save_phi(folder, phi, relative=False):
    classes = np.array([[0, 0], [1, 1], [0, 1]])
    names, sizes, labels = np.array(["offsets", "pairs"]), np.array([2, 1]), np.array(["x", "y", "x·y"])
    steps = np.arange(1, len(phi) + 1)
    np.savez(
        folder / "phi-p.npz",
        phi=phi,
        steps=steps,
        group_names=names,
        group_sizes=sizes,
        group_relative=np.array([relative, False]),
        group_readings=np.array(["up: more", ""]),
        labels=labels,
        classes=classes,
    )


def test_groups_are_slices_of_phi(tmp_path):
    run = write(tmp_path, [arm("b", 0, 0), arm("a", 0, 2)], [line(1, [0] * 4), line(2, [0] * 4)])
    phi = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    save_phi(tmp_path, phi)
    (offsets, pairs), iterations = read_groups(run, "a")
    assert (offsets.name, offsets.labels, offsets.of_pairs) == ("offsets", ["x", "y"], False)
    assert (pairs.name, pairs.labels, pairs.of_pairs) == ("pairs", ["x·y"], True)
    np.testing.assert_equal(offsets.values, phi[:, 2:, :2])
    np.testing.assert_equal(pairs.values, phi[:, 2:, 2:])
    assert iterations.tolist() == [10, 20]


@pytest.mark.parametrize("relative", [False, True])
def test_a_group_in_which_only_differences_matter_is_centred_at_every_step(tmp_path, relative):
    run = write(tmp_path, [arm("a", 0, 0)], [line(1, [0, 0]), line(2, [0, 0])])
    phi = np.arange(12, dtype=np.float32).reshape(2, 2, 3) ** 2
    save_phi(tmp_path, phi, relative)
    (offsets, pairs), _ = read_groups(run, "a")
    expected = phi[:, :, :2] - phi[:, :, :2].mean(-1, keepdims=True) if relative else phi[:, :, :2]
    np.testing.assert_allclose(offsets.values, expected)
    np.testing.assert_equal(pairs.values, phi[:, :, 2:])
    assert (offsets.relative, offsets.reading) == (relative, "up: more")


def test_a_parameter_of_one_class_is_shown_by_its_name(tmp_path):
    run = write(tmp_path, [arm("a", 0, 0)], [line(1, [0, 0])])
    save_phi(tmp_path, np.zeros((1, 2, 3), np.float32))
    offsets, pairs = read_groups(run, "a")[0]
    assert (offsets.shown_labels, pairs.shown_labels) == (["cat", "dog"], ["x·y"])


def test_phi_of_another_length_than_the_metrics_is_placed_by_its_step(tmp_path):
    run = write(tmp_path, [arm("a", 0, 0)], [line(1, [0, 0])])
    save_phi(tmp_path, np.zeros((3, 2, 3), np.float32))
    groups, iterations = read_groups(run, "a")
    assert iterations.tolist() == [10, 20, 30]
    assert not groups[0].moved


def test_phi_without_a_step_and_unreadable_phi_are_reported(tmp_path):
    run = write(tmp_path, [arm("a", 0, 0)], [line(1, [0, 0])])
    save_phi(tmp_path, np.zeros((0, 2, 3), np.float32))
    with pytest.raises(RunFolderError, match="no Φ of a yet"):
        read_groups(run, "a")
    (tmp_path / "phi-p.npz").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(RunFolderError, match=r"phi-p\.npz cannot be read"):
        read_groups(run, "a")


def test_roles_are_read_and_not_guessed_from_names(tmp_path):
    arms = [
        arm("mine:horizon=1", 0, 0, role="learner"),
        arm("still", 0, 2, role="baseline"),
        arm("mine", 0, 4, role="learner"),
        arm("ala", 0, 6),
    ]
    run = write(tmp_path, arms, [line(1, [0] * 8)])
    assert (run.baselines, run.learners) == (["still"], ["mine", "mine:horizon=1"])


@pytest.mark.parametrize(("metric", "shown"), [("balanced-error", "balanced error"), ("my_metric", "my metric")])
def test_the_metric_is_shown_in_words(tmp_path, metric, shown):
    run = write(tmp_path, [arm("a", 0, 0)], [line(1, [0.1, 0.2])], metric=metric)
    assert (run.metric, run.direction) == (shown, "lower is better")


def test_the_mean_of_what_is_finite():
    values = np.array([[1.0, np.nan, 3.0], [np.inf, np.nan, 2.0], [np.nan] * 3])
    np.testing.assert_equal(finite_mean(values, axis=1), [2.0, 2.0, np.nan])


def test_a_long_log_is_read_at_as_many_steps_as_a_picture_shows(tmp_path, monkeypatch):
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for step in range(1, 20_001):
            row = {"population": "mlp", "step": step, "iteration": 10 * step, "selection": [step / 2]}
            file.write(json.dumps(row) + "\n")
        file.write('{"population": "mlp", "step": 20001, "sel')
    parsed = []
    loads = json.loads
    monkeypatch.setattr(saved.json, "loads", lambda text: parsed.append(text) or loads(text))
    steps = saved._read_steps(tmp_path / "metrics.jsonl")["mlp"]
    assert len(steps) == saved.MOST_STEPS
    assert (min(steps), max(steps)) == (1, 20_000)
    assert all(entry["selection"] == [step / 2] for step, entry in steps.items())
    assert sum(len(text) > 10 for text in parsed) <= saved.MOST_STEPS + 1


def test_a_line_that_is_no_step_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"population": "a", "step": 1, "x": []}\n{"step": 2}\n{"population": "a"}\n'
    )
    with pytest.raises(RunFolderError, match="line 2 is no step of a run"):
        saved._read_steps(tmp_path / "metrics.jsonl")
