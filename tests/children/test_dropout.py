"""Every fused child draws its dropout masks from a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from lossalign.children import Children, Member
from lossalign.children.fused import FusedLift, dropouts, fuse
from lossalign.children.fused.layers import uniform

Build = Callable[..., Children]
FLAT = (40, 50)


def no_stream() -> None:
    raise AssertionError("nobody reads batches here")


def lifted(model: nn.Module, seeds: Sequence[int]) -> FusedLift:
    return FusedLift([Member(model, seed, no_stream) for seed in seeds], torch.device("cpu"))


def dropped(
    seeds: Sequence[int], iteration: int = 0, model: nn.Module | None = None, shape: tuple[int, ...] = FLAT
) -> Tensor:
    """What is left of ones [N, B, …]."""
    lift = lifted(nn.Dropout(0.3) if model is None else model, seeds)
    lift.at(iteration)
    return lift.train(lift.state, torch.ones(len(seeds), *shape))


def agreement(one: Tensor, other: Tensor) -> float:
    """How often two masks are the same: 0.58 for independent ones that keep 0.7."""
    return float(((one > 0) == (other > 0)).float().mean())


def test_children_of_one_seed_draw_alike_and_others_do_not() -> None:
    one, other, again = dropped([5, 6, 5])
    assert torch.equal(one, again)
    assert agreement(one, other) == pytest.approx(0.58, abs=0.05)


def test_a_child_draws_the_same_in_any_company_and_place() -> None:
    alone = dropped([5])[0]
    assert torch.equal(dropped([1, 2, 5, 3])[2], alone)
    assert torch.equal(dropped([5, 9])[0], alone)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_many_are_kept_as_said_and_the_mean_stays(p: float) -> None:
    left = dropped([0, 1], model=nn.Dropout(p), shape=(200, 250))
    for child in left:
        assert float((child > 0).float().mean()) == pytest.approx(1 - p, abs=0.01)
        assert float(child.mean()) == pytest.approx(1, abs=0.05)
    assert torch.equal(left[left > 0], torch.full_like(left[left > 0], 1 / (1 - p)))


def test_all_or_nothing() -> None:
    assert torch.equal(dropped([0, 1], model=nn.Dropout(1.0)), torch.zeros(2, *FLAT))
    assert torch.equal(dropped([0, 1], model=nn.Dropout(0.0)), torch.ones(2, *FLAT))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Dropout1d, (40, 30, 5)), (nn.Dropout2d, (40, 30, 3, 2)), (nn.Dropout3d, (40, 30, 2, 1, 2))],
)
def test_channels_are_dropped_whole(layer: Callable[[float], nn.Module], shape: tuple[int, ...]) -> None:
    left = dropped([0, 1], model=layer(0.3), shape=shape).flatten(3)
    assert torch.equal(left.amin(3), left.amax(3))
    assert float((left > 0).float().mean()) == pytest.approx(0.7, abs=0.05)
    assert agreement(left[0], left[1]) == pytest.approx(0.58, abs=0.05)


def test_iterations_draw_anew_and_can_be_repeated() -> None:
    first, second = dropped([5], 0), dropped([5], 1)
    assert agreement(first, second) == pytest.approx(0.58, abs=0.05)
    assert torch.equal(dropped([5], 1), second)


class Both(nn.Module):
    """What two uses of dropout leave, side by side."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.one(x), self.other(x)], 1)


def test_layers_draw_differently() -> None:
    left = dropped([5], model=Both(nn.Dropout(0.3), nn.Dropout(0.3)))[0]
    assert agreement(left[:, 0], left[:, 1]) == pytest.approx(0.58, abs=0.05)


def test_a_layer_that_is_used_twice_draws_twice() -> None:
    layer = nn.Dropout(0.3)
    left = dropped([5], model=Both(layer, layer))[0]
    assert agreement(left[:, 0], left[:, 1]) == pytest.approx(0.58, abs=0.05)
    lift = lifted(Both(layer, layer), [5])
    ones = torch.ones(1, *FLAT)
    lift.train(lift.state, ones)
    assert torch.equal(lift.train(lift.state, ones)[0], left)  # a pass at the same iteration draws the same


def test_seeds_iterations_layers_and_places_are_told_apart() -> None:
    """Streams of neighbouring seeds, iterations and layers share no number beyond chance."""
    drawn = [
        uniform(torch.arange(4), torch.tensor(clock), layer, 500)
        for clock in (0, 1, 2, 10**6)
        for layer in (0, 1, 2, 1 << 16)
    ]
    numbers = torch.stack(drawn).flatten()
    assert len(numbers.unique()) > 0.999 * len(numbers)
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    assert torch.histc(numbers, 10, 0, 1).div(len(numbers)).sub(0.1).abs().max() < 0.01


@pytest.mark.parametrize("seed", [0, -1, 2**62, 2**63 - 1, -(2**63)])
def test_any_seed_is_a_stream(seed: int) -> None:
    left = dropped([seed])
    assert float((left > 0).float().mean()) == pytest.approx(0.7, abs=0.05)


def test_evaluation_drops_nothing() -> None:
    lift = lifted(nn.Dropout(0.3), [0, 1])
    ones = torch.ones(2, *FLAT)
    assert torch.equal(lift.evaluate(lift.state, ones, False), ones)


def test_the_global_random_stream_has_no_part_in_it() -> None:
    before = torch.get_rng_state()
    left = dropped([5])
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(dropped([5]), left)


def test_gradients_go_where_values_were_kept() -> None:
    lift = lifted(nn.Dropout(0.3), [0, 1])
    ones = torch.ones(2, *FLAT, requires_grad=True)
    left = lift.train(lift.state, ones)
    (slopes,) = torch.autograd.grad(left.sum(), ones)
    assert torch.equal(slopes, left.detach())


def test_dropout_layers_are_numbered_as_the_model_names_them() -> None:
    joint = fuse([nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout2d()), nn.Dropout()) for _ in range(2)])
    assert [layer.number for layer in dropouts(joint)] == [0, 1, 2]


def test_children_in_training_draw_the_same_in_any_company(build: Build) -> None:
    alone, together = build("fused", "dropout", seeds=(7,)), build("fused", "dropout", seeds=(3, 7, 4))
    alone.advance(3, torch.zeros(1, 3))
    together.advance(3, torch.zeros(3, 3))
    mine, theirs = alone.child_state(0, "raw"), together.child_state(1, "raw")
    for name, tensor in mine.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-5, atol=1e-7)


def test_masks_go_on_where_they_stopped(build: Build) -> None:
    whole, begun = (build("fused", "dropout") for _ in range(2))
    whole.advance(5, torch.zeros(3, 3))
    begun.advance(2, torch.zeros(3, 3))
    resumed = build("fused", "dropout", seeds=(10, 11, 12))
    resumed.load_state_dict(begun.state_dict())
    resumed.advance(3, torch.zeros(3, 3))
    for child in range(3):
        mine, theirs = resumed.child_state(child, "raw"), whole.child_state(child, "raw")
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
