"""What cannot be fused is named; the automatic choice falls back and says so; forcing it is refused."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lossalign.children import (
    Children,
    FusedChildren,
    Member,
    Optimisation,
    SequentialChildren,
    VmapChildren,
    make_children,
)
from lossalign.children.fused import unfusable, why_not_fused
from lossalign.core import InputError
from lossalign.losses.aligned import aligned_loss

Factory = Callable[[], nn.Module]


class Doing(nn.Module):
    """Does something to images [B, 3, 4, 4] before, or to features behind, a Linear layer."""

    def __init__(self, before: Callable[[Tensor], Tensor], behind: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.head, self.before, self.behind = nn.Linear(48, 3), before, behind

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self.head(self.before(x).flatten(1)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cells(x.flatten(1, 2))[0][:, -1])
        return logits


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(x.flatten(1, 2)).mean(1))
        return logits


class Scaled(nn.Module):
    """A weight of its own, outside any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(3)), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x.flatten(1)) * self.scale
        return logits


class OwnNorm(nn.BatchNorm2d):
    """A BatchNorm of one's own."""


def classifier(*layers: nn.Module, features: int = 48) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 3))


def hooked(register: str) -> nn.Module:
    model = classifier(nn.ReLU())
    getattr(model[2], register)(lambda module, *args: None)
    return model


LAYERS: dict[str, tuple[Factory, str]] = {
    "lstm": (Recurrent, r"layer cells \(LSTM\) has no fused form"),
    "transformer": (Transformer, r"layer layer\.self_attn \(MultiheadAttention\) has no fused form"),
    "own parameter": (Scaled, r"the model itself \(Scaled\) has no fused form"),
    "norm of one's own": (lambda: classifier(OwnNorm(3)), r"layer 0 \(OwnNorm\) has no fused form"),
    "instance norm with weights": (
        lambda: classifier(nn.InstanceNorm2d(3, affine=True)),
        r"layer 0 \(InstanceNorm2d\) has no fused form",
    ),
    "transposed": (
        lambda: classifier(nn.ConvTranspose2d(3, 3, 1)),
        r"layer 0 \(ConvTranspose2d\) has no fused form",
    ),
    "hook": (lambda: hooked("register_forward_hook"), r"layer 2 \(Linear\) has hooks"),
    "hook before": (lambda: hooked("register_forward_pre_hook"), r"layer 2 \(Linear\) has hooks"),
    "hook backwards": (lambda: hooked("register_full_backward_hook"), r"layer 2 \(Linear\) has hooks"),
    "hook before backwards": (lambda: hooked("register_full_backward_pre_hook"), r"layer 2 \(Linear\) has hooks"),
    "weight norm": (
        lambda: nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(48, 3))),
        r"layer 1 \(ParametrizedLinear\) has no fused form",
    ),
    "weight norm without bias": (
        lambda: nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(48, 3, bias=False))),
        r"layer 1\.parametrizations\.weight \(ParametrizationList\) has no fused form",
    ),
}
DRAWS = "it draws random numbers itself"
LOOKS = "it looks at values"
MIXES = "samples of a batch depend on each other"
FORWARD: dict[str, tuple[Factory, str]] = {
    "dropout": (lambda: Doing(F.dropout), rf"{DRAWS} \(dropout\); use nn.Dropout"),
    "noise": (lambda: Doing(lambda x: x + torch.randn_like(x)), rf"{DRAWS} \(randn_like\)"),
    "stochastic depth": (lambda: Doing(lambda x: x * (torch.rand(len(x), 1, 1, 1) > 0.1)), rf"{DRAWS} \(rand\)"),
    "drawn in place": (lambda: Doing(lambda x: x * torch.empty_like(x).exponential_()), rf"{DRAWS} \(exponential_\)"),
    "dropped attention": (
        lambda: Doing(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)),
        rf"{DRAWS} \(scaled_dot_product_attention\)",
    ),
    "alpha dropout": (lambda: classifier(nn.AlphaDropout(0.5)), rf"{DRAWS} \(alpha_dropout\)"),
    "random slopes": (lambda: classifier(nn.RReLU()), rf"{DRAWS} \(rrelu\)"),
    "random pooling": (
        lambda: classifier(nn.FractionalMaxPool2d(2, output_size=3), features=27),
        rf"{DRAWS} \(fractional_max_pool2d\)",
    ),
    "a branch": (lambda: Doing(lambda x: x if x.sum() > 0 else -x), rf"{LOOKS} \(__bool__\)"),
    "a number": (lambda: Doing(lambda x: x * x.max().item()), rf"{LOOKS} \(item\)"),
    "a comparison": (lambda: Doing(lambda x: x if torch.equal(x, x.relu()) else -x), rf"{LOOKS} \(equal\)"),
    "the mean of the inputs": (lambda: Doing(lambda x: x - x.mean(0)), MIXES),
    "the largest input": (lambda: Doing(lambda x: x / x.abs().amax()), MIXES),
    "the mean of outputs": (lambda: Doing(lambda x: x, lambda y: y - y.mean(0)), MIXES),
    "softmax over the batch": (lambda: Doing(lambda x: x, lambda y: y.softmax(0)), MIXES),
    "the order of samples": (lambda: Doing(lambda x: x.flip(0)), MIXES),
    "samples second": (lambda: Doing(lambda x: x, lambda y: y.T), MIXES),
    "a size": (lambda: Doing(lambda x: x.reshape(8, 48)), "RuntimeError"),
    "python's random numbers": (lambda: Doing(lambda x: x * random.random()), MIXES),
}


@pytest.fixture(autouse=True)
def _own_random_stream() -> Iterator[None]:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        random.seed(0)
        yield


IMAGES = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(0))
ALL = LAYERS | FORWARD


def says(text: str, pattern: str) -> bool:
    return "\n" not in text and re.search(pattern, text) is not None


@pytest.mark.parametrize("kind", ALL)
def test_the_reason_names_it(kind: str) -> None:
    factory, reason = ALL[kind]
    models = [factory(), factory()]
    before = torch.get_rng_state()
    assert says(str(why_not_fused(models, IMAGES)), reason)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_is_named_without_inputs(kind: str) -> None:
    factory, reason = LAYERS[kind]
    assert says(str(unfusable(factory())), reason)


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"sparse": True}])
def test_an_embedding_with_other_rules_is_named(options: Any) -> None:
    said = unfusable(nn.Sequential(nn.Embedding(4, 2, **options)))
    assert said == "layer 0 (Embedding) has no fused form with max_norm or sparse"


@pytest.mark.parametrize("kind", ["the mean of the inputs", "the largest input", "a comparison", "a branch", "dropout"])
def test_equal_models_hide_nothing(kind: str) -> None:
    model = ALL[kind][0]()
    assert why_not_fused([model, model], IMAGES) is not None
    assert why_not_fused([model, model], torch.ones(4, 3, 4, 4)) is not None


def test_words_are_tried_on_samples_of_each_models_own() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

        def forward(self, words: Tensor) -> Tensor:
            logits: Tensor = self.head(self.table(words).mean(1) * words.max())
            return logits

    words = torch.arange(8)[:, None].expand(8, 3)
    assert why_not_fused([Centred(), Centred()], words) is not None


def test_what_only_looks_random_is_fused() -> None:
    model = Doing(lambda x: F.dropout(x, 0.5, training=False))
    assert why_not_fused([model, model], IMAGES) is None


def test_layers_that_are_kept_where_they_are_not_seen() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(48, 3)
            self.path = [self.head]

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.path[0](x.flatten(1))
            return logits

    model = Hidden()
    assert why_not_fused([model, model], IMAGES) is not None


class Stream:
    def next(self) -> tuple[Tensor, Tensor]:
        return IMAGES, torch.arange(8) % 3

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state


def made(factory: Factory, engine: Any) -> Children:
    def loss(outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        return aligned_loss(outputs, targets, b=phi)

    members = [Member(factory(), seed, Stream) for seed in range(2)]
    return make_children(members, loss, Optimisation(iterations=4), engine=engine)


@pytest.mark.parametrize("kind", ["own parameter", "norm of one's own", "dropout", "transposed"])
def test_auto_falls_back_to_vmap_and_says_why(kind: str) -> None:
    factory, reason = ALL[kind]
    children = made(factory, "auto")
    assert isinstance(children, VmapChildren)
    assert says(children.engine, rf"^vmap, float32 \(not fused: .*{reason}.*\)$")
    assert children.advance(2, torch.zeros(2, 3)).isfinite().all()


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("kind", ["lstm", "a branch", "a number"])
def test_auto_falls_back_to_sequential_and_says_why(kind: str) -> None:
    factory, reason = ALL[kind]
    children = made(factory, "auto")
    assert isinstance(children, SequentialChildren)
    assert says(children.engine, rf"^sequential, float32 \(not fused: .*{reason}.*; not vmap: .+\)$")
    assert children.advance(2, torch.zeros(2, 3)).isfinite().all()


@pytest.mark.parametrize("kind", ALL)
def test_forcing_is_refused_with_the_reason(kind: str) -> None:
    factory, reason = ALL[kind]
    with pytest.raises(InputError, match=rf"engine='fused': it cannot compute this model \(.*{reason}.*\); use auto"):
        made(factory, "fused")


@pytest.mark.parametrize("first", [nn.Identity, lambda: nn.Conv2d(3, 3, 1)], ids=["inputs", "activations"])
def test_a_view_is_fused_or_refused_but_never_fails_in_training(first: Factory) -> None:
    children = made(lambda: nn.Sequential(first(), Doing(lambda x: x.view(len(x), 48))), "auto")
    assert isinstance(children, FusedChildren) or says(children.engine, r"not fused: .*Use \.reshape\(\.\.\.\) instead")
    assert children.advance(2, torch.zeros(2, 3)).isfinite().all()
