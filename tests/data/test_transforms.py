"""Inputs come out with mean 0 and deviation 1, and augmentation is what a plain loop over pixels gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lossalign.core import InputError, generator
from lossalign.data import BatchStream, Dataset, Transform, augment, fit_transform, normalise
from lossalign.data.transforms import apply, decisions

PLAIN = Transform(mean=torch.zeros(1), std=torch.ones(1))


def table(number):
    inputs = torch.arange(float(number)).view(number, 1)
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


class TestApply:
    def test_a_decided_crop_is_that_crop_and_a_side_below_one_half_its_mirror_image(self):
        images = torch.rand(2, 1, 3, 4, generator=generator(0))
        transform = Transform(mean=torch.zeros(1), std=torch.ones(1), crop=2, flip=True)
        decided = {"corner": torch.tensor([[0, 4], [3, 1]]), "side": torch.tensor([0.4, 0.5])}
        first, second = apply(images, transform, decided)
        assert torch.equal(first, plain_crop(images[0], 0, 3, 2).flip(-1))
        assert torch.equal(second, plain_crop(images[1], 4, 1, 2))

    def test_children_in_front_are_augmented_one_by_one(self):
        images = torch.rand(3, 2, 1, 4, 4, generator=generator(0))
        transform = Transform(mean=torch.zeros(1), std=torch.ones(1), crop=1, flip=True, noise=0.1)
        decided = {
            name: torch.stack([each.draw(torch.empty(each.size, dtype=each.dtype), generator(n)) for n in range(3)])
            for name, each in decisions(transform, 2, (1, 4, 4)).items()
        }
        together = apply(images, transform, decided)
        for n in range(3):
            alone = apply(images[n], transform, {name: each[n] for name, each in decided.items()})
            assert torch.equal(together[n], alone)

    def test_only_what_is_used_is_drawn_and_in_one_order(self):
        flags = [{"crop": 1}, {"flip": True}, {"noise": 0.1}, {"crop": 1, "flip": True, "noise": 0.1}]
        drawn = [list(decisions(Transform(mean=torch.zeros(1), std=torch.ones(1), **each), 2, (3,))) for each in flags]
        assert drawn == [["corner"], ["corner", "side"], ["noise"], ["corner", "side", "noise"]]
