"""Every network is registered under a name that makes it."""

import pytest
import torch

from lossalign.core import InputError, generator
from lossalign.models import build_model
from lossalign.models.registry import ENDINGS, MODELS, find_model


@pytest.mark.parametrize("name", MODELS)
def test_the_name_in_the_list_makes_the_network(name):
    assert find_model(name)[0] is MODELS[name]
    model = build_model(name, input_shape=(3, 32, 32), num_classes=4, generator=generator(0))
    assert model.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 4)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", ["mlp-8", "small-cnn"])
def test_every_ending_fits_a_network(name, ending):
    model = build_model(name + ending, input_shape=(1, 8, 8), num_classes=4, generator=generator(0))
    assert model.eval()(torch.zeros(2, 1, 8, 8)).shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("resnet20", (20,)), ("wrn-16-2", (16, 2)), ("densenet-100-12", (100, 12)), ("mlp", ()), ("mlp-8-4-2", (8, 4, 2))],
)
def test_the_numbers_in_a_name_are_read(name, numbers):
    assert find_model(name)[1] == numbers


@pytest.mark.parametrize("name", ["", "mlp-", "resnet-20", "wrn-28", "aresnet20", "resnet20 "])
def test_a_name_fits_whole_or_not_at_all(name):
    with pytest.raises(InputError, match="is unknown; choose from"):
        find_model(name)
