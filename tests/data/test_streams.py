import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lossalign.core import InputError, generator
from lossalign.data import BatchStream, Dataset, Transform, augment, fit_transform, load_digits, normalise

PLAIN = Transform(mean=torch.zeros(1), std=torch.ones(1))


def table(number, features=1):
    inputs = torch.arange(float(number * features)).view(number, features)
    return Dataset(name="toy", inputs=inputs, targets=torch.arange(number) % 2, class_names=("a", "b"))


def pictures(number=6, channels=3, side=5):
    pixels = torch.randint(0, 256, (number, channels, side, side), generator=generator(0), dtype=torch.uint8)
    return Dataset(name="pictures", inputs=pixels, targets=torch.arange(number) % 2, class_names=("a", "b"))


class TestFitTransform:
    def test_images_get_mean_0_and_deviation_1_per_channel(self):
        data = pictures(3000)
        transform = fit_transform(data)
        assert transform.mean.shape == transform.std.shape == (3, 1, 1)
        made = normalise(data.inputs, transform)
        assert made.dtype is torch.float32
        torch.testing.assert_close(made.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(made.std((0, 2, 3), correction=0), torch.ones(3))

    def test_uint8_is_scaled_to_0_to_1_first(self):
        data = pictures()
        transform = fit_transform(data)
        torch.testing.assert_close(transform.mean.flatten(), (data.inputs / 255).mean((0, 2, 3)))
        assert transform.scale == 1 / 255

    def test_tables_are_normalised_per_column_however_far_from_0(self):
        inputs = torch.randn(5000, 3, generator=generator(0)) * torch.tensor([1e-3, 1.0, 500.0])
        data = Dataset(
            name="x",
            inputs=inputs + torch.tensor([0.0, 50.0, 1e6]),
            targets=torch.zeros(5000, dtype=torch.long),
            class_names=("a", "b"),
        )
        made = normalise(data.inputs, fit_transform(data))
        torch.testing.assert_close(made.mean(0), torch.zeros(3), atol=1e-3, rtol=0)
        torch.testing.assert_close(made.std(0), torch.ones(3), atol=1e-3, rtol=0)

    def test_a_column_that_does_not_vary_becomes_0_and_stays_tame(self):
        data = Dataset(
            name="x",
            inputs=torch.tensor([[0.1, 0.0, 1.0]] * 7),
            targets=torch.zeros(7, dtype=torch.long),
            class_names=("a", "b"),
        )
        transform = fit_transform(data)
        assert (normalise(data.inputs, transform) == 0).all()
        assert normalise(data.inputs + 1, transform).abs().max() <= 1.001

    def test_crops_and_flips_are_for_images(self):
        with pytest.raises(InputError, match="not images"):
            fit_transform(table(4), flip=True)
        with pytest.raises(InputError, match="not images"):
            BatchStream(table(4), 2, Transform(mean=torch.zeros(1), std=torch.ones(1), crop=1), generator(0))

    @pytest.mark.parametrize("wrong", [{"std": torch.zeros(1)}, {"crop": -1}, {"noise": -0.1}])
    def test_senseless_transforms_are_refused(self, wrong):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Transform(**{"mean": torch.zeros(1), "std": torch.ones(1), **wrong})


def plain_crop(image, top, left, pad):
    """Pad and cut one image, pixel by pixel."""
    _, height, width = image.shape
    out = torch.zeros_like(image)
    for i in range(height):
        for j in range(width):
            y, x = i + top - pad, j + left - pad
            if 0 <= y < height and 0 <= x < width:
                out[:, i, j] = image[:, y, x]
    return out


class TestAugment:
    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 3), st.booleans(), st.integers(3, 6), st.integers(3, 6), st.integers(0, 999))
    def test_every_image_is_one_of_its_crops_or_their_mirror_images(self, crop, flip, height, width, seed):
        images = torch.rand(4, 2, height, width, generator=generator(seed)) + 0.1
        transform = Transform(mean=torch.zeros(1), std=torch.ones(1), crop=crop, flip=flip)
        made = augment(images, transform, generator(seed, "draws"))
        for before, after in zip(images, made, strict=True):
            offsets = range(2 * crop + 1)
            allowed = [plain_crop(before, top, left, crop) for top in offsets for left in offsets]
            allowed += [image.flip(-1) for image in allowed] if flip else []
            assert any(torch.equal(after, image) for image in allowed)

    def test_every_crop_and_both_sides_turn_up_alike(self):
        images = torch.arange(1.0, 10.0).view(1, 1, 3, 3).expand(9000, 1, 3, 3)
        transform = Transform(mean=torch.zeros(1), std=torch.ones(1), crop=1, flip=True)
        _, counts = augment(images, transform, generator(0)).unique(dim=0, return_counts=True)
        assert len(counts) == 18  # 3 × 3 crops, mirrored or not
        assert (counts - 500).abs().max() < 5 * 500**0.5

    def test_noise_has_the_deviation_asked_for(self):
        transform = Transform(mean=torch.zeros(1), std=torch.ones(1), noise=0.3)
        noise = augment(torch.full((20_000, 5), 7.0), transform, generator(0)) - 7
        assert abs(float(noise.mean())) < 0.005
        assert abs(float(noise.std()) - 0.3) < 0.005

    def test_nothing_asked_for_changes_nothing_and_draws_nothing(self):
        source, images = generator(0), torch.rand(2, 1, 3, 3)
        before = source.get_state()
        assert torch.equal(augment(images, PLAIN, source), images)
        assert torch.equal(source.get_state(), before)


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
