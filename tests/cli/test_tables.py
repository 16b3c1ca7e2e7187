from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lossalign.cli.policy import behaviour
from lossalign.cli.tables import difference, notes, verdict
from lossalign.control import Policy
from lossalign.control.state import StateLayout
from lossalign.experiments import Result
from lossalign.experiments.statistics import Paired


def result(gap, half, higher=False, policies=5):
    fixed = Paired(mean=0.5, difference=None, half_width=None, wins=None, policies=policies)
    ala = Paired(mean=0.5 + gap, difference=gap, half_width=half, wins=3, policies=policies)
    rows = {"fixed": fixed, "ala": ala}
    return Result(
        folder=Path("run"),
        metric="m",
        higher_is_better=higher,
        percent=True,
        split="test",
        baseline="fixed",
        rows=rows,
        last=rows,
        against_ala={},
        train_error={},
        cost={},
        failed={},
        over_pairs={},
        children={"fixed": 10, "ala": 10},
        collapsed={},
        kept={},
        learnable=None,
        files=[],
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
def test_the_verdict_needs_an_interval_clear_of_zero(gap, half, higher, word):
    assert f"against fixed: {word}." in verdict(result(gap, half, higher))


def test_the_verdict_tells_what_the_number_of_rows_makes_of_it():
    one = result(-0.03, 0.01)
    many = {**one.rows, "ala": replace(one.rows["ala"], p=0.065), "other": one.rows["ala"]}
    assert "better (p = 0.065 after Holm's correction)." in verdict(replace(one, rows=many))


def test_one_policy_claims_nothing():
    assert "no claim" in verdict(result(-0.3, None, policies=1))


def test_children_that_collapsed_are_told_and_not_averaged_away():
    assert notes(result(-0.3, 0.1)) == []
    assert notes(replace(result(-0.3, 0.1), collapsed={"ala": 3})) == ["ala: 3 of 10 children collapsed to a point."]


def test_a_gain_in_verification_is_told_over_pairs_too():
    over = {
        "fixed": result(0, 0).rows["fixed"],
        "ala": Paired(mean=0.9, difference=0.02, half_width=0.01, wins=9, policies=1000),
    }
    said = ["ala over the test set's 1,000 pairs instead of policies: +2.00 ± 1.00 points against fixed."]
    assert notes(replace(result(0.02, 0.01, higher=True), over_pairs=over)) == said


def test_small_differences_of_a_cost_keep_their_digits():
    row = Paired(mean=0.001, difference=-0.0001133, half_width=0.0000251, wins=1, policies=3)
    assert difference(row, percent=False) == "-0.0001133 ± 2.5e-05"


def test_the_shown_behaviour_is_the_policys_own():
    policy = Policy(StateLayout(statistics=1, history=2, sensitivity=False), generator=torch.Generator().manual_seed(0))
    table = behaviour(policy)
    state = torch.tensor([1.5, 1.5, 0.0, 0.0, 0.9])  # history, change, Φ, time
    chances = torch.softmax(policy(state), -1)
    assert [list(column.cells)[1] for column in table.columns[2:]] == [f"{chance:.2f}" for chance in chances]
