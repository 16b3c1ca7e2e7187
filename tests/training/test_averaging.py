"""The average of a model's weights: equal to a plain loop over its ``state_dict``, whatever the model does to it."""

import copy

import pytest
import torch
from torch import nn

from lossalign.children import average_decay
from lossalign.training import averaging
from lossalign.training.averaging import WeightAverage
from lossalign.training.weights import WatchedModel


class Reassigned(nn.Module):
    """Its buffer is another tensor after every forward pass."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen = self.seen + 1.0
        return self.linear(x)


class Renamed(nn.Module):
    """Its ``state_dict`` is not that of its modules."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x)

    def state_dict(self, *args, **kwargs):
        return {f"my.{name}": 2 * tensor for name, tensor in super().state_dict(*args, **kwargs).items()}


def tied():
    first = nn.Linear(3, 3)
    return nn.Sequential(first, nn.ReLU(), first)


MODELS = {
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
    "half precision": lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(torch.bfloat16),
    "reassigned buffer": Reassigned,
    "own state_dict": Renamed,
    "tied": tied,
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_a_moving_average_of_the_state_dict_with_whole_numbers_copied(name):
    torch.manual_seed(0)
    model, average, expected = MODELS[name](), WeightAverage(2.0, every=5), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dtype = next(model.parameters()).dtype
    watched = WatchedModel(model, nn.Identity())
    for iteration in range(12):
        optimizer.zero_grad()
        model(torch.randn(8, 3, dtype=dtype)).float().square().sum().backward()
        optimizer.step()
        assert average.due(iteration, measured=False)
        average.update(watched.names, watched.tensors())
        now = {key: t.detach().float() if t.is_floating_point() else t for key, t in model.state_dict().items()}
        decay = average_decay(0.9, iteration)
        expected = copy.deepcopy(now) if expected is None else expected
        for key, tensor in now.items():
            expected[key] = expected[key].lerp(tensor, 1 - decay) if tensor.is_floating_point() else tensor.clone()
    assert average.weights.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(average.weights[key], tensor), key


def test_a_watched_model_finds_each_tensor_of_the_state_dict_once():
    model = tied()
    watched = WatchedModel(model, nn.Identity())
    assert watched.names == tuple(model.state_dict())
    assert [t.data_ptr() for t in watched.tensors()] == [t.data_ptr() for t in model.state_dict().values()]


def test_an_aligner_inside_the_model_is_left_out():
    inner = nn.BatchNorm1d(2)
    watched = WatchedModel(nn.ModuleDict({"net": nn.Linear(2, 2), "aligner": inner}), inner)
    assert watched.names == ("net.weight", "net.bias")


def test_nothing_is_averaged_if_the_weights_themselves_are_measured():
    average = WeightAverage(None, every=5)
    assert not average.due(0, measured=True)
    assert average.weights is None


@pytest.mark.parametrize(("steps", "every"), [(2.0, 200), (4.0, 200), (4.0, 32)])
def test_with_fewer_updates_it_is_the_same_average(steps, every, monkeypatch):
    """Of 500 weights that move as trained ones do: each iteration keeps 95 % of what sets it apart from its mean."""
    draw, live, paths = torch.Generator().manual_seed(0), torch.zeros(500), []
    for _ in range(4000):
        live = 0.95 * live + (1 - 0.95**2) ** 0.5 * torch.randn(500, generator=draw)
        paths.append(live)
    found, updates = [], []
    for kept in (averaging.KEPT, 1.0):
        monkeypatch.setattr(averaging, "KEPT", kept)
        average, names = WeightAverage(steps, every), ("weight",)
        updates.append(0)
        for iteration, live in enumerate(paths):
            if average.due(iteration, measured=iteration == len(paths) - 1):
                average.update(names, [live])
                updates[-1] += 1
        found.append(average.weights["weight"])
    assert updates[1] == len(paths)
    assert updates[0] < 0.7 * len(paths)
    few, every_one = found
    assert (few - every_one).std() <= 0.05 < every_one.std()


def test_it_is_up_to_date_when_it_is_measured():
    model = nn.Linear(3, 1)
    average, at = WeightAverage(4.0, 200), WatchedModel(model, nn.Identity())
    for iteration in range(10_000, 10_005):
        due = average.due(iteration, measured=iteration == 10_004)
        assert due == (iteration in (10_000, 10_004))
        if due:
            average.update(at.names, at.tensors())
    assert average.kept == 1.0
