"""A run folder is read row by row, whatever order and state its lines are in."""

import json

import numpy as np
import pytest

from lossalign.core import RunFolderError
from lossalign.report.folder import Curves, SavedRun, read_groups


def arm(method, seed, start, population="p", children=2):
    return {"method": method, "seed": seed, "children": children, "population": population, "start": start}


def line(step, selection, population="p"):
    return {"population": population, "step": step, "iteration": 10 * step, "selection": selection}


def write(folder, arms, lines, metric="error", tail="", percent=True):
    config = {"task": {"name": "t"}, "metric": metric, "higher_is_better": False, "percent": percent, "every": 10}
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


def save_phi(folder, phi):
    classes = np.array([[0, 0], [1, 1], [0, 1]])
    names, sizes, labels = np.array(["offsets", "pairs"]), np.array([2, 1]), np.array(["x", "y", "x·y"])
    steps = np.arange(1, len(phi) + 1)
    np.savez(
        folder / "phi-p.npz", phi=phi, steps=steps, group_names=names, group_sizes=sizes, labels=labels, classes=classes
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
