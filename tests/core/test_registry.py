"""A registry names things once, in order, and says what else there is when a name is unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossalign.core import InputError, Registry

NAMES = st.lists(st.text(min_size=1), unique=True)


@given(NAMES)
def test_things_are_found_by_name_in_the_order_they_were_added(names):
    registry = Registry[int]("thing")
    assert [registry.add(name, f"line {i}", i) for i, name in enumerate(names)] == list(range(len(names)))
    assert list(registry) == names
    assert len(registry) == len(names)
    assert [registry[name] for name in names] == list(range(len(names)))
    assert [registry.summary(name) for name in names] == [f"line {i}" for i in range(len(names))]
    assert all(name in registry for name in names)


def test_a_name_is_taken_once():
    registry = Registry[int]("colour")
    registry.add("red", "like a rose", 1)
    with pytest.raises(AssertionError, match="colour 'red' is registered twice"):
        registry.add("red", "like blood", 2)


@pytest.mark.parametrize(
    ("name", "hint", "sentence"),
    [
        ("rde", "", "colour 'rde' is unknown; did you mean 'red'? Choose from red, blue."),
        ("xyz", "", "colour 'xyz' is unknown; choose from red, blue."),
        ("xyz", "a number", "colour 'xyz' is unknown; choose from red, blue, or give a number."),
    ],
)
def test_an_unknown_name_is_answered_with_those_there_are(name, hint, sentence):
    registry = Registry[int]("colour", hint)
    registry.add("red", "like a rose", 1)
    registry.add("blue", "like the sky", 2)
    assert name not in registry
    with pytest.raises(InputError) as refused:
        registry[name]
    assert str(refused.value) == sentence
    assert str(registry.unknown(name)) == sentence
