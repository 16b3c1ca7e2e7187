"""The networks are the published ones, and engines can lift them over children."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from lossalign.core import InputError
from lossalign.models import MLP, DenseNet, ResNet, SmallCNN, WideResNet
from lossalign.models.resnet import shortcut

NETWORKS = {
    "resnet": lambda: ResNet(8, in_channels=2, num_classes=3),
    "wide resnet": lambda: WideResNet(10, 2, in_channels=2, num_classes=3),
    "densenet": lambda: DenseNet(10, 4, in_channels=2, num_classes=3),
    "small cnn": lambda: SmallCNN(in_channels=2, num_classes=3),
    "mlp": lambda: MLP(2 * 8 * 8, hidden=(16, 8), num_classes=3),
}
every_network = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())


def count(model):
    return sum(p.numel() for p in model.parameters())


def conv_bn(before, after, kernel=3):
    return before * after * kernel**2 + 2 * after


def bn_conv(before, after, kernel=3):
    return 2 * before + before * after * kernel**2


def resnet_size(n, in_channels, num_classes):
    stages = (2 * n * conv_bn(16, 16), conv_bn(16, 32), (2 * n - 1) * conv_bn(32, 32))
    last = (conv_bn(32, 64), (2 * n - 1) * conv_bn(64, 64))
    return conv_bn(in_channels, 16) + sum(stages) + sum(last) + 65 * num_classes


def wide_resnet_size(n, k, num_classes):
    total, before = 3 * 16 * 9, 16
    for width in (16 * k, 32 * k, 64 * k):
        total += bn_conv(before, width) + (2 * n - 1) * bn_conv(width, width)
        total += before * width if before != width else 0
        before = width
    return total + 2 * before + (before + 1) * num_classes


def densenet_size(n, k, num_classes):
    total, channels = 3 * 2 * k * 9, 2 * k
    for block in range(3):
        total += sum(bn_conv(channels + k * layer, 4 * k, 1) + bn_conv(4 * k, k) for layer in range(n))
        channels += n * k
        if block < 2:
            total += bn_conv(channels, channels // 2, 1)
            channels //= 2
    return total + 2 * channels + (channels + 1) * num_classes


@pytest.mark.parametrize(("depth", "published"), [(20, 269_722), (32, 464_154), (56, 853_018), (110, 1_727_962)])
def test_resnets_have_the_published_number_of_parameters(depth, published):
    assert count(ResNet(depth)) == resnet_size((depth - 2) // 6, 3, 10) == published


def test_resnet_size_follows_channels_and_classes():
    assert count(ResNet(8, in_channels=1, num_classes=7)) == resnet_size(1, 1, 7)


@pytest.mark.parametrize(("depth", "k", "published"), [(16, 2, 691_674), (28, 10, 36_479_194)])
def test_wide_resnets_have_the_published_number_of_parameters(depth, k, published):
    with torch.device("meta"):
        assert count(WideResNet(depth, k)) == wide_resnet_size((depth - 4) // 6, k, 10) == published


def test_a_wide_resnet_of_width_one_has_no_projection_in_its_first_stage():
    assert count(WideResNet(10, 1)) == wide_resnet_size(1, 1, 10)


def test_densenet_bc_has_the_published_number_of_parameters():
    assert count(DenseNet(100, 12)) == densenet_size(16, 12, 10) == 769_162


def test_compression_of_one_keeps_all_channels():
    assert DenseNet(10, 4, compression=1.0).linear.in_features == 2 * 4 + 3 * 4


def test_the_depth_is_the_number_of_weight_layers():
    def layers(model, kinds):
        return sum(isinstance(m, kinds) for m in model.modules())

    assert layers(ResNet(20), nn.Conv2d | nn.Linear) == 20
    assert layers(DenseNet(40, 12), nn.Conv2d | nn.Linear) == 40
    assert layers(WideResNet(16, 2), nn.Conv2d) == 16  # the paper counts the three projections, not the linear layer


@pytest.mark.parametrize("side", [7, 8])
def test_the_shortcut_subsamples_and_pads_with_zeros(side):
    x = torch.randn(2, 3, side, side)
    out = shortcut(x, channels=6, stride=2)
    torch.testing.assert_close(out[:, 1:4], x[:, :, ::2, ::2])
    assert out.shape[1] == 6
    assert out[:, [0, 4, 5]].abs().sum() == 0


def test_convolutions_start_with_kaiming_variance():
    for model in (ResNet(20), WideResNet(16, 2), DenseNet(40, 12)):
        widest = max((m for m in model.modules() if isinstance(m, nn.Conv2d)), key=lambda m: m.weight.numel())
        fan_in = widest.weight[0].numel()
        assert widest.weight.var().item() == pytest.approx(2 / fan_in, rel=0.1)


@pytest.mark.parametrize("side", [8, 9, 28, 32])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_small_cnn_takes_any_channels_and_sizes(channels, side):
    model = SmallCNN(in_channels=channels, num_classes=4)
    assert model(torch.randn(2, channels, side, side)).shape == (2, 4)


@every_network
def test_odd_image_sizes_pass_through(make):
    side = 8 if make is NETWORKS["mlp"] else 9
    assert make()(torch.randn(2, 2, side, side)).shape == (2, 3)


def test_mlp_flattens_and_without_hidden_layers_is_linear():
    model = MLP(12, hidden=(), num_classes=5)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(model(x), F.linear(x.reshape(2, 12), model.layers[0].weight, model.layers[0].bias))


def test_dropout_acts_in_training_only():
    model = WideResNet(10, 1, in_channels=1, dropout=0.5)
    x = torch.randn(4, 1, 8, 8)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@every_network
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_lifted_over_children_equals_one_by_one(make, training):
    models = [make().train(training) for _ in range(3)]
    for model in models:
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()
    x, y = torch.randn(3, 4, 2, 8, 8), torch.randint(3, (3, 4))
    params, buffers = stack_module_state([copy.deepcopy(model) for model in models])
    params = {name: p.detach() for name, p in params.items()}
    skeleton = copy.deepcopy(models[0]).to("meta")

    def loss(params, buffers, x, y):
        logits = functional_call(skeleton, (params, buffers), (x,))
        return F.cross_entropy(logits, y), (logits, buffers)

    grads, (logits, after) = vmap(grad(loss, has_aux=True))(params, buffers, x, y)
    for child, model in enumerate(models):
        expected = model(x[child])
        torch.testing.assert_close(logits[child], expected, atol=1e-4, rtol=1e-4)
        F.cross_entropy(expected, y[child]).backward()
        for name, p in model.named_parameters():
            torch.testing.assert_close(grads[name][child], p.grad, atol=1e-4, rtol=1e-3)
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(after[name][child], buffer, atol=1e-4, rtol=1e-4)


def test_dropout_differs_between_lifted_children():
    models = [WideResNet(10, 1, in_channels=1, dropout=0.5)] * 2
    params, buffers = stack_module_state(models)
    x = torch.randn(4, 1, 8, 8)

    def logits(params, buffers):
        return functional_call(models[0], (params, buffers), (x,))

    one, other = vmap(logits, randomness="different")(params, buffers)
    assert not torch.equal(one, other)


@every_network
def test_compiles_as_one_graph(make):
    model = make()
    x = torch.randn(4, 2, 8, 8)
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(model), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResNet(21), r"depth=21.*6n \+ 2"),
        (lambda: ResNet(2), "depth=2"),
        (lambda: WideResNet(28, 0), "widen=0"),
        (lambda: WideResNet(27, 2), r"depth=27.*6n \+ 4"),
        (lambda: WideResNet(16, 2, dropout=1.0), "dropout=1.0"),
        (lambda: DenseNet(4, 12), "depth=4"),
        (lambda: DenseNet(40, 0), "growth=0"),
        (lambda: DenseNet(40, 12, compression=0.0), "compression=0.0"),
        (lambda: SmallCNN(widths=()), "widths"),
        (lambda: MLP(4, hidden=(3, 0)), "hidden"),
    ],
)
def test_impossible_sizes_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
