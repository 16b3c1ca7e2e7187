import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lossalign.core import InputError, generator
from lossalign.data import BatchStream, Dataset, Transform, fit_transform, load_digits, normalise

PLAIN = Transform(mean=torch.zeros(1), std=torch.ones(1))


def table(number, features=1):
    inputs = torch.arange(float(number * features)).view(number, features)
    return Dataset(name="toy", inputs=inputs, targets=torch.arange(number) % 2, class_names=("a", "b"))


def pictures(number=6, channels=3, side=5):
    pixels = torch.randint(0, 256, (number, channels, side, side), generator=generator(0), dtype=torch.uint8)
    return Dataset(name="pictures", inputs=pixels, targets=torch.arange(number) % 2, class_names=("a", "b"))


class TestBatchStream:
    @settings(max_examples=40, deadline=None)
    @given(st.integers(1, 30), st.integers(1, 40))
    def test_batches_are_of_one_size_and_an_epoch_shows_no_example_twice(self, number, batch_size):
        stream = BatchStream(table(number), batch_size, PLAIN, generator(0))
        size = min(number, batch_size)
        assert stream.batch_size == size
        for _ in range(3):
            epoch = [stream.next() for _ in range(number // size)]
            assert all(inputs.shape == (size, 1) and targets.shape == (size,) for inputs, targets in epoch)
            shown = torch.cat([inputs for inputs, _ in epoch]).flatten().tolist()
            assert len(set(shown)) == len(shown)

    def test_inputs_keep_their_targets(self):
        stream = BatchStream(table(11), 4, PLAIN, generator(0))
        for _ in range(5):
            inputs, targets = stream.next()
            assert torch.equal(inputs[:, 0].long() % 2, targets)

    def test_epochs_are_shuffled_anew(self):
        stream = BatchStream(table(50), 50, PLAIN, generator(0))
        assert not torch.equal(stream.next()[0], stream.next()[0])

    def test_float_and_uint8_images_come_out_normalised_alike(self):
        data = pictures()
        transform = fit_transform(data)
        as_float = Dataset(
            name="f", inputs=data.inputs.float() / 255, targets=data.targets, class_names=data.class_names
        )
        a = BatchStream(data, 4, transform, generator(0)).next()[0]
        b = BatchStream(as_float, 4, fit_transform(as_float), generator(0)).next()[0]
        torch.testing.assert_close(a, b)
        order = torch.randperm(6, generator=generator(0))[:4]
        assert torch.equal(a, normalise(data.inputs[order], transform))

    @pytest.mark.parametrize("options", [{"noise": 0.5}, {"crop": 2, "flip": True, "noise": 0.1}, {}])
    @pytest.mark.parametrize("data", [load_digits().subset(range(50)), pictures(50)], ids=["float", "uint8"])
    def test_a_resumed_stream_continues_bit_for_bit(self, data, options):
        transform = fit_transform(data, **options)
        stream = BatchStream(data, 8, transform, generator(0))
        for _ in range(9):
            stream.next()
        state = stream.state_dict()
        assert all(type(value) is torch.Tensor for value in state.values())
        expected = [stream.next() for _ in range(20)]
        resumed = BatchStream(data, 8, transform, generator(1))
        resumed.next()
        resumed.load_state_dict(state)
        for inputs, targets in expected:
            got = resumed.next()
            assert torch.equal(got[0], inputs)
            assert torch.equal(got[1], targets)

    def test_a_state_is_a_copy_that_the_stream_does_not_change(self):
        stream = BatchStream(table(10), 3, PLAIN, generator(0))
        state = stream.state_dict()
        kept = {name: value.clone() for name, value in state.items()}
        for _ in range(10):
            stream.next()
        assert all(torch.equal(state[name], kept[name]) for name in kept)

    def test_a_state_from_another_data_set_is_refused(self):
        state = BatchStream(table(10), 3, PLAIN, generator(0)).state_dict()
        with pytest.raises(InputError, match="10 examples, but this one has 11"):
            BatchStream(table(11), 3, PLAIN, generator(0)).load_state_dict(state)

    def test_the_data_set_is_never_written_to(self):
        data = load_digits().subset(range(20))
        before = data.inputs.clone()
        stream = BatchStream(data, 20, fit_transform(data, crop=1, noise=1.0), generator(0))
        stream.next()[0].zero_()
        assert torch.equal(data.inputs, before)
        assert stream.next()[0].abs().sum() > 0

    def test_a_batch_of_none_is_refused(self):
        with pytest.raises(InputError, match="batch_size=0"):
            BatchStream(table(3), 0, PLAIN, generator(0))
