"""A name that ends in +cosine gives the same network with a cosine layer at its end."""

import pytest
import torch
from torch import nn

from lossalign.core import CosineLinear, InputError
from lossalign.models import build_model
from lossalign.models.heads import with_cosine_head

IMAGE = (3, 8, 8)


def build(name, seed=0, num_classes=4):
    generator = torch.Generator().manual_seed(seed)
    return build_model(name, input_shape=IMAGE, num_classes=num_classes, generator=generator)


@pytest.mark.parametrize("name", ["resnet8", "wrn-10-1", "densenet-10-4", "small-cnn", "mlp-16", "mlp"])
def test_the_last_layer_and_nothing_else_is_exchanged(name):
    plain, cosine = dict(build(name).named_modules()), dict(build(f"{name}+cosine").named_modules())
    assert list(plain) == list(cosine)
    changed = [path for path in plain if type(plain[path]) is not type(cosine[path])]
    (path,) = changed
    head, linear = cosine[path], plain[path]
    assert isinstance(head, CosineLinear)
    assert path == [other for other, layer in plain.items() if isinstance(layer, nn.Linear)][-1]
    assert (head.in_features, head.out_features, head.scale) == (linear.in_features, 4, 30.0)
    weights, before = cosine[""].state_dict(), plain[""].state_dict()
    assert all(torch.equal(weights[key], before[key]) for key in weights if not key.startswith(path))


def test_it_computes_scaled_cosines_of_the_features():
    model, x = build("mlp-16+cosine"), torch.randn(5, *IMAGE)
    features = model.layers[0](x.flatten(1)).relu()
    expected = 30 * torch.cosine_similarity(features[:, None], model.layers[1].weight[None], dim=-1)
    torch.testing.assert_close(model(x), expected)


def test_weights_depend_on_the_generator_alone():
    torch.manual_seed(1)
    one = build("mlp-16+cosine", seed=5).layers[1].weight
    torch.manual_seed(2)
    before = torch.get_rng_state()
    same, other = (build("mlp-16+cosine", seed=seed).layers[1].weight for seed in (5, 6))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_network_with_a_head.py").write_text(
        """
from torch import nn

class Branches(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.LazyLinear(6), nn.ReLU())
        self.heads = nn.ModuleDict({"classes": nn.LazyLinear(num_classes).double()})
        self.eval()

    def forward(self, x):
        return self.heads["classes"](self.body(x).double())

def convolutional(num_classes):
    return nn.Sequential(nn.Conv2d(3, num_classes, 8), nn.Flatten())

def ends_in_a_convolution(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Unflatten(1, (6, 1, 1)),
                         nn.Conv2d(6, num_classes, 1), nn.Flatten())
"""
    )
    return "own_network_with_a_head"


def test_own_factories_may_have_one_too(own):
    head = build(f"{own}:Branches+cosine").heads["classes"]
    assert isinstance(head, CosineLinear)
    assert head.in_features == 6
    assert head.weight.dtype is torch.float64
    assert not head.training


def test_a_model_that_is_one_linear_layer_becomes_one_cosine_layer():
    assert isinstance(with_cosine_head("linear+cosine", nn.Linear(5, 4), 4), CosineLinear)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            "convolutional",
            r"\+cosine replaces a last nn.Linear with 4 outputs.*but it has no nn.Linear; leave \+cosine",
        ),
        ("ends_in_a_convolution", "its last nn.Linear has 6 outputs"),
    ],
)
def test_a_network_without_a_last_linear_layer_is_refused(own, factory, message):
    with pytest.raises(InputError, match=f"{factory}.cosine.*{message}"):
        build(f"{own}:{factory}+cosine")


@pytest.mark.parametrize("name", ["resnet8+cosin", "resnet8+cosine+cosine", "+cosine", "resnet8+"])
def test_other_endings_are_unknown(name):
    with pytest.raises(InputError, match=r"is unknown; choose from .*each may end in .*\+cosine"):
        build(name)
