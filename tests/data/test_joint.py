"""Many streams at once give exactly what each gives alone."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lossalign.core import generator
from lossalign.data import BatchStream, Dataset, Transform, fit_transform
from lossalign.data import streams as streams_module

CLASSES = ("a", "b", "c")
SHAPES = {"images": (2, 4, 5), "table": (6,)}


def examples(kind, dtype, number, seed=0):
    shape = (number, *SHAPES[kind])
    if dtype is torch.uint8:
        inputs = torch.randint(0, 256, shape, generator=generator(seed, "inputs"), dtype=torch.uint8)
    else:
        inputs = torch.randn(shape, generator=generator(seed, "inputs"))
    targets = torch.randint(0, 3, (number,), generator=generator(seed, "targets"))
    return Dataset(name=f"toy-{seed}", inputs=inputs, targets=targets, class_names=CLASSES)


@st.composite
def settings_of_streams(draw):
    kind = draw(st.sampled_from(sorted(SHAPES)))
    dtype = draw(st.sampled_from([torch.uint8, torch.float32]))
    options = {"noise": draw(st.sampled_from([0.0, 0.3]))}
    if kind == "images":
        options |= {"crop": draw(st.integers(0, 3)), "flip": draw(st.booleans())}
    sets = [examples(kind, dtype, draw(st.integers(4, 30)), seed) for seed in range(draw(st.integers(1, 3)))]
    transforms = [fit_transform(data, **options) for data in sets]
    of = draw(st.lists(st.integers(0, len(sets) - 1), min_size=1, max_size=5))
    batch_size = draw(st.integers(1, 4))
    return [(sets[i], batch_size, transforms[i], seed) for seed, i in enumerate(of)]


def build(settings):
    return [BatchStream(data, size, transform, generator(seed)) for data, size, transform, seed in settings]


def batches(joint, pieces):
    for iterations in pieces:
        drawn = joint.draws(iterations)
        for k in range(iterations):
            yield joint.make(*(tensor[k] for tensor in drawn))


def assert_same(joint, alone):
    for (inputs, targets), stream_batches in zip(joint, alone, strict=True):
        assert inputs.dtype is torch.float32
        assert torch.equal(inputs, torch.stack([x for x, _ in stream_batches]))
        assert torch.equal(targets, torch.stack([y for _, y in stream_batches]))


@given(settings_of_streams(), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.booleans())
def test_joint_batches_are_those_of_the_streams_and_so_are_the_states(settings, pieces, one_at_a_time):
    alone, together = build(settings), build(settings)
    with pytest.MonkeyPatch.context() as patch:
        if one_at_a_time:
            patch.setattr(streams_module, "_CACHED", 1)
        joint = BatchStream.together(together)
    expected = [[stream.next() for stream in alone] for _ in range(sum(pieces))]
    assert_same(list(batches(joint, pieces)), expected)
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


@given(settings_of_streams(), st.integers(1, 12))
def test_joint_streams_go_on_from_saved_states(settings, before):
    streams = build(settings)
    BatchStream.together(streams).draws(before)
    resumed = build([(data, size, transform, seed + 100) for data, size, transform, seed in settings])
    joint = BatchStream.together(resumed)
    for stream, old in zip(resumed, streams, strict=True):
        stream.load_state_dict(old.state_dict())
    assert_same(list(batches(joint, [5])), [[stream.next() for stream in streams] for _ in range(5)])


def test_a_batch_draws_its_order_then_corners_then_sides_then_noise():
    data = examples("images", torch.uint8, 7)
    stream = BatchStream(data, 3, fit_transform(data, crop=2, flip=True, noise=0.5), generator(0))
    plain = generator(0)
    for _ in range(3):
        order = torch.randperm(7, generator=plain)
        for at in (order[:3], order[3:6]):
            indices, corner, side, noise = stream.drawing.next()
            assert torch.equal(indices, at)
            assert torch.equal(corner[..., None], torch.randint(0, 5, (2, 3, 1), generator=plain))
            assert torch.equal(side[:, None], torch.rand(3, 1, generator=plain))
            assert torch.equal(noise, torch.randn(3, 2, 4, 5, generator=plain))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_making_batches_compiles_into_one_graph(dtype):
    sets = [examples("images", dtype, 9, seed) for seed in range(2)]
    transforms = [fit_transform(data, crop=2, flip=True, noise=0.1) for data in sets]
    joint = BatchStream.together(build([(sets[i], 4, transforms[i], seed) for seed, i in enumerate((0, 0, 1))]))
    drawn = [tensor[0] for tensor in joint.draws(1)]
    made = torch.compile(joint.make, backend="eager", fullgraph=True)(*drawn)
    for here, there in zip(made, joint.make(*drawn), strict=True):
        assert torch.equal(here, there)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_streams_over_one_data_set_hold_it_once_and_let_go_of_it(dtype):
    sets = [examples("images", dtype, 9, seed) for seed in range(3)]
    transforms = [fit_transform(data, crop=1) for data in sets]
    streams = build([(sets[i % 3], 4, replace(transforms[i % 3]), i) for i in range(48)])
    copies = {id(stream.data[0]) for stream in streams}
    assert len(copies) == 3
    assert (copies == {id(data.inputs) for data in sets}) == (dtype is torch.uint8)
    held = weakref.ref(streams[0].data[0])
    del streams, sets
    gc.collect()
    assert held() is None


def test_streams_that_do_not_stack_are_not_joined():
    data = examples("images", torch.uint8, 9)
    transform = fit_transform(data, crop=1)
    stream = BatchStream(data, 4, transform, generator(0))
    floats = examples("images", torch.float32, 9)
    others = [
        BatchStream(data, 3, transform, generator(1)),
        BatchStream(data, 4, replace(transform, crop=2), generator(1)),
        BatchStream(data, 4, replace(transform, flip=True), generator(1)),
        BatchStream(data, 4, replace(transform, noise=0.1), generator(1)),
        BatchStream(data, 4, replace(transform, scale=1.0), generator(1)),
        BatchStream(floats, 4, fit_transform(floats, crop=1), generator(1)),
        BatchStream(
            examples("table", torch.uint8, 9), 4, Transform(mean=torch.zeros(1), std=torch.ones(1)), generator(1)
        ),
        object(),
    ]
    assert all(BatchStream.together([stream, other]) is None for other in others)
    assert BatchStream.together([]) is None
    assert BatchStream.together([stream, BatchStream(data, 4, transform, generator(1))]) is not None
