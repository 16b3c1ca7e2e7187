"""Networks of ours and of others, fused, compute what the separate models compute; children split back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lossalign.children import Member
from lossalign.children.fused import FusedLift, why_not_fused
from lossalign.models import MLP, DenseNet, ResNet, SmallCNN, WideResNet

Check = Callable[..., None]
Factory = Callable[[], nn.Module]
DTYPES = [torch.float64, torch.float32]


def no_stream() -> None:
    raise AssertionError("nobody reads batches here")


class Block(nn.Module):
    """ConvNeXt's: a depthwise convolution, LayerNorm over channels by permuting, two Linear layers, a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.narrow(nn.functional.gelu(self.wide(y))).permute(0, 3, 1, 2)


class Inverted(nn.Module):
    """MobileNet's: 1×1 up, depthwise, 1×1 down, BatchNorm after each, squeeze-and-excitation in between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 3 * width
        self.up = nn.Sequential(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.deep = nn.Sequential(nn.Conv2d(wide, wide, 3, 2, 1, groups=wide), nn.BatchNorm2d(wide), nn.ReLU6())
        self.squeeze, self.excite = nn.Conv2d(wide, 2, 1), nn.Conv2d(2, wide, 1)
        self.down = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.deep(self.up(x))
        gate = self.excite(self.squeeze(nn.functional.adaptive_avg_pool2d(y, 1)).relu()).sigmoid()
        return self.down(y * gate) + nn.functional.interpolate(x, scale_factor=0.5)


class Mixer(nn.Module):
    """Linear layers over tokens, then over channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_tokens, self.over_channels = nn.Linear(tokens, tokens), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.second(x)).tanh()


class Attention(nn.Module):
    """Two heads of attention from Linear layers, for words that are embedded by the table that decodes them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, padding_idx=0)
        self.places = nn.Embedding(6, 4)
        self.qkv, self.norm, self.decoder = nn.Linear(4, 12), nn.LayerNorm(4), nn.Linear(4, 9, bias=False)
        self.decoder.weight = self.table.weight

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device).expand_as(words)
        x = self.table(words) + self.places(places)
        q, k, v = self.qkv(x).view(*words.shape, 3, 2, 2).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.decoder(self.norm(x + attended))


class Words(nn.Module):
    """A bag of words: a masked mean of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = (
            nn.Embedding(9, 4, padding_idx=0),
            nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
        )

    def forward(self, words: Tensor) -> Tensor:
        there = (words != 0)[..., None]
        return self.head((self.table(words) * there).sum(1) / there.sum(1).clamp(min=1))


class Awkward(nn.Module):
    """A layer used twice, one under two names, a frozen one, an unused one, and one that is not there."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.again = self.twice
        self.frozen, self.unused = nn.Linear(6, 6), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        self.missing: nn.Module | None
        self.register_module("missing", None)
        self.heads = nn.ModuleDict({"a": nn.Linear(6, 3), "b": nn.Linear(6, 3)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.twice, self.frozen, self.again):
            x = self.norm(layer(x)).relu()
        return self.heads["a"](x) - self.heads["b"](x)


def vgg() -> nn.Module:
    """Convolutions with a bias before BatchNorm: its gradient is rounding and nothing else."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d((2, 2))),
        *(nn.Flatten(), nn.Dropout(0.0), nn.Linear(32, 10), nn.ReLU(inplace=True), nn.Linear(10, 3)),
    )


def convnext() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 2, stride=2), Block(6), nn.GroupNorm(1, 6), Block(6)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(6), nn.Linear(6, 3)),
    )


def mobilenet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), Inverted(4), Inverted(4), nn.Flatten(), nn.Linear(16, 3))


def mixer() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 4, stride=4), nn.Flatten(2), nn.Linear(4, 4), Mixer(6, 4), Mixer(6, 4)),
        *(nn.Flatten(), nn.Linear(24, 3)),
    )


MODELS: dict[str, tuple[Factory, tuple[int, ...]]] = {
    "mlp": (lambda: MLP(12, hidden=(8, 6), num_classes=3), (6, 3, 2, 2)),
    "small-cnn": (lambda: SmallCNN(in_channels=3, num_classes=3, widths=(4, 6)), (6, 3, 8, 8)),
    "resnet8": (lambda: ResNet(8, in_channels=3, num_classes=3), (6, 3, 8, 8)),
    "wrn-10-1": (lambda: WideResNet(10, 1, in_channels=3, num_classes=3), (6, 3, 8, 8)),
    "densenet-10-4": (lambda: DenseNet(10, 4, in_channels=3, num_classes=3), (6, 3, 8, 8)),
    "vgg": (vgg, (6, 3, 8, 8)),
    "convnext": (convnext, (6, 3, 8, 8)),
    "mobilenet": (mobilenet, (6, 3, 8, 8)),
    "mixer": (mixer, (6, 3, 8, 8)),
    "awkward": (Awkward, (6, 6)),
}
TEXT: dict[str, Factory] = {"attention, tied": Attention, "words": Words}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_a_network(model: str, dtype: torch.dtype, assert_fused_equals_separate: Check) -> None:
    network, shape = MODELS[model]
    assert_fused_equals_separate(network, shape, dtype)
    assert why_not_fused([network(), network()], torch.randn(*shape)) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("model", TEXT)
def test_a_network_for_text(model: str, dtype: torch.dtype, assert_fused_equals_separate: Check) -> None:
    assert_fused_equals_separate(TEXT[model], (6, 6), dtype, vocabulary=9)
    words = torch.randint(9, (8, 6), generator=torch.Generator().manual_seed(1))
    assert why_not_fused([TEXT[model](), TEXT[model]()], words) is None


def test_tied_weights_stay_one() -> None:
    lift = FusedLift([Member(Attention(), seed, no_stream) for seed in range(2)], torch.device("cpu"))
    assert lift.names["decoder.weight"] == lift.names["table.weight"] == "table.weight"
    assert lift.trained.count("table.weight") == 1
    assert "decoder.weight" not in lift.trained


def test_the_models_that_are_fused_are_left_as_they_were() -> None:
    model = vgg()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    lift = FusedLift([Member(model, seed, no_stream) for seed in range(2)], torch.device("cpu"))
    weights = [lift.state[name].requires_grad_() for name in lift.trained]
    torch.autograd.backward(lift.train(lift.state, torch.randn(2, 6, 3, 8, 8)).sum(), inputs=weights)
    assert why_not_fused([model, model], torch.randn(6, 3, 8, 8)) is None
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
