"""Text, TOML and Python values become the type of their key, or are refused by name."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossalign.core import InputError
from lossalign.core.values import Checked, check_value, parse_value


@given(st.floats(allow_nan=False) | st.integers(-(10**9), 10**9) | st.booleans())
def test_text_stands_for_a_number_or_a_truth(value):
    assert parse_value("x", str(value), type(value)) == value
    assert parse_value("x", value, type(value)) == value


@given(st.lists(st.integers(1, 99), min_size=1))
def test_commas_stand_between_the_parts_of_a_tuple(values):
    assert parse_value("x", ",".join(map(str, values)), tuple[int, ...]) == tuple(values)
    assert parse_value("x", values, tuple[int, ...]) == tuple(values)


@pytest.mark.parametrize("value", [None, "none", "None"])
def test_none_is_a_value_where_the_type_allows_it(value):
    assert parse_value("x", value, int | None) is None
    with pytest.raises(InputError, match="give a whole number"):
        parse_value("x", value, int)


def test_a_path_is_a_name():
    assert parse_value("data", Path("here"), str | None) == str(Path("here"))


@pytest.mark.parametrize(
    ("value", "hint", "wanted"),
    [
        ("1.5", int, "x=1.5: give a whole number."),
        (1.5, int, "x=1.5: give a whole number."),
        (True, int, "x=True: give a whole number."),
        ("a", float | None, "x=a: give a number or none."),
        ("yes", bool, "x=yes: give true or false."),
        (3, str, "x=3: give a name."),
        ("c", Literal["a", "b"], "x=c: give one of a, b."),
        ("1,a", tuple[int, ...], "x=1,a: give a whole number, or several."),
        (5, tuple[int, ...], "x=5: give a whole number, or several."),
        (b"5", int, "x=b'5': give a whole number."),
        (float("inf"), int, "x=inf: give a whole number."),
        (10**400, float | None, f"x={str(10**400)[:200]} …: give a number or none."),
        (2**63, int, "x=9223372036854775808: give a whole number."),
        ("nan", float, "x=nan: give a number."),
        ([1], bool, "x=[1]: give true or false."),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(value, hint, wanted):
    with pytest.raises(InputError) as refused:
        parse_value("x", value, hint)
    assert str(refused.value) == wanted


@pytest.mark.parametrize(
    ("value", "hint", "wanted"),
    [
        ("cosinus", Literal["cosine", "steps"], "x='cosinus': give one of cosine, steps."),
        ("false", bool, "x='false': give true or false."),
        (1, bool, "x=1: give true or false."),
        (True, int | None, "x=True: give a whole number or none."),
        (1.0, int, "x=1.0: give a whole number."),
        (float("nan"), float, "x=nan: give a number."),
        ([1], tuple[int, ...], "x=[1]: give a whole number, or several."),
        (None, str, "x=None: give a name."),
        ({}, Path, "x={}: give a Path."),
    ],
)
def test_a_field_of_another_type_is_refused(value, hint, wanted):
    with pytest.raises(InputError) as refused:
        check_value("x", value, hint)
    assert str(refused.value) == wanted


def test_a_whole_number_is_a_number():
    check_value("x", 1, float | None)


def test_a_checked_dataclass_names_its_key():
    @dataclass(frozen=True)
    class Things(Checked):
        folder: str = field(metadata={"key": "data"})

    assert Things("here").folder == "here"
    with pytest.raises(InputError, match="data=3: give a name"):
        Things(3)
