"""Which children share a batch stream: those whose members hold the same maker, in every engine."""

import pytest
import torch
from torch import nn

from lossalign.children import FusedChildren, Member, Optimisation, SequentialChildren, VmapChildren
from lossalign.children.feed import Feed
from lossalign.losses import AlignedLoss


class Counting:
    """Batches that all hold one number, and count how often they are drawn."""

    def __init__(self, number):
        self.number, self.drawn = number, 0

    def next(self):
        self.drawn += 1
        return torch.full((4, 3), float(self.number)), torch.tensor([0, 1, 0, 1])

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state):
        self.drawn = state["drawn"]


def members(makers, seeds):
    network = nn.Linear(3, 2)
    return [Member(network, seed, make) for make, seed in zip(makers, seeds, strict=True)]


def test_equal_seeds_with_different_streams_see_different_batches():
    feed = Feed(members([lambda: Counting(1), lambda: Counting(2)], seeds=[0, 0]), torch.device("cpu"))
    ((inputs, _),) = feed.batches(1)
    assert inputs[:, 0, 0].tolist() == [1.0, 2.0]


def test_one_stream_is_drawn_once_for_all_who_hold_it():
    made = []

    def make():
        made.append(Counting(3))
        return made[-1]

    feed = Feed(members([make, make], seeds=[0, 1]), torch.device("cpu"))
    ((inputs, _),) = feed.batches(1)
    assert inputs.shape == (2, 4, 3)
    assert [stream.drawn for stream in made] == [1]


@pytest.mark.parametrize("engine", [VmapChildren, FusedChildren])
def test_engines_agree_on_members_with_equal_seeds_and_different_streams(engine):
    loss = AlignedLoss(num_classes=2)
    phi = loss.spec.initial.expand(2, -1)
    optimisation = Optimisation(iterations=3)
    outputs = []
    for kind in (SequentialChildren, engine):
        torch.manual_seed(0)
        children = kind(members([lambda: Counting(1), lambda: Counting(-2)], seeds=[7, 7]), loss, optimisation)
        children.advance(3, phi)
        outputs.append(children.outputs([torch.ones(2, 3)] * 2, "raw"))
    assert torch.allclose(*outputs, atol=1e-6)
    assert not torch.allclose(outputs[0][0], outputs[0][1])
