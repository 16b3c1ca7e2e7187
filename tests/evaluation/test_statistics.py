"""Paired comparisons are what scipy says they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lossalign.evaluation.statistics import holm, paired, t_quantile, table


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 200])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_t_quantile_is_students(degrees, confidence):
    expected = stats.t.ppf((1 + confidence) / 2, degrees)
    assert t_quantile(degrees, confidence) == pytest.approx(expected, rel=1e-4)


def test_the_interval_is_scipys_paired_t_interval():
    rng = np.random.default_rng(0)
    values, baseline = rng.normal(size=8), rng.normal(size=8)
    low, high = stats.ttest_rel(values, baseline).confidence_interval(0.95)
    row = paired(values, baseline, higher_is_better=False)
    assert row.difference - row.half_width == pytest.approx(low, rel=1e-4)
    assert row.difference + row.half_width == pytest.approx(high, rel=1e-4)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8), st.floats(-10, 10))
def test_a_shift_common_to_both_changes_nothing_but_the_mean(values, shift):
    values, baseline = np.array(values), np.linspace(0, 1, len(values))
    here, there = paired(values, baseline, True), paired(values + shift, baseline + shift, True)
    assert here.difference == pytest.approx(there.difference, abs=1e-9)
    assert here.half_width == pytest.approx(there.half_width, abs=1e-6)


def test_wins_follow_the_direction():
    values, baseline = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0])
    assert paired(values, baseline, higher_is_better=True).wins == 1
    assert paired(values, baseline, higher_is_better=False).wins == 1


def test_one_seed_gives_no_interval():
    assert paired(np.array([1.0]), np.array([2.0]), higher_is_better=False).half_width is None


def test_the_p_value_is_scipys_paired_t_test():
    rng = np.random.default_rng(1)
    values, baseline = rng.normal(size=6), rng.normal(size=6)
    assert paired(values, baseline, True).p == pytest.approx(stats.ttest_rel(values, baseline).pvalue, rel=1e-3)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_lies_between_nothing_and_bonferroni(p):
    corrected = holm(p)
    assert all(a <= b <= min(1.0, len(p) * a) + 1e-12 for a, b in zip(p, corrected, strict=True))
    order = np.argsort(p, kind="stable")
    assert (np.diff(np.array(corrected)[order]) >= 0).all()


def test_a_table_corrects_for_its_rows():
    rng = np.random.default_rng(2)
    values = {name: rng.normal(size=5) for name in ("fixed", "a", "b")}
    rows = table(values, "fixed", higher_is_better=False)
    alone = {name: paired(values[name], values["fixed"], False).p for name in ("a", "b")}
    assert rows["fixed"].p is None
    assert min(rows["a"].p, rows["b"].p) == pytest.approx(min(1, 2 * min(alone.values())))
    assert max(rows["a"].p, rows["b"].p) >= max(alone.values())
