"""`build_model` knows networks by name, draws from its generator alone, and explains what it cannot build."""

import sys
import textwrap

import pytest
import torch
from torch import nn

from lossalign.core import InputError
from lossalign.models import MLP, DenseNet, ResNet, SmallCNN, WideResNet, build_model

IMAGE = (3, 8, 8)


def build(name, shape=IMAGE, num_classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return build_model(name, input_shape=shape, num_classes=num_classes, generator=generator)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes a user's module into the current directory and returns its name."""
    made = []

    def write(code):
        name = f"own_model_{tmp_path.name.replace('-', '_')}_{len(made)}"
        (tmp_path / f"{name}.py").write_text("from torch import nn\n" + textwrap.dedent(code))
        made.append(name)
        return name

    monkeypatch.chdir(tmp_path)
    yield write
    for name in made:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("resnet8", ResNet),
        ("resnet14", ResNet),
        ("wrn-10-1", WideResNet),
        ("densenet-10-4", DenseNet),
        ("small-cnn", SmallCNN),
        ("mlp", MLP),
        ("mlp-16", MLP),
    ],
)
def test_every_name_gives_its_network_in_training_mode(name, kind):
    model = build(name)
    assert isinstance(model, kind)
    assert all(module.training for module in model.modules())
    assert model(torch.randn(2, *IMAGE)).shape == (2, 4)


def test_the_numbers_in_a_name_are_its_sizes():
    assert [layer.out_features for layer in build("mlp-64-32").layers] == [64, 32, 4]
    assert len(build("resnet20").blocks) == 9
    assert build("wrn-10-3").linear.in_features == 192
    assert build("densenet-10-4").layers[0].out_channels == 8


def test_the_smallest_images_the_small_cnn_takes():
    assert build("small-cnn", (1, 8, 8))(torch.randn(3, 1, 8, 8)).shape == (3, 4)


def test_a_table_goes_through_an_mlp():
    assert build("mlp", (7,))(torch.randn(3, 7)).shape == (3, 4)


@pytest.mark.parametrize("name", ["resnet8", "wrn-10-1", "densenet-10-4", "small-cnn", "mlp"])
def test_weights_depend_on_the_generator_alone(name):
    torch.manual_seed(1)
    one = build(name, seed=5).state_dict()
    torch.manual_seed(2)
    same = build(name, seed=5).state_dict()
    other = build(name, seed=6).state_dict()
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_a_generator_moves_on_from_model_to_model():
    generator = torch.Generator().manual_seed(0)
    one, two = (build_model("mlp", input_shape=(4,), num_classes=2, generator=generator) for _ in range(2))
    assert not torch.equal(one.layers[0].weight, two.layers[0].weight)


def test_the_global_stream_is_untouched(own):
    module = own("def make(num_classes): return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))")
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build("small-cnn")
    build(f"{module}:make")
    with pytest.raises(InputError):
        build("resnet9")
    assert torch.equal(torch.rand(4), expected)


def test_the_trial_forward_leaves_no_trace():
    model = build("small-cnn")
    fresh = SmallCNN(num_classes=4)
    for (name, buffer), (_, start) in zip(model.named_buffers(), fresh.named_buffers(), strict=True):
        assert torch.equal(buffer, start), name
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_own_factories_get_the_arguments_they_name(own):
    module = own(
        """
        class Net(nn.Module):
            def __init__(self, num_classes, in_channels, width=5):
                super().__init__()
                self.conv = nn.Conv2d(in_channels, width, 3)
                self.linear = nn.Linear(width, num_classes)

            def forward(self, x):
                return self.linear(self.conv(x).mean((-2, -1)))

        def by_shape(*, input_shape):
            return Net(4, input_shape[0])

        def everything(input_shape, *, num_classes, in_channels, **others):
            assert not others and input_shape == (3, 8, 8)
            return Net(num_classes, in_channels)

        def nothing():
            return Net(4, 3).eval()
        """
    )
    for factory in ("Net", "by_shape", "everything"):
        assert build(f"{module}:{factory}").conv.in_channels == 3
    assert not build(f"{module}:nothing").training


def test_own_factories_draw_from_the_generator_too(own):
    module = own("def make(num_classes): return nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes))")
    one, same, other = (build(f"{module}:make", seed=seed)[1].weight for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_current_directory_is_importable_during_the_call_only(own):
    module = own("def make(): return nn.Sequential(nn.Flatten(), nn.Linear(192, 4))")
    before = list(sys.path)
    assert isinstance(build(f"{module}:make"), nn.Sequential)
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "resnet",
            "unknown; choose from (?=.*resnet)(?=.*wrn-28-10)(?=.*densenet-100-12)(?=.*small-cnn).*mlp.*module:factory",
        ),
        ("ResNet20", "unknown"),
        ("wrn-28", "unknown"),
        ("mlp-x", "unknown"),
        ("resnet18", "depth=18"),
        ("wrn-20-2", "depth=20"),
        ("densenet-12-12", "depth=12"),
        ("mlp-16-0", "hidden"),
        ("no_such_module_here:make", "no module 'no_such_module_here'"),
        ("torch.no_such_part:make", "no module 'torch.no_such_part'"),
        ("torch.nn:no_such_factory", "has no 'no_such_factory'"),
        ("math:pi", "is a float"),
        (":make", "write module:attribute"),
        ("torch:", "write module:attribute"),
        (".models:make", "write module:attribute"),
    ],
)
def test_names_that_lead_nowhere_are_explained(name, message):
    with pytest.raises(InputError, match=message):
        build(name)


@pytest.mark.parametrize("name", ["resnet20", "wrn-16-2", "densenet-40-12", "small-cnn"])
@pytest.mark.parametrize("shape", [(7,), (8, 8)])
def test_image_networks_refuse_tables(name, shape):
    with pytest.raises(InputError, match="use mlp"):
        build(name, shape)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def make(): return 3", "returned a int"),
        ("def make(depth, num_classes): return nn.Flatten()", r"signature is \(depth, num_classes\)"),
        ("def make(num_classes): return nn.Linear(5, num_classes)", r"cannot process inputs of shape \(3, 8, 8\)"),
        ("def make(): return nn.Flatten()", r"to \(2, 192\); it must return a tensor of shape \(2, 4\)"),
        (
            """
            class make(nn.Module):
                def forward(self, x):
                    return {"logits": x}
            """,
            "to dict; it must return a tensor",
        ),
        ("import no_such_dependency\nmake = None", "no module 'no_such_dependency'"),
    ],
)
def test_own_factories_that_do_not_fit_are_explained(own, code, message):
    with pytest.raises(InputError, match=message):
        build(f"{own(code)}:make")


def test_images_too_small_for_a_network_are_refused():
    with pytest.raises(InputError, match="cannot process inputs"):
        build("densenet-10-4", (3, 2, 2))


def test_impossible_shapes_are_refused():
    with pytest.raises(InputError, match="input_shape"):
        build("mlp", ())
    with pytest.raises(InputError, match="input_shape"):
        build("mlp", (3, 0))
    with pytest.raises(InputError, match="num_classes=0"):
        build("mlp", num_classes=0)
