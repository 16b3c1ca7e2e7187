"""Embedding networks are the published ones, +unit gives any network's outputs length 1, and engines can fuse them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lossalign.children.fused import fuse, why_not_fused
from lossalign.core import InputError
from lossalign.models import EmbeddingCNN, FaceResNet, ResNetTrunk, UnitOutput, build_model, unit_length

TINY: dict[str, Callable[[], nn.Module]] = {
    "embedding-cnn": lambda: EmbeddingCNN(in_channels=2, num_classes=5, width=4),
    "resnet18-trunk": lambda: ResNetTrunk(18, input_shape=(2, 9, 9), num_classes=5, width=2),
    "resnet50-trunk": lambda: ResNetTrunk(50, input_shape=(2, 9, 9), num_classes=5, width=2),
    "large images": lambda: ResNetTrunk(18, input_shape=(2, 65, 65), num_classes=5, width=2),
    "face20": lambda: FaceResNet(20, input_shape=(2, 9, 9), num_classes=5, width=2),
    "face64": lambda: FaceResNet(64, input_shape=(2, 9, 9), num_classes=5, width=2),
}
every_network = pytest.mark.parametrize("network", TINY)


def images(network: str, number: int = 6) -> Tensor:
    side = 65 if network == "large images" else 9
    return torch.randn(number, 2, side, side, generator=torch.Generator().manual_seed(0))


def build(name: str, shape: tuple[int, ...] = (1, 8, 8), outputs: int = 5, seed: int = 0) -> nn.Module:
    return build_model(name, input_shape=shape, num_classes=outputs, generator=torch.Generator().manual_seed(seed))


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


class TestNetworks:
    @pytest.mark.parametrize(("depth", "published"), [(18, 11_689_512), (50, 25_557_032)])
    def test_trunks_have_the_published_number_of_parameters(self, depth: int, published: int) -> None:
        with torch.device("meta"):
            assert count(ResNetTrunk(depth, num_classes=1000)) == published

    @pytest.mark.parametrize(("depth", "units"), [(20, (1, 2, 4, 1)), (64, (3, 8, 16, 3))])
    def test_face_networks_have_the_published_layers(self, depth: int, units: tuple[int, ...]) -> None:
        size, before = 0, 3
        for channels, number in zip((64, 128, 256, 512), units, strict=True):
            size += 9 * before * channels + 2 * channels + number * 2 * (9 * channels**2 + channels)
            before = channels
        with torch.device("meta"):
            model = FaceResNet(depth)
        assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == depth
        assert count(model) == size + 512 * 7 * 6 * 512 + 512

    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize("side", [8, 28, 31, 105])
    def test_the_embedding_cnn_takes_images_from_8_to_105_pixels(self, channels: int, side: int) -> None:
        model = EmbeddingCNN(in_channels=channels, num_classes=7)
        assert model(torch.randn(2, channels, side, side)).shape == (2, 7)

    def test_the_embedding_cnn_pools_four_times_where_it_can(self) -> None:
        model, seen = EmbeddingCNN(num_classes=7, width=3), []
        for conv in model.convs:
            conv.register_forward_hook(lambda layer, inputs, output: seen.append(output.shape[-1]))
        for side in (8, 28, 105):
            model(torch.randn(2, 1, side, side))
        assert seen == [8, 4, 2, 1, 28, 14, 7, 3, 105, 52, 26, 13]

    @pytest.mark.parametrize(("side", "kernel", "halved"), [(32, 3, 3), (64, 3, 3), (65, 7, 5), (224, 7, 5)])
    def test_the_stem_of_a_trunk_fits_its_images(self, side: int, kernel: int, halved: int) -> None:
        model = ResNetTrunk(18, input_shape=(3, side, side), num_classes=7, width=2)
        assert model.stem[0].kernel_size == (kernel, kernel)
        features = model.blocks(model.stem(torch.randn(2, 3, side, side)))
        assert features.shape == (2, 16, -(-side // 2**halved), -(-side // 2**halved))

    @pytest.mark.parametrize("shape", [(3, 64, 64), (1, 112, 96), (3, 50, 37)])
    def test_face_networks_take_images_of_any_size(self, shape: tuple[int, ...]) -> None:
        model = FaceResNet(20, input_shape=shape, num_classes=7, width=2)
        assert model(torch.randn(2, *shape)).shape == (2, 7)

    def test_the_deepest_face_network_starts_with_signals_of_the_images_size(self) -> None:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            model = FaceResNet(64, input_shape=(3, 32, 32), num_classes=64)
            outputs = model(torch.randn(4, 3, 32, 32))
        assert 0.05 < float(outputs.detach().std()) < 5

    @pytest.mark.parametrize(("network", "depth"), [(ResNetTrunk, 34), (FaceResNet, 10)])
    def test_other_depths_are_refused(self, network: Callable[..., nn.Module], depth: int) -> None:
        with pytest.raises(InputError, match=f"depth={depth}"):
            network(depth)


class TestUnitLength:
    def test_directions_stay_and_lengths_become_1(self) -> None:
        x = torch.randn(4, 3, 5) * torch.logspace(-3, 3, 4)[:, None, None]
        torch.testing.assert_close(unit_length(x).norm(dim=-1), torch.ones(4, 3))
        torch.testing.assert_close(F.cosine_similarity(unit_length(x), x, dim=-1), torch.ones(4, 3))

    def test_zeros_stay_zeros_with_finite_gradients(self) -> None:
        x = torch.zeros(2, 5, requires_grad=True)
        assert torch.equal(unit_length(x), torch.zeros(2, 5))
        assert torch.autograd.grad(unit_length(x).sum(), x)[0].isfinite().all()

    def test_precision_is_float32_at_least_whatever_autocast_says(self) -> None:
        rounded = torch.randn(4, 5).bfloat16()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = unit_length(rounded)
            network = UnitOutput(nn.Linear(5, 3))(torch.randn(4, 5))
        assert torch.equal(outputs, F.normalize(rounded.float(), dim=-1))
        torch.testing.assert_close(network.norm(dim=-1), torch.ones(4), rtol=1e-6, atol=1e-6)
        assert unit_length(rounded.double()).dtype is torch.float64


class TestNames:
    @pytest.mark.parametrize(
        ("name", "kind", "shape"),
        [
            ("embedding-cnn", EmbeddingCNN, (1, 8, 8)),
            ("resnet18-trunk", ResNetTrunk, (3, 8, 8)),
            ("resnet50-trunk", ResNetTrunk, (1, 8, 8)),
            ("face20", FaceResNet, (3, 16, 16)),
            ("face64", FaceResNet, (3, 16, 16)),
        ],
    )
    def test_every_name_gives_its_network(self, name: str, kind: type[nn.Module], shape: tuple[int, ...]) -> None:
        model = build(name, shape)
        assert isinstance(model, kind)
        assert all(module.training for module in model.modules())
        assert model(torch.randn(2, *shape)).shape == (2, 5)

    @pytest.mark.parametrize("name", ["mlp-16", "small-cnn", "resnet8", "embedding-cnn"])
    def test_unit_normalises_the_outputs_and_nothing_else(self, name: str) -> None:
        x, plain, unit = torch.randn(6, 1, 8, 8), build(name), build(f"{name}+unit")
        outputs = unit(x)
        torch.testing.assert_close(outputs, F.normalize(plain(x), dim=-1))
        torch.testing.assert_close(outputs.norm(dim=-1), torch.ones(6))

    @pytest.mark.parametrize("name", ["embedding-cnn", "resnet18-trunk", "face20", "mlp-16+unit", "embedding-cnn+unit"])
    def test_weights_depend_on_the_generator_alone(self, name: str) -> None:
        torch.manual_seed(1)
        one = build(name, seed=5).state_dict()
        torch.manual_seed(2)
        before = torch.get_rng_state()
        same, other = (build(name, seed=seed).state_dict() for seed in (5, 6))
        assert all(torch.equal(one[key], same[key]) for key in one)
        assert any(not torch.equal(one[key], other[key]) for key in one)
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_network_that_was_left_in_eval_mode_stays_there(self) -> None:
        assert not UnitOutput(nn.Linear(2, 2).eval()).training

    @pytest.mark.parametrize(
        "name", ["mlp+unit+unit", "mlp+unit+cosine", "mlp+cosine+unit", "+unit", "face", "face20x"]
    )
    def test_other_names_are_unknown(self, name: str) -> None:
        with pytest.raises(InputError, match=r"is unknown; choose from .*face20.*each may end in \+unit or \+cosine"):
            build(name)

    @pytest.mark.parametrize(("name", "message"), [("resnet34-trunk", "depth=34"), ("face10", "depth=10")])
    def test_other_depths_are_explained(self, name: str, message: str) -> None:
        with pytest.raises(InputError, match=message):
            build(name)

    @pytest.mark.parametrize("name", ["embedding-cnn", "resnet18-trunk", "face20"])
    def test_tables_are_refused(self, name: str) -> None:
        with pytest.raises(InputError, match="use mlp"):
            build(name, (7,))


class TestFused:
    @every_network
    def test_the_fused_engine_takes_it(self, network: str) -> None:
        models = [TINY[network]() for _ in range(2)]
        assert why_not_fused(models, images(network, 8)) is None
        assert why_not_fused([UnitOutput(model) for model in models], images(network, 8)) is None

    @every_network
    def test_with_outputs_of_length_1_fused_children_are_the_separate_ones(self, network: str) -> None:
        models = [UnitOutput(TINY[network]()).double() for _ in range(2)]
        x, towards = images(network, 8).double(), torch.randn(8, 5, dtype=torch.float64)
        joint = fuse(models)
        outputs = joint(x)
        separate = torch.cat([model(part) for model, part in zip(models, x.chunk(2), strict=True)])
        torch.testing.assert_close(outputs, separate, rtol=1e-8, atol=1e-8)
        (outputs * towards).sum().backward()
        (separate * towards).sum().backward()
        for name, weights in joint.named_parameters():
            alone = torch.stack([model.get_parameter(name).grad for model in models])
            torch.testing.assert_close(weights.grad, alone, rtol=1e-6, atol=1e-7 * float(alone.abs().max()) + 1e-12)

    @every_network
    def test_it_compiles_into_one_graph(self, network: str) -> None:
        model, x = UnitOutput(TINY[network]()).eval(), images(network)
        torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))
