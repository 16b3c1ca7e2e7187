"""A model is read, measured under other weights and put back exactly; another model is refused."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.parallel import DataParallel

from lossalign.core import InputError
from lossalign.training.weights import (
    WatchedModel,
    check_model,
    check_same_weights,
    evaluating,
    prefix_of,
    unwrapped,
    weights_of,
)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.ReLU())


def test_wrappers_are_taken_off_in_any_order() -> None:
    model = network()
    compiled = torch.compile(model, backend="eager")
    for wrapped in (model, DataParallel(model), compiled, DataParallel(compiled), torch.compile(DataParallel(model))):
        assert unwrapped(wrapped) is model  # type: ignore[arg-type]


class OwnModule(nn.Module):
    """Its attribute ``module`` is no wrapper's."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(1, 1)


def test_a_users_own_attribute_called_module_stays() -> None:
    model = OwnModule()
    assert unwrapped(model) is model


def test_a_part_and_all_that_lies_in_it_are_left_out() -> None:
    part = nn.Sequential(nn.Linear(1, 1))
    model = nn.ModuleDict({"part": part, "partner": nn.Linear(1, 1)})
    assert prefix_of(part, model) == "part."
    assert set(weights_of(model, "part.")) == {"partner.weight", "partner.bias"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.optim.SGD([torch.zeros(1)], 0.1), "step: SGD is not a model; give the torch.nn.Module that trains"),
        (nn.Linear(1, 1, device="meta"), "step: the model is on the meta device"),
    ],
)
def test_what_cannot_be_measured_is_refused(given: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_model(given)


class TestWatched:
    def test_its_tensors_are_the_models_own_even_after_they_were_replaced(self) -> None:
        model = network()
        watched = WatchedModel(model, nn.ReLU())
        assert watched.names == tuple(model.state_dict())
        model[0].weight = nn.Parameter(torch.full((3, 2), 7.0))
        assert float(dict(zip(watched.names, watched.tensors(), strict=True))["0.weight"].mean()) == 7

    def test_tied_weights_have_both_names(self) -> None:
        model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        model[1].weight = model[0].weight
        watched = WatchedModel(model, nn.ReLU())
        named = dict(zip(watched.names, watched.tensors(), strict=True))
        assert named["0.weight"] is named["1.weight"] is model[0].weight

    def test_a_state_dict_of_its_own_is_asked_for_every_time(self) -> None:
        class Halved(nn.Linear):
            def state_dict(self, *args: object, **options: object) -> dict[str, torch.Tensor]:  # type: ignore[override]
                return {"half": self.weight.detach() / 2}

        model = Halved(1, 1)
        watched = WatchedModel(model, nn.ReLU())
        with torch.no_grad():
            model.weight.fill_(4)
        assert watched.names == ("half",)
        assert [float(tensor) for tensor in watched.tensors()] == [2]

    def test_it_is_of_one_model_and_does_not_keep_it_alive(self) -> None:
        model, other = network(), network()
        watched = WatchedModel(model, nn.ReLU())
        assert [watched.is_of(each) for each in (model, other)] == [True, False]
        del model
        with pytest.raises(AssertionError, match="the caller holds the model"):
            watched.plain  # noqa: B018
        assert copy.copy(watched) is pickle.loads(pickle.dumps(watched)) is None


class TestEvaluating:
    def test_other_weights_are_in_place_inside_and_everything_is_put_back(self) -> None:
        model = network()
        model[1].eval()
        before = copy.deepcopy(model.state_dict())
        modes = [module.training for module in model.modules()]
        torch.manual_seed(0)
        state = torch.get_rng_state()
        with evaluating(model, {"0.weight": torch.ones(3, 2)}):
            assert not any(module.training for module in model.modules())
            assert (model[0].weight == 1).all()
            assert not model(torch.ones(2, 2)).requires_grad
            torch.rand(3)
        assert torch.equal(torch.get_rng_state(), state)
        assert [module.training for module in model.modules()] == modes
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())

    def test_so_it_is_after_an_error(self) -> None:
        model = network()
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(KeyError), evaluating(model, {"0.weight": torch.ones(3, 2)}):
            raise KeyError
        assert model.training
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        ({"a": torch.zeros(3)}, r"'a' has shape \(3,\), not \(2,\)"),
        ({}, "'a' is missing"),
        ({"a": torch.zeros(2), "b": torch.zeros(1)}, "'b' is new"),
    ],
)
def test_another_model_is_refused_by_its_first_difference(now: dict[str, torch.Tensor], difference: str) -> None:
    check_same_weights({"a": torch.zeros(2)}, {"a": torch.ones(2)})
    with pytest.raises(InputError, match=difference):
        check_same_weights({"a": torch.zeros(2)}, now)
