"""A compiled iteration trains the same numbers; where it cannot, one warning, and still the same numbers."""

from __future__ import annotations

import copy
import functools
import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from lossalign.children import Children
from lossalign.children import compiled as room
from lossalign.children.compiled import CompiledChildren
from lossalign.children.fused import FusedLift
from lossalign.children.vmapped import VmapLift

Build = Callable[..., Children]
Both = Callable[..., tuple[CompiledChildren, Children]]
LIFTS: dict[str, Any] = {"fused": FusedLift, "vmap": VmapLift}
real_compile = torch.compile


def norms() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def drops() -> nn.Module:
    layer = nn.Dropout(0.5)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), layer, nn.Linear(8, 8), layer, nn.Linear(8, 3))


@pytest.fixture(autouse=True)
def _graphs_without_a_compiler(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Steps are traced and differentiated ahead of time as on a GPU; only slow tests make machine code of them."""
    slow = request.node.get_closest_marker("slow") is not None
    if slow and shutil.which("g++") is None:
        pytest.skip("no compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "compiled"))
    monkeypatch.setattr(
        torch, "compile", real_compile if slow else functools.partial(real_compile, backend="aot_eager")
    )
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture(name="compiled", params=["fused", "vmap"])
def compiled_fixture(request: pytest.FixtureRequest, build: Build) -> Both:
    """Compiled children, and the same ones that are not."""

    def both(model: Any, **options: Any) -> tuple[CompiledChildren, Children]:
        return compiled_children(build, request.param, model, **options), build(request.param, model, **options)

    return both


def compiled_children(build: Build, lift: str, model: Any, **options: Any) -> CompiledChildren:
    say = options.pop("say", lambda sentence: None)
    children = build(lambda *args: CompiledChildren(*args, "cpu", lift=LIFTS[lift], say=say), model, **options)
    assert isinstance(children, CompiledChildren)
    return children


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested dicts and lists as one dict of leaves."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in flat(part, f"{path}/{key}").items()}
    if isinstance(value, list):
        return {k: v for i, part in enumerate(value) for k, v in flat(part, f"{path}/{i}").items()}
    return {path: value}


def assert_same(one: Children, other: Children, relative: float = 2e-5) -> None:
    for kind in ("raw", "averaged", "best"):
        for child in range(one.count):
            mine, theirs = one.child_state(child, kind), other.child_state(child, kind)
            assert mine.keys() == theirs.keys()
            for name, tensor in theirs.items():
                error = (mine[name] - tensor).double().norm()
                assert error <= relative * tensor.double().norm() + 1e-7, f"{kind} {name} of child {child}"


def assert_trains_alike(compiled: CompiledChildren, eager: Children, phi: Tensor) -> None:
    """Several steps with a changing Φ and a falling learning rate, and best weights in between."""
    for iterations, factor in ((3, 1.0), (1, -1.0), (4, 2.0)):
        losses = compiled.advance(iterations, factor * phi)
        torch.testing.assert_close(losses, eager.advance(iterations, factor * phi), rtol=1e-5, atol=1e-6)
        for children in (compiled, eager):
            children.keep_best(torch.tensor([iterations == 3, iterations == 1, False]))
    assert compiled.iteration == eager.iteration == 8
    assert_same(compiled, eager)


def test_compiled_children_train_alike(compiled: Both, offsets: Callable[..., Tensor]) -> None:
    assert_trains_alike(*compiled(norms, nesterov=True), offsets(3))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "small-cnn"])
def test_children_in_machine_code_train_alike(
    compiled: Both, model: str, offsets: Callable[..., Tensor], inputs: Tensor
) -> None:
    children, eager = compiled(model)
    assert_trains_alike(children, eager, offsets(3))
    for kind in ("raw", "averaged"):
        mine, theirs = (some.outputs([inputs.float()] * 3, kind) for some in (children, eager))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_bfloat16_in_machine_code_trains_alike_to_its_rounding(build: Build, offsets: Callable[..., Tensor]) -> None:
    children = compiled_children(build, "fused", "small-cnn", precision="bfloat16")
    eager = build("fused", "small-cnn", precision="bfloat16")
    torch.testing.assert_close(children.advance(5, offsets(3)), eager.advance(5, offsets(3)), rtol=0.02, atol=0.02)


def test_phi_and_the_learning_rate_change_without_another_compilation(
    compiled: Both, offsets: Callable[..., Tensor]
) -> None:
    children, _ = compiled(norms)
    children.advance(2, offsets(3))
    replay, graphs = children._replay, counters["stats"]["unique_graphs"]
    assert graphs > 0
    for factor in (-1.0, 0.5, 3.0):
        children.advance(2, factor * offsets(3))
    assert children._replay is replay
    assert counters["stats"]["unique_graphs"] == graphs


def test_children_that_rested_go_on_as_if_they_had_not(compiled: Both, offsets: Callable[..., Tensor]) -> None:
    children, eager = compiled(norms)
    for some in (children, eager):
        some.advance(2, offsets(3))
        some.release_memory()
    assert children._replay is None
    torch.testing.assert_close(children.advance(3, -offsets(3)), eager.advance(3, -offsets(3)), rtol=1e-5, atol=1e-6)
    assert_same(children, eager)


def test_torchs_remark_on_streams_is_kept_from_users(
    compiled: Both, offsets: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def captured(step: Callable[[], None], before: list[Tensor], expected: list[Tensor]) -> Callable[[], None]:
        for sentence in ("The AccumulateGrad node's stream does not match the stream of the node", "something else"):
            warnings.warn(sentence, stacklevel=2)
        return step

    children, _ = compiled(norms)
    monkeypatch.setattr(children, "_captured", captured)
    children.advance(1, offsets(3))
    said = [str(warning.message) for warning in recwarn]
    assert "something else" in said
    assert not any("AccumulateGrad" in sentence for sentence in said)


def test_preparing_trains_nothing(compiled: Both, offsets: Callable[..., Tensor]) -> None:
    children, _ = compiled(norms)
    children.advance(2, offsets(3))  # momenta and statistics that are not zero
    drawn = next(children._feed.draws(1))
    before = flat(copy.deepcopy(children.state_dict()))
    children._replay = None
    children._prepare(drawn, offsets(3))
    after = flat(children.state_dict())
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert torch.equal(torch.as_tensor(after[key]), torch.as_tensor(value)), key


def test_what_takes_a_while_is_said(build: Build) -> None:
    said: list[str] = []
    children = compiled_children(build, "fused", norms, say=said.append)
    assert not said
    children.advance(2, torch.zeros(3, 3))
    assert [sentence.split()[0] for sentence in said] == ["compiling", "compiled"]
    children.advance(2, torch.zeros(3, 3))
    assert len(said) == 2


@pytest.mark.parametrize("sizes", [(40, 5, 16, 32, 1), pytest.param((5, 40), marks=pytest.mark.slow)], ids=str)
def test_evaluation_of_any_number_of_samples(
    compiled: Both, sizes: tuple[int, ...], inputs: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "CHUNK", 16)
    children, eager = compiled(norms)
    images = inputs.float()
    for size in sizes:
        for given in ([images[:size]] * 3, [images[:size], images[-size:], images[:size].clone()]):
            mine, theirs = children.outputs(given, "averaged"), eager.outputs(given, "averaged")
            assert mine.shape == (3, size, 3)
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_evaluation_is_traced_once_for_all_sizes_and_steps(
    build: Build, inputs: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "CHUNK", 16)
    children, images = compiled_children(build, "fused", norms), inputs.float()
    children.outputs([images] * 3, "averaged")
    graphs = counters["stats"]["unique_graphs"]
    for size in (40, 17, 3):
        children.outputs([images[:size]] * 3, "averaged")
        children.outputs([images[:size]] * 3, "best")
    assert counters["stats"]["unique_graphs"] == graphs


def failing(function: Any, **options: Any) -> Any:
    def call(*args: Any) -> Any:
        raise RuntimeError("no C++ compiler\nwas found")

    return call


def test_a_failing_compiler_is_one_warning_and_the_right_numbers(
    compiled: Both, offsets: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", failing)
    children, eager = compiled(norms)
    with pytest.warns(UserWarning, match="compiled") as said:
        children.advance(2, offsets(3))
    assert [str(warning.message) for warning in said] == [
        "training is not compiled (RuntimeError: no C++ compiler); it runs eagerly."
    ]
    children.advance(1, -offsets(3))
    eager.advance(2, offsets(3))
    eager.advance(1, -offsets(3))
    assert_same(children, eager, 1e-6)


def test_evaluation_that_cannot_be_compiled_is_one_warning_and_the_right_numbers(
    compiled: Both, inputs: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", failing)
    children, eager = compiled(norms)
    with pytest.warns(UserWarning, match="evaluation is not compiled") as said:
        outputs = children.outputs([inputs.float()] * 3, "raw")
    assert len(said) == 1
    assert torch.equal(children.outputs([inputs.float()] * 3, "raw"), outputs)
    torch.testing.assert_close(outputs, eager.outputs([inputs.float()] * 3, "raw"))


def impossible(function: Any, **options: Any) -> Any:
    raise RuntimeError("torch.compile is not supported on this Python")


def test_a_python_without_compilation_trains_eagerly(
    build: Build, offsets: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", impossible)
    children, eager = compiled_children(build, "fused", norms), build("fused", norms)
    with pytest.warns(UserWarning, match="training is not compiled .*not supported on this Python"):
        children.advance(2, offsets(3))
    eager.advance(2, offsets(3))
    assert_same(children, eager, 1e-6)


def test_wrong_losses_are_refused_with_one_warning(
    compiled: Both, offsets: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(function: Any, **options: Any) -> Any:
        def call(*args: Any) -> Any:
            result = function(*args)
            return None if result is None else 1.2 * result

        return call

    monkeypatch.setattr(torch, "compile", wrong)
    children, eager = compiled(norms)
    with pytest.warns(
        UserWarning, match="training is not compiled .*its losses differ from the eager iteration's"
    ) as said:
        losses = children.advance(3, offsets(3))
    assert len(said) == 1
    torch.testing.assert_close(losses, eager.advance(3, offsets(3)))
    assert_same(children, eager, 1e-6)


def test_dropout_is_the_same_when_compiled(build: Build, offsets: Callable[..., Tensor]) -> None:
    assert_trains_alike(compiled_children(build, "fused", drops), build("fused", drops), offsets(3))


def test_dropout_under_vmap_is_not_compiled_and_draws_as_it_would(build: Build, offsets: Callable[..., Tensor]) -> None:
    children, eager = compiled_children(build, "vmap", drops), build("vmap", drops)
    with pytest.warns(UserWarning, match="training is not compiled .*draws random numbers from torch's global stream"):
        losses = children.advance(2, offsets(3))
    assert torch.equal(losses, eager.advance(2, offsets(3)))


@pytest.mark.parametrize("model", [norms, drops])
def test_resumes_bit_for_bit(build: Build, model: Any, offsets: Callable[..., Tensor]) -> None:
    whole = compiled_children(build, "fused", model)
    whole.advance(3, offsets(3))
    saved = copy.deepcopy(whole.state_dict())
    losses = whole.advance(4, -offsets(3))

    resumed = compiled_children(build, "fused", model, seeds=(10, 11, 12))
    resumed.advance(1, offsets(3))  # prepared before it is told where to go on
    resumed.load_state_dict(saved)
    assert torch.equal(resumed.advance(4, -offsets(3)), losses)
    mine, theirs = flat(resumed.state_dict()), flat(whole.state_dict())
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(theirs[key])), key


def test_a_compiled_run_may_go_on_eagerly(build: Build, offsets: Callable[..., Tensor]) -> None:
    whole, begun = (compiled_children(build, "fused", norms) for _ in range(2))
    whole.advance(5, offsets(3))
    begun.advance(2, offsets(3))
    resumed = build("sequential", norms, seeds=(10, 11, 12))
    resumed.load_state_dict(begun.state_dict())
    resumed.advance(3, offsets(3))
    assert_same(resumed, whole)
