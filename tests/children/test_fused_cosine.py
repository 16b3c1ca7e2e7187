"""Fused children with a cosine layer compute what separate models compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lossalign.children import Children
from lossalign.children.fused import fuse, why_not_fused
from lossalign.core import CosineLinear
from lossalign.models import ResNet, build_model

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "the layer alone": (lambda: CosineLinear(5, 3), (4, 5)),
    "another scale": (lambda: CosineLinear(5, 3, scale=7.0), (4, 5)),
    "on sequences": (lambda: nn.Sequential(nn.Linear(5, 4), CosineLinear(4, 3), nn.PReLU()), (4, 6, 5)),
    "behind a network": (
        lambda: nn.Sequential(ResNet(8, in_channels=1, num_classes=6), nn.ReLU(), CosineLinear(6, 3)),
        (6, 1, 8, 8),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_outputs_and_gradients_are_the_separate_models(
    network: str, dtype: torch.dtype, assert_fused_equals_separate: Callable[..., None]
) -> None:
    factory, shape = NETWORKS[network]
    assert_fused_equals_separate(factory, shape, dtype)
    assert why_not_fused([factory(), factory()], torch.randn(8, *shape[1:])) is None


@pytest.mark.parametrize("name", ["resnet8+cosine", "small-cnn+cosine", "mlp-8+cosine"])
def test_a_network_by_its_name(name: str, assert_fused_equals_separate: Callable[..., None]) -> None:
    seeds = torch.Generator().manual_seed(0)

    def network() -> nn.Module:
        return build_model(name, input_shape=(3, 8, 8), num_classes=3, generator=seeds)

    assert_fused_equals_separate(network, (6, 3, 8, 8), torch.float64)


def test_children_train_alike_on_all_engines(
    build: Callable[..., Children], offsets: Callable[..., Tensor], inputs: Tensor
) -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), CosineLinear(8, 3))

    def outputs(engine: str) -> Tensor:
        children = build(engine, network, dtype=torch.float64)
        children.advance(5, offsets(3, torch.float64))
        return children.outputs([inputs] * 3, "raw")

    expected = outputs("sequential")
    for engine in ("vmap", "fused"):
        torch.testing.assert_close(outputs(engine), expected, rtol=1e-9, atol=1e-9)


def test_logits_keep_float32_under_autocast() -> None:
    models = [CosineLinear(5, 3) for _ in range(2)]
    rounded = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        together = fuse(models)(rounded.flatten(0, 1))
    separate = torch.cat([model(x.float()) for model, x in zip(models, rounded, strict=True)])
    torch.testing.assert_close(together, separate)
