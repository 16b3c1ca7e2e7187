"""Shuffled batches: whole epochs, one size, and the same order after resuming. Those of classes: test_per_class."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lossalign.core import InputError, generator
from lossalign.data.orders import Shuffled


def epochs(number, batch_size, most):
    """The batches of three epochs, at most ``most`` taken at once."""
    order, taken = Shuffled(number, batch_size, generator(0)), []
    while len(taken) < 3 * (number // order.batch_size):
        taken += list(order.take(most))
    return torch.stack(taken).view(3, -1)


@given(st.integers(1, 20), st.integers(1, 25), st.integers(1, 9))
def test_an_epoch_shows_no_example_twice_and_drops_less_than_a_batch(number, batch_size, most):
    for epoch in epochs(number, batch_size, most):
        assert len(epoch.unique()) == len(epoch)
        assert number - len(epoch) < batch_size


@given(st.integers(1, 20), st.integers(1, 25), st.integers(1, 9))
def test_the_order_does_not_depend_on_how_many_batches_are_taken_at_once(number, batch_size, most):
    assert torch.equal(epochs(number, batch_size, most), epochs(number, batch_size, 1))


def test_no_call_crosses_an_epoch():
    order = Shuffled(10, 3, generator(0))
    assert [len(order.take(2)) for _ in range(4)] == [2, 1, 2, 1]


def test_a_state_resumes_in_the_middle_of_an_epoch_and_is_not_written_to():
    order, source = Shuffled(10, 3, generator(0)), generator(1)
    order.take(1)
    state = order.state()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    expected = order.take(9)
    resumed = Shuffled(10, 3, source)
    resumed.load(state)
    assert torch.equal(resumed.take(9), expected)
    resumed.take(1)
    assert all(torch.equal(state[name], tensor) for name, tensor in kept.items())


def test_a_state_over_other_examples_is_refused():
    with pytest.raises(InputError, match="state: it is of a stream over 9 examples, but this one has 10"):
        Shuffled(10, 3, generator(0)).load(Shuffled(9, 3, generator(0)).state())
