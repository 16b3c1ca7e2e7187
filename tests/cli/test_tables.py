"""What is said of a result is what its numbers allow, and no more."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lossalign.cli import tables
from lossalign.cli.tables import difference, heading, notes, print_result, result_table, verdict
from lossalign.evaluation import Paired, Result


def result(gap, half, higher=False, seeds=5):
    fixed = Paired(mean=0.5, difference=None, half_width=None, wins=None, seeds=seeds)
    p = None if half is None else 0.01 if abs(gap) > half else 0.2
    ala = Paired(mean=0.5 + gap, difference=gap, half_width=half, wins=3, seeds=seeds, p=p)
    rows = {"fixed": fixed, "ala": ala}
    return Result(
        metric="m",
        higher_is_better=higher,
        percent=True,
        split="test",
        roles={"fixed": "baseline", "ala": "learner"},
        baseline="fixed",
        learner="ala",
        rivals=(),
        rows=rows,
        last=rows,
        against_learner={},
        train_error={},
        cost={},
        failed={},
        over_pairs={},
        children={"fixed": 10, "ala": 10},
        collapsed={},
        kept={},
        learnable=None,
        seeds={"best": {}, "last": {}},
        networks=dict.fromkeys(("fixed", "ala", "good", "bad", "still", "mine"), 1),
    )


@pytest.mark.parametrize(
    ("gap", "half", "higher", "word"),
    [
        (-0.03, 0.01, False, "better"),
        (-0.03, 0.04, False, "no clear difference"),
        (0.03, 0.01, False, "worse"),
        (0.03, 0.01, True, "better"),
        (-0.03, 0.01, True, "worse"),
        (0.03, 0.04, True, "no clear difference"),
    ],
)
def test_the_verdict_needs_a_difference_clear_of_zero(gap, half, higher, word):
    assert f"against fixed: {word}." in verdict(result(gap, half, higher))


@pytest.mark.parametrize(
    ("gap", "p", "word"),
    [(-0.03, 0.065, "no clear difference"), (-0.03, 0.049, "better"), (0.03, 0.099, "no clear difference")],
)
def test_the_word_follows_the_corrected_p_and_not_the_interval(gap, p, word):
    one = result(gap, 0.01)
    many = {**one.rows, "ala": replace(one.rows["ala"], p=p), "other": one.rows["ala"]}
    assert f"against fixed: {word} (p = {p:.3f} after Holm's correction)." in verdict(replace(one, rows=many))


def test_one_seed_claims_nothing():
    assert "no claim" in verdict(result(-0.3, None, seeds=1))


def test_children_that_collapsed_are_told_and_not_averaged_away():
    assert notes(result(-0.3, 0.1)) == []
    assert notes(replace(result(-0.3, 0.1), collapsed={"ala": 3})) == ["ala: 3 of 10 children collapsed to a point."]


def test_a_gain_in_verification_is_told_over_pairs_too():
    over = {
        "fixed": result(0, 0).rows["fixed"],
        "ala": Paired(mean=0.9, difference=0.02, half_width=0.01, wins=9, seeds=1000),
    }
    said = ["ala with an interval over the test set's 1,000 pairs instead of seeds: +2.00 ± 1.00 points against fixed."]
    assert notes(replace(result(0.02, 0.01, higher=True), over_pairs=over)) == said


def test_small_differences_of_a_cost_keep_their_digits():
    row = Paired(mean=0.001, difference=-0.0001133, half_width=0.0000251, wins=1, seeds=3)
    assert difference(row, percent=False) == "-0.0001133 ± 2.5e-05"


def printed(shown):
    console = Console(file=io.StringIO(), width=120)
    print_result(shown, console)
    return console.file.getvalue()


def with_rival(gap, higher=False):
    """A result with two rivals; ``good`` differs from the learner by ``gap``."""
    base = result(0.1 if higher else -0.1, 0.01, higher)
    rows = {**base.rows, "good": replace(base.rows["ala"], mean=base.rows["ala"].mean + gap), "bad": base.rows["fixed"]}
    against = {name: replace(row, difference=row.mean - base.rows["ala"].mean) for name, row in rows.items()}
    return replace(base, rows=rows, last=rows, rivals=("bad", "good"), against_learner=against)


@pytest.mark.parametrize(("gap", "higher", "best"), [(0.01, False, "good"), (-0.01, True, "good"), (0.5, False, "bad")])
def test_the_verdict_names_the_best_rival(gap, higher, best):
    assert f"Best rival: {best}, " in verdict(with_rival(gap, higher))


def test_networks_have_a_column_only_where_several_predict_together():
    alone = with_rival(0.01)
    assert "networks" not in [column.header for column in result_table(alone).columns]
    several = replace(alone, networks={**alone.networks, "good": 20})
    assert result_table(several).columns[-1].header == "networks"
    assert list(result_table(several).columns[-1].cells) == ["1", "1", "20", "1"]
    assert "Best rival: good (20 networks), " in verdict(several)
    assert "networks: how many predict together" in heading(several)


def test_what_a_derived_method_says_is_printed():
    assert notes(replace(result(-0.3, 0.1), said=("outputs are left alone.",))) == ["outputs are left alone."]


def test_without_a_learner_there_is_no_verdict():
    assert verdict(replace(result(-0.3, 0.1), learner=None)) is None


def test_the_learner_of_another_name_is_the_one_that_is_judged():
    base = result(-0.03, 0.01)
    rows = {"still": base.rows["fixed"], "mine": base.rows["ala"]}
    named = replace(base, rows=rows, last=rows, baseline="still", learner="mine")
    assert verdict(named) == "mine: -3.00 ± 1.00 points against still: better."


def test_the_heading_says_what_was_scored_and_which_way_is_better():
    assert heading(result(0.1, 0.1)).startswith("m (%) on the test split, lower is better; mean over 5 seeds.")
    one = heading(result(0.1, None, higher=True, seeds=1))
    assert "higher is better; mean over 1 seed." in one
    assert "± 95 %" not in one


def test_the_table_has_a_row_for_each_method():
    table = result_table(with_rival(0.01))
    assert list(table.columns[0].cells) == ["fixed", "ala", "good", "bad"]
    assert table.columns[2].header == "against fixed"


def test_costs_failures_and_what_the_guard_keeps_are_said():
    noted = replace(result(-0.3, 0.1), cost={"fixed": 1.0, "ala": 1.25}, failed={"ala": 2})
    noted = replace(noted, kept={0: "ala:horizon=1", 1: "fixed", 2: "fixed"}, split="test")
    assert notes(noted) == [
        "Time of ala, relative to training and selecting alone: 1.25.",
        "ala: 2 children failed (their loss or outputs were not finite).",
        "The guard keeps fixed for 2, ala:horizon=1 for 1 of 3 seeds.",
    ]
    assert notes(replace(noted, split="selection"))[-1].startswith("It chose on the selection split, which is scored")


def test_files_and_the_next_step_are_printed(monkeypatch):
    shown = replace(result(-0.03, 0.01), split="selection", files=(Path("run/curves.png"), Path("run/results.json")))
    said = printed(shown)
    assert "wrote run/curves.png" in said
    assert "score the test split once with --final" in said
    assert "No figures" not in said
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    assert "No figures: they need matplotlib" in printed(replace(shown, files=(), split="test"))
