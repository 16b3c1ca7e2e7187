"""Groups lie one after another in Φ, and every vector of the spec follows that order."""

from __future__ import annotations

import pytest
import torch

from lossalign.core import InputError, ParameterGroup, ParameterSpec

CLASSES = ((0, 0), (1, 1))
TWO = ParameterGroup(name="two", labels=("a", "b"), initial=0.5, low=0.0, high=1.0, beta=0.1, classes=CLASSES)
ONE = ParameterGroup(name="one", labels=("c",), initial=(-1.0,), low=-2.0, high=2.0, beta=0.5)
SPEC = ParameterSpec((TWO, ONE))


def test_layout() -> None:
    assert SPEC.size == 3
    assert SPEC.slices == {"two": slice(0, 2), "one": slice(2, 3)}
    assert SPEC.initial.tolist() == [0.5, 0.5, -1.0]
    assert SPEC.low.tolist() == [0.0, 0.0, -2.0]
    assert SPEC.high.tolist() == [1.0, 1.0, 2.0]
    torch.testing.assert_close(SPEC.beta, torch.tensor([0.1, 0.1, 0.5]))
    assert SPEC.classes.tolist() == [[0, 0], [1, 1], [-1, -1]]


def test_selection_keeps_the_order_of_phi() -> None:
    assert SPEC.select(["one", "two"]).tolist() == [0, 1, 2]
    assert SPEC.select(name for name in ["one"]).tolist() == [2]


def test_a_spec_is_a_value() -> None:
    assert ParameterSpec((TWO, ONE)) == SPEC
    assert hash(TWO) == hash(ParameterGroup(**{f: getattr(TWO, f) for f in TWO.__dataclass_fields__}))
    with pytest.raises(AttributeError):
        TWO.low = -1.0  # type: ignore[misc]


def test_phi_is_checked_with_any_number_of_leading_axes() -> None:
    for shape in [(3,), (4, 3), (2, 4, 3)]:
        phi = SPEC.initial.expand(shape).clone()
        SPEC.check(phi)
        phi[..., 2] = 2.5
        with pytest.raises(InputError, match=r"parameter 'c' is 2.5, outside its range \[-2, 2\]; clip it"):
            SPEC.check(phi)


def test_rounding_at_the_edge_is_forgiven() -> None:
    SPEC.check(SPEC.high + 1e-7)
    with pytest.raises(InputError, match="outside its range"):
        SPEC.check(SPEC.high + 1e-5)
