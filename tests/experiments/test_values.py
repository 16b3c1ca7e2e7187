"""Text, TOML and Python values become the type of their key, or are refused by name."""

from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossalign.core import InputError
from lossalign.experiments.values import parse_value


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
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(value, hint, wanted):
    with pytest.raises(InputError) as refused:
        parse_value("x", value, hint)
    assert str(refused.value) == wanted
