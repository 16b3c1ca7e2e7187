"""Several engines, one result; and what every engine promises about its children."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lossalign.children import Children, FusedChildren, Member, Optimisation, SequentialChildren, VmapChildren
from lossalign.core import InputError
from lossalign.losses.aligned import aligned_loss

Build = Callable[..., Children]
KINDS = ("raw", "averaged", "best")
SOME = torch.tensor([True, False, True])


def close(one: Tensor, other: Tensor, relative: float) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return bool((one - other).abs().max() <= relative * other.abs().max())


def assert_same(one: Children, other: Children, relative: float = 0.0) -> None:
    """The same weights, averages, best weights and buffers; bit for bit unless ``relative`` is given."""
    for kind in KINDS:
        for child in range(one.count):
            mine, theirs = one.child_state(child, kind), other.child_state(child, kind)
            assert mine.keys() == theirs.keys()
            for name, tensor in mine.items():
                same = close(tensor, theirs[name], relative) if relative else torch.equal(tensor, theirs[name])
                assert same, f"{kind} {name} of child {child}"


def trained(children: Children, phi: Tensor) -> Children:
    """Three iterations, best weights for some, two more."""
    children.advance(3, phi)
    children.keep_best(SOME[: children.count])
    children.advance(2, phi)
    return children


def by_offsets(outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
    return aligned_loss(outputs, targets, b=phi)


def by_weights(outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
    return aligned_loss(outputs, targets, u=phi)


@pytest.mark.parametrize("engine", ["sequential", "vmap", "fused"])
def test_children_under_several_losses_train_as_under_each_alone(
    engine: str, build: Build, offsets: Callable[..., Tensor]
) -> None:
    losses, phi = [by_offsets, by_offsets, by_weights], offsets(3, torch.float64)
    mixed, first, second = (
        trained(build(engine, losses=given, dtype=torch.float64), phi) for given in (losses, by_offsets, by_weights)
    )
    for child, alone, other in ((0, first, second), (1, first, second), (2, second, first)):
        weights, same, differ = (each.child_state(child, "raw").values() for each in (mixed, alone, other))
        assert all(close(one, two, 1e-12) for one, two in zip(weights, same, strict=True))
        assert child == 0 or not all(close(one, two, 1e-3) for one, two in zip(weights, differ, strict=True))


@pytest.mark.parametrize("schedule", ["cosine", "steps"])
@pytest.mark.parametrize("model", ["mlp", "small-cnn", "resnet8"])
@pytest.mark.parametrize("stacked", ["vmap", "fused"])
def test_children_together_equal_children_in_turn(
    stacked: str, model: str, schedule: str, build: Build, offsets: Callable[..., Tensor], inputs: Tensor
) -> None:
    options = {"dtype": torch.float64, "nesterov": schedule == "steps", "schedule": schedule}
    sequential, together = (build(engine, model, **options) for engine in ("sequential", stacked))
    phi = offsets(3, torch.float64)
    trained(sequential, phi)
    trained(together, phi)
    assert together.iteration == sequential.iteration == 5
    assert_same(together, sequential, 1e-9)
    for kind in KINDS:
        given = [inputs, inputs, inputs[:40].clone()]
        torch.testing.assert_close(together.outputs(given, kind), sequential.outputs(given, kind), rtol=1e-6, atol=1e-6)
    losses = sequential.advance(2, phi)
    torch.testing.assert_close(together.advance(2, phi).to(losses.dtype), losses)


def test_each_child_trains_under_its_own_phi(engine: str, build: Build) -> None:
    children = build(engine, seeds=(5, 5))
    children.advance(3, torch.tensor([[0.0, 0.0, 0.0], [2.0, 0.0, -2.0]]))
    one, other = (children.child_state(child, "raw") for child in range(2))
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_children_with_one_seed_see_the_same_batches(engine: str, build: Build) -> None:
    alone: list[Any] = []
    build(engine, seeds=(7,), streams=alone).advance(4, torch.zeros(1, 3))
    children = build(engine, seeds=(7, 3, 7))
    children.advance(4, torch.zeros(3, 3))
    first, second, third = (children.child_state(child, "raw") for child in range(3))
    assert all(torch.equal(first[name], third[name]) for name in first)
    assert not any(torch.equal(first[name], second[name]) for name in first)
    streams: list[Any] = []
    build(engine, seeds=(3, 7, 7), streams=streams).advance(4, torch.zeros(3, 3))
    given = [torch.stack(stream.given) for stream in streams]
    assert all(torch.equal(batches, torch.stack(alone[0].given)) for batches in given[1:])


@pytest.mark.parametrize("model", ["mlp", "small-cnn", "dropout"])
def test_a_child_does_not_depend_on_the_others(model: str, build: Build, offsets: Callable[..., Tensor]) -> None:
    phi = offsets(3)
    together = trained(build("sequential", model, seeds=(0, 1, 2)), phi)
    for child in range(3):
        alone = build("sequential", model, seeds=(child,))
        alone.advance(5, phi[child : child + 1])
        mine, theirs = alone.child_state(0, "averaged"), together.child_state(child, "averaged")
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("model", ["small-cnn", "dropout"])
def test_two_short_advances_are_one_long(
    engine: str, model: str, build: Build, offsets: Callable[..., Tensor], inputs: Tensor
) -> None:
    whole, parts = build(engine, model), build(engine, model)
    whole.advance(5, offsets(3))
    for iterations in (2, 1, 2):
        parts.advance(iterations, offsets(3))
        parts.outputs([inputs.float()] * 3, "raw")
    assert_same(parts, whole)


def test_losses_are_the_mean_over_the_iterations(engine: str, build: Build) -> None:
    whole, parts = build(engine), build(engine)
    each = torch.stack([parts.advance(1, torch.zeros(3, 3)) for _ in range(4)])
    torch.testing.assert_close(whole.advance(4, torch.zeros(3, 3)), each.mean(0))


@pytest.mark.parametrize("model", ["mlp", "dropout"])
def test_the_global_random_stream_is_left_alone(engine: str, model: str, build: Build, inputs: Tensor) -> None:
    before = torch.get_rng_state()
    children = build(engine, model)
    children.advance(2, torch.zeros(3, 3))
    children.outputs([inputs.float()] * 3, "averaged")
    assert torch.equal(torch.get_rng_state(), before)


def test_children_on_the_cpu_do_not_reseed_a_gpu(engine: str, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        reseeded: list[int] = []
        patched.setattr(torch.cuda, "manual_seed_all", reseeded.append)
        build(engine, lambda: nn.Linear(1, 1))
    assert reseeded == [100, 101, 102]  # the fixture's own seeds, and no other


def test_the_global_random_stream_does_not_reach_children(engine: str, build: Build) -> None:
    one, other = build(engine, "dropout"), build(engine, "dropout")
    one.advance(2, torch.zeros(3, 3))
    torch.rand(5)
    other.advance(2, torch.zeros(3, 3))
    assert_same(one, other)


def test_dropout_is_paired_by_seed_unless_vmapped(engine: str, build: Build) -> None:
    children = build(engine, "dropout", seeds=(5, 5))
    children.advance(1, torch.zeros(2, 3))
    one, other = (children.child_state(child, "raw")["3.weight"] for child in range(2))
    assert torch.equal(one, other) == (engine != "vmap")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", ["small-cnn", "dropout"])
def test_a_childs_state_loads_into_a_plain_module(
    engine: str, model: str, kind: Any, build: Build, inputs: Tensor, networks: dict[str, Callable[[], nn.Module]]
) -> None:
    children = trained(build(engine, model), torch.zeros(3, 3))
    outputs = children.outputs([inputs.float()] * 3, kind)
    for child in range(3):
        plain = networks[model]()
        plain.load_state_dict(children.child_state(child, kind), strict=True)
        with torch.no_grad():
            torch.testing.assert_close(plain.eval()(inputs.float()), outputs[child], rtol=1e-5, atol=1e-6)


def test_evaluation_moves_nothing(engine: str, build: Build, inputs: Tensor) -> None:
    children, other = build(engine, "small-cnn"), build(engine, "small-cnn")
    for kind in KINDS:
        children.outputs([inputs.float()] * 3, kind)
    assert_same(children, other)


def test_children_may_have_inputs_of_their_own(engine: str, build: Build, inputs: Tensor) -> None:
    children, some = build(engine, "small-cnn"), inputs.float()
    own = [some[:10], some[10:20], some[10:20]]
    outputs = children.outputs(own, "raw")
    for child in range(3):
        torch.testing.assert_close(outputs[child], children.outputs([own[child]] * 3, "raw")[child])


def test_long_inputs_are_cut_into_pieces_that_do_not_show(engine: str, build: Build, inputs: Tensor) -> None:
    children, many = build(engine, "small-cnn"), inputs.float().repeat(26, 1, 1, 1)
    torch.testing.assert_close(
        children.outputs([many] * 3, "raw")[:, 1000:], children.outputs([inputs.float()] * 3, "raw")
    )


def test_best_weights_are_those_of_the_chosen_and_then_stay(engine: str, build: Build) -> None:
    children = build(engine, "small-cnn")
    start = [dict(children.child_state(child, "best")) for child in range(3)]
    start = [{name: tensor.clone() for name, tensor in state.items()} for state in start]
    children.advance(3, torch.zeros(3, 3))
    then = [{n: t.clone() for n, t in children.child_state(child, "averaged").items()} for child in range(3)]
    children.keep_best(SOME)
    children.advance(3, torch.zeros(3, 3))
    for child, expected in enumerate((then[0], start[1], then[2])):
        best = children.child_state(child, "best")
        assert all(torch.equal(best[name], expected[name]) for name in expected)
        assert not torch.equal(best["linear.weight"], children.child_state(child, "averaged")["linear.weight"])


def test_the_average_is_of_raw_weights_and_buffers(engine: str, build: Build) -> None:
    children = build(engine, "small-cnn", dtype=torch.float64, average_decay=0.15)
    expected = {name: tensor.clone() for name, tensor in children.child_state(1, "raw").items()}
    for decay in (0.1, 0.15, 0.15):
        children.advance(1, torch.zeros(3, 3, dtype=torch.float64))
        for name, tensor in children.child_state(1, "raw").items():
            average = decay * expected[name] + (1 - decay) * tensor
            expected[name] = average if tensor.is_floating_point() else tensor
    averaged = children.child_state(1, "averaged")
    assert averaged["norms.0.num_batches_tracked"] == 3
    assert all(close(averaged[name], tensor, 1e-12) for name, tensor in expected.items())


class Awkward(nn.Module):
    """Tied, frozen and unused weights, and a buffer that is not part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.frozen, self.unused, self.head = nn.Linear(64, 8), nn.Linear(2, 2), nn.Linear(8, 3)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.full((64,), 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(self.first(x.flatten(1) * self.scale).relu())
        logits: Tensor = self.head(self.frozen(hidden).relu())
        return logits


def test_tied_frozen_and_unused_weights_train_alike(build: Build, inputs: Tensor) -> None:
    sequential, vmapped = (build(engine, Awkward, dtype=torch.float64) for engine in ("sequential", "vmap"))
    start = sequential.child_state(0, "best")["frozen.weight"].clone()
    for children in (sequential, vmapped):
        trained(children, torch.zeros(3, 3, dtype=torch.float64))
        plain = Awkward().double()
        plain.load_state_dict(children.child_state(0, "averaged"), strict=True)
        outputs = children.outputs([inputs] * 3, "averaged")[0]
        torch.testing.assert_close(plain(inputs).detach().float(), outputs, rtol=1e-6, atol=1e-6)
        assert torch.equal(plain.frozen.weight, start)
        assert not torch.equal(plain.first.weight, build("sequential", Awkward).child_state(0, "raw")["first.weight"])
    assert_same(vmapped, sequential, 1e-9)


def test_bfloat16_keeps_float32_weights(engine: str, build: Build, inputs: Tensor) -> None:
    children, exact = build(engine, precision="bfloat16"), build(engine)
    losses = children.advance(3, torch.zeros(3, 3))
    torch.testing.assert_close(losses, exact.advance(3, torch.zeros(3, 3)), rtol=0.02, atol=0.02)
    assert children.outputs([inputs.float()] * 3, "averaged").dtype is torch.float32
    assert children.child_state(0, "raw")["layers.0.weight"].dtype is torch.float32


def test_the_members_models_are_left_alone(engine: str, build: Build) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    before = model[1].weight.detach().clone()
    children = build(engine, lambda: model)
    children.advance(2, torch.zeros(3, 3))
    assert torch.equal(model[1].weight, before)
    assert not torch.equal(children.child_state(0, "raw")["1.weight"], before)


@pytest.mark.parametrize("engine_class", [SequentialChildren, VmapChildren, FusedChildren])
def test_no_children_are_refused(engine_class: Callable[..., Children]) -> None:
    none: list[Member] = []
    with pytest.raises(InputError, match="children=0: train at least 1"):
        engine_class(none, lambda outputs, targets, phi: outputs, Optimisation(iterations=1))


def test_heirs_go_on_from_their_parents_training_state(
    engine: str, build: Build, offsets: Callable[..., Tensor]
) -> None:
    children, phi = build(engine), offsets(3)
    trained(children, phi)
    before = [children.training_state(child) for child in range(3)]
    before = [{kind: {name: t.clone() for name, t in part.items()} for kind, part in one.items()} for one in before]
    best = [{name: t.clone() for name, t in children.child_state(child, "best").items()} for child in range(3)]
    children.inherit(torch.tensor([2, 1, 0]))
    for child, parent in enumerate((2, 1, 0)):
        for kind, part in children.training_state(child).items():
            assert all(torch.equal(tensor, before[parent][kind][name]) for name, tensor in part.items())
        own = children.child_state(child, "best")
        assert all(torch.equal(tensor, best[child][name]) for name, tensor in own.items()), (
            "best weights stay one's own"
        )


def test_an_heir_trains_as_its_parent_does_on_the_same_batches_and_otherwise_on_others(
    engine: str, build: Build
) -> None:
    children, phi = build(engine, seeds=(5, 5, 7)), torch.zeros(3, 3)
    children.load_training_state(1, build(engine, seeds=(8, 8, 8)).training_state(1))
    children.advance(3, phi)
    children.inherit(torch.tensor([0, 0, 0]))
    children.advance(2, phi)
    first, same, other = (children.child_state(child, "raw") for child in range(3))
    assert all(torch.allclose(first[name], same[name], rtol=1e-5, atol=1e-7) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first), "batches stay one's own"
