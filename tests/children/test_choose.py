import pytest
import torch
from torch import nn

from lossalign.children import Member, SequentialChildren, VmapChildren, choose_engine, make_children
from lossalign.children.recipe import Recipe
from lossalign.core import InputError
from lossalign.losses import AlignedLoss


class Branching(nn.Sequential):
    """Asks its values a question, which vmap cannot answer."""

    def forward(self, x):
        return super().forward(x) if x.abs().max() > 0 and self[1].weight.sum() < 1e9 else x


class Stream:
    def next(self):
        return torch.ones(4, 6), torch.tensor([0, 1, 2, 0])


def members(network, count=3):
    return [Member(network(nn.Flatten(), nn.Linear(6, 3)), seed, Stream) for seed in range(count)]


def test_a_model_that_vmap_cannot_lift_trains_one_by_one():
    children = make_children(members(Branching), AlignedLoss(3), Recipe(iterations=2))
    assert isinstance(children, SequentialChildren)
    assert children.advance(2, torch.zeros(3, 3)).isfinite().all()


def test_forcing_vmap_on_it_says_why_not():
    with pytest.raises(InputError, match="cannot lift this model"):
        make_children(members(Branching), AlignedLoss(3), Recipe(iterations=2), engine="vmap")


def test_a_model_that_vmap_can_lift_is_lifted_and_left_as_it_was():
    some = members(nn.Sequential)
    before = [{name: t.clone() for name, t in member.model.state_dict().items()} for member in some]
    state = torch.get_rng_state()
    assert isinstance(make_children(some, AlignedLoss(3), Recipe(iterations=2)), VmapChildren)
    assert torch.equal(torch.get_rng_state(), state)
    for member, weights in zip(some, before, strict=True):
        assert all(torch.equal(member.model.state_dict()[name], t) for name, t in weights.items())


@pytest.mark.parametrize(
    ("count", "device", "chosen"), [(1, "cpu", "sequential"), (2, "cpu", "vmap"), (2, "cuda", "sequential")]
)
def test_auto_is_vmap_for_several_tiny_networks_on_cpu(count, device, chosen):
    assert choose_engine("auto", members(nn.Sequential, count), "float32", torch.device(device)) == chosen


def test_batchnorm_under_autocast_trains_one_by_one():
    class Images(Stream):
        def next(self):
            return torch.ones(4, 1, 6, 6), torch.tensor([0, 1, 2, 0])

    def network():
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3))

    some = [Member(network(), seed, Images) for seed in range(2)]
    children = make_children(some, AlignedLoss(3), Recipe(iterations=2, precision="bfloat16"))
    assert isinstance(children, SequentialChildren)
    assert children.advance(2, torch.zeros(2, 3)).isfinite().all()
