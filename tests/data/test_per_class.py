"""Class-balanced batches: some classes, equally many examples of each, and every class and example in its turn."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lossalign.core import InputError, generator
from lossalign.data import (
    BatchStream,
    Dataset,
    StreamedBatches,
    Transform,
    fit_transform,
    load_image_folder,
    map_image_folder,
)
from lossalign.data.orders import PerClass

PLAIN = Transform(mean=torch.zeros(1), std=torch.ones(1))


def of_sizes(*sizes):
    """Targets of classes with so many examples, in no order."""
    targets = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return targets[torch.randperm(len(targets), generator=generator(0, "targets"))]


def table(*sizes):
    """Every input is its own index."""
    targets = of_sizes(*sizes)
    inputs, names = torch.arange(float(len(targets)))[:, None], tuple(f"class {i}" for i in range(len(sizes)))
    return Dataset(name="toy", inputs=inputs, targets=targets, class_names=names)


@st.composite
def problems(draw):
    """Class sizes, classes in a batch, examples of each, a seed."""
    per_class = draw(st.integers(1, 6))
    sizes = draw(st.lists(st.integers(min(2, per_class), 9), min_size=1, max_size=7))
    return sizes, draw(st.integers(1, len(sizes))), per_class, draw(st.integers(0, 99))


def drawn(problem, batches):
    """Targets [n], and example indices [batches, P, M]."""
    sizes, classes, per_class, seed = problem
    targets = of_sizes(*sizes)
    order = PerClass(targets, classes * per_class, per_class, generator(seed))
    return targets, torch.cat([order.take(1) for _ in range(batches)]).view(batches, classes, per_class)


class TestOrder:
    @given(problems())
    def test_a_batch_holds_different_classes_with_equally_many_examples(self, problem):
        targets, taken = drawn(problem, 10)
        for batch in targets[taken]:
            assert (batch == batch[:, :1]).all()
            assert len(batch[:, 0].unique()) == problem[1]

    @given(problems())
    def test_a_round_shows_every_class_once(self, problem):
        classes = len(problem[0])
        targets, taken = drawn(problem, 3 * classes)
        rounds = targets[taken][:, :, 0].view(-1, classes)
        assert torch.equal(rounds.sort(1).values, torch.arange(classes).expand_as(rounds))

    @given(problems())
    def test_a_class_shows_no_example_twice_until_too_few_are_left(self, problem):
        sizes, _, per_class, _ = problem
        targets, taken = drawn(problem, 8 * len(sizes))
        rows = taken.flatten(0, 1)
        for label, size in enumerate(sizes):
            mine = rows[targets[rows[:, 0]] == label]
            draws_in_a_pass = max(1, size // per_class)
            for start in range(0, len(mine) - draws_in_a_pass + 1, draws_in_a_pass):
                shown = Counter(mine[start : start + draws_in_a_pass].flatten().tolist())
                if size >= per_class:
                    assert max(shown.values()) == 1
                else:
                    assert len(shown) == size
                    assert max(shown.values()) - min(shown.values()) <= 1

    def test_classes_without_examples_take_no_part(self):
        targets = torch.tensor([5, 2, 5, 2, 7, 7])
        order = PerClass(targets, 6, 2, generator(0))
        assert targets[order.take(1)].unique().tolist() == [2, 5, 7]

    def test_classes_of_one_example_take_no_part_where_pairs_are_wanted(self):
        targets = torch.tensor([3, 5, 2, 5, 2, 7])
        order = PerClass(targets, 4, 2, generator(0))
        taken = torch.cat([order.take(1) for _ in range(20)])
        assert targets[taken].unique().tolist() == [2, 5]
        assert taken.unique().tolist() == [1, 2, 3, 4]
        assert targets[PerClass(targets, 4, 1, generator(0)).take(1)].unique().tolist() == [2, 3, 5, 7]

    def test_every_order_of_classes_and_of_examples_turns_up_alike(self):
        targets = of_sizes(3, 3, 3)
        order = PerClass(targets, 9, 3, generator(0))
        taken = torch.cat([order.take(1) for _ in range(6000)]).view(6000, 3, 3)
        of_classes = Counter(map(tuple, targets[taken][:, :, 0].tolist()))
        of_examples = Counter(map(tuple, taken[targets[taken[:, :, 0]] == 1].tolist()))
        assert set(of_classes) == set(permutations(range(3)))
        assert set(of_examples) == set(permutations((targets == 1).nonzero().flatten().tolist()))
        for counts in (of_classes, of_examples):
            assert all(abs(count - 1000) < 5 * 1000**0.5 for count in counts.values())

    def test_the_draws_depend_on_the_generator_alone(self):
        before = torch.get_rng_state()
        one, same, other = (drawn(([4, 5, 6], 2, 3, seed), 9)[1] for seed in (1, 1, 2))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
        assert torch.equal(torch.get_rng_state(), before)


class TestBatchStream:
    def stream(self, seed=0, sizes=(4, 7, 2, 5, 9), transform=PLAIN, **options):
        return BatchStream(table(*sizes), 6, transform, generator(seed), **{"per_class": 2, **options})

    def test_inputs_keep_their_targets_and_shapes(self):
        stream = self.stream()
        targets_of = stream.dataset.targets
        for _ in range(20):
            inputs, targets = stream.next()
            assert inputs.shape == (6, 1)
            assert torch.equal(targets_of[inputs[:, 0].long()], targets)
            assert torch.equal(targets.view(3, 2)[:, 0], targets.view(3, 2)[:, 1])

    def test_batches_may_be_larger_than_the_data_set(self):
        stream = BatchStream(table(3, 2), 8, PLAIN, generator(0), per_class=4)
        inputs, targets = stream.next()
        assert stream.batch_size == len(inputs) == 8
        assert targets.bincount().tolist() == [4, 4]

    @pytest.mark.parametrize("before", range(12))
    def test_a_resumed_stream_continues_bit_for_bit(self, before):
        transform = fit_transform(table(4, 7, 2, 5, 9), noise=0.5)
        stream = self.stream(transform=transform)
        for _ in range(before):
            stream.next()
        state = stream.state_dict()
        kept = {name: tensor.clone() for name, tensor in state.items()}
        expected = [stream.next() for _ in range(20)]
        assert all(torch.equal(state[name], kept[name]) for name in kept)
        resumed = self.stream(seed=1, transform=transform)
        resumed.next()
        resumed.load_state_dict(state)
        for inputs, targets in expected:
            got = resumed.next()
            assert torch.equal(got[0], inputs)
            assert torch.equal(got[1], targets)

    @given(problems(), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.sampled_from([0.0, 0.3]))
    def test_joint_streams_give_what_each_gives_alone_and_so_are_the_states(self, problem, pieces, noise):
        sizes, classes, per_class, seed = problem
        data = table(*sizes)
        transform = fit_transform(data, noise=noise)
        alone, together = (
            [BatchStream(data, classes * per_class, transform, generator(seed, i), per_class=per_class) for i in (0, 1)]
            for _ in range(2)
        )
        joint = BatchStream.together(together)
        for iterations in pieces:
            made = joint.draws(iterations)
            for k in range(iterations):
                inputs, targets = joint.make(*(tensor[k] for tensor in made))
                expected = [stream.next() for stream in alone]
                assert torch.equal(inputs, torch.stack([x for x, _ in expected]))
                assert torch.equal(targets, torch.stack([y for _, y in expected]))
        for one, other in zip(alone, together, strict=True):
            assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())

    def test_balanced_and_plain_streams_are_joined_if_their_batches_are_alike(self):
        data = table(4, 7, 2)
        streams = [
            BatchStream(data, 6, PLAIN, generator(i), per_class=per_class) for i, per_class in enumerate((2, None))
        ]
        assert BatchStream.together(streams) is not None

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"per_class": None}, "one alone has per_class"),
            ({"sizes": (4, 7, 2, 5, 10)}, "27 examples, but this one has 28"),
            ({"sizes": (4, 7, 2, 5, 4, 5)}, "5 classes, but this one has 6"),
            ({"per_class": 3}, "2 examples per class, but this one has 3"),
        ],
    )
    def test_a_state_from_another_stream_is_refused_and_changes_nothing(self, options, message):
        stream, same = self.stream(1, **options), self.stream(1, **options)
        with pytest.raises(InputError, match=message):
            stream.load_state_dict(self.stream().state_dict())
        assert torch.equal(stream.next()[0], same.next()[0])

    @pytest.mark.parametrize(
        ("batch_size", "per_class", "message"),
        [
            (6, 0, "per_class=0: a batch needs at least 1"),
            (6, 4, "batch_size=6, per_class=4: .* that per_class divides"),
            (
                8,
                2,
                "holds 4 classes, but 3 have 2 examples or more; give a batch_size of at most 6, or a larger per_class",
            ),
            (0, 2, "batch_size=0"),
        ],
    )
    def test_batches_that_cannot_be_are_explained(self, batch_size, per_class, message):
        with pytest.raises(InputError, match=message):
            BatchStream(table(4, 7, 2), batch_size, PLAIN, generator(0), per_class=per_class)


class TestStreamedBatches:
    @pytest.fixture
    def pets(self, tmp_path):
        random = np.random.default_rng(0)
        for name, number in (("cat", 5), ("dog", 9), ("emu", 3)):
            (tmp_path / "pets" / name).mkdir(parents=True)
            for i in range(number):
                pixels = random.integers(0, 256, (6, 6, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{i}.png")
        return tmp_path / "pets"

    def test_batches_and_states_are_those_of_the_folder_in_memory(self, pets):
        loaded = load_image_folder(pets, 6)
        transform = fit_transform(loaded, crop=1, flip=True)
        in_memory = BatchStream(loaded, 4, transform, generator(0), per_class=2)
        streamed = StreamedBatches(map_image_folder(pets, 6), 4, transform, generator(0), per_class=2)
        for _ in range(9):
            expected = in_memory.state_dict()
            assert all(torch.equal(value, expected[name]) for name, value in streamed.state_dict().items())
            for here, there in zip(streamed.next(), in_memory.next(), strict=True):
                assert torch.equal(here, there)
