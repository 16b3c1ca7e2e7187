import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lossalign.core import InputError, generator
from lossalign.data import Dataset, load_digits, split_classes

PARTS = ("train", "validation", "selection", "test")


def of_counts(counts, name="toy"):
    """A data set whose every input is its own number, so that examples can be told apart."""
    targets = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    targets = targets[torch.randperm(len(targets), generator=generator(0))]
    names = tuple(f"{name}{i}" for i in range(len(counts)))
    return Dataset(name=name, inputs=torch.arange(float(len(targets)))[:, None], targets=targets, class_names=names)


def ids(data):
    return set(data.inputs[:, 0].int().tolist())


def classes(data):
    return set(data.targets.tolist())


@st.composite
def tasks(draw):
    held_out = draw(st.fixed_dictionaries(dict.fromkeys(("validation", "selection", "test"), st.integers(2, 4))))
    most = draw(st.sampled_from([None, 2, 3]))
    fit = st.integers(most or 2, 9)
    able = draw(st.lists(fit, min_size=sum(held_out.values()), max_size=16))
    return draw(st.permutations([*able, *draw(st.lists(st.integers(0, 1), max_size=5)), 1, 1])), held_out, most


class TestParts:
    @given(tasks(), st.integers(0, 9))
    def test_share_no_class_and_lose_no_training_example(self, task, seed):
        counts, numbers, most = task
        data = of_counts(counts)
        parts = split_classes(data, **numbers, examples_per_class=most, generator=generator(seed))
        found = {name: classes(getattr(parts, name)) for name in PARTS}
        assert sum(map(len, found.values())) == len(set.union(*found.values())) == int((data.counts > 0).sum())
        for name, number in numbers.items():
            part = getattr(parts, name)
            assert len(found[name]) == number
            for c in found[name]:
                assert part.counts[c] == (most or data.counts[c])
                assert part.counts[c] >= 2
        for c in found["train"]:
            assert parts.train.counts[c] == data.counts[c]
        assert torch.equal(data.targets[parts.train.inputs[:, 0].long()], parts.train.targets)

    @given(tasks(), st.integers(0, 9))
    def test_train_and_validation_are_both(self, task, seed):
        counts, numbers, most = task
        parts = split_classes(of_counts(counts), **numbers, examples_per_class=most, generator=generator(seed))
        assert ids(parts.train_and_validation) == ids(parts.train) | ids(parts.validation)
        assert len(parts.train_and_validation) == len(parts.train) + len(parts.validation)

    def test_keep_all_class_names(self):
        data = of_counts([3] * 10)
        parts = split_classes(data, validation=2, selection=2, test=2, generator=generator(0))
        assert all(getattr(parts, name).class_names == data.class_names for name in PARTS)

    def test_may_be_shares_of_the_classes_with_examples(self):
        data = of_counts([4] * 20 + [0] * 7)
        parts = split_classes(data, validation=0.1, selection=0.2, test=0.25, generator=generator(0))
        assert [len(classes(getattr(parts, name))) for name in PARTS] == [9, 2, 4, 5]

    def test_are_drawn_anew_by_every_seed_and_alike_by_one(self):
        data = of_counts([5] * 30)

        def validation(seed):
            parts = split_classes(
                data, validation=5, selection=5, test=5, examples_per_class=3, generator=generator(seed)
            )
            return parts.validation.inputs[:, 0].tolist()

        assert validation(0) == validation(0)
        assert validation(0) != validation(1)

    def test_the_selection_part_changes_neither_validation_nor_test(self):
        data = of_counts(list(range(2, 22)))
        options = {"validation": 3, "test": 4, "examples_per_class": 2}
        few = split_classes(data, selection=2, **options, generator=generator(0))
        many = split_classes(data, selection=6, **options, generator=generator(0))
        assert ids(few.validation) == ids(many.validation)
        assert ids(few.test) == ids(many.test)

    def test_of_all_seeds_have_one_size_with_examples_per_class(self):
        data = of_counts([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
        sizes = set()
        for seed in range(20):
            parts = split_classes(
                data, validation=2, selection=3, test=2, examples_per_class=4, generator=generator(seed)
            )
            sizes.add((len(parts.validation), len(parts.selection), len(parts.test)))
        assert sizes == {(8, 12, 8)}


class TestTestSet:
    def test_it_is_used_as_it_is(self):
        test = of_counts([1, 3], name="other")
        parts = split_classes(of_counts([3] * 6), validation=2, selection=2, test_set=test, generator=generator(0))
        assert parts.test is test
        assert [len(classes(part)) for part in (parts.train, parts.validation, parts.selection)] == [2, 2, 2]

    def test_it_may_be_the_rest_of_the_same_classes_but_share_none(self):
        data = of_counts([3] * 9)
        known = data.subset((data.targets < 6).nonzero().squeeze(1))
        options = {"validation": 2, "selection": 2, "generator": generator(0)}
        assert split_classes(known, test_set=data.subset((data.targets > 5).nonzero().squeeze(1)), **options)
        with pytest.raises(InputError, match=r"1 of its classes have examples in dataset 'toy' too, e\.g\. 'toy5'"):
            split_classes(known, test_set=data.subset((data.targets > 4).nonzero().squeeze(1)), **options)

    @pytest.mark.parametrize(
        ("test", "options", "message"),
        [
            (of_counts([3, 3], "other"), {"test": 2}, "give it without test"),
            (of_counts([3], "other"), {}, "fewer than 2 classes"),
            (
                Dataset(name="x", inputs=torch.eye(4), targets=torch.tensor([0, 0, 1, 1]), class_names=("x", "y")),
                {},
                r"inputs are torch.float32 \[4\], those of dataset 'toy' torch.float32 \[1\]",
            ),
        ],
    )
    def test_others_are_refused(self, test, options, message):
        with pytest.raises(InputError, match=message):
            split_classes(
                of_counts([3] * 9), validation=2, selection=2, test_set=test, generator=generator(0), **options
            )


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"validation": 1}, "validation: 1 classes, but a part needs at least 2; ask for more"),
            ({"selection": 0.1}, "selection: 1 classes"),
            ({"test": 0}, "test: 0 classes, .*, or a test set as test_set"),
            ({"validation": 1.5}, "validation=1.5: give a share between 0 and 1"),
            ({"validation": float("nan")}, "validation=nan: give a share"),
            ({"validation": -2}, "validation: -2 classes"),
            ({"examples_per_class": 1}, "examples_per_class=1: give 2 or more"),
            (
                {"validation": 5},
                r"9 of its 10 classes have 2 or more examples, but 9 are held out \(2 test, 5 vali",
            ),
            ({"examples_per_class": 6}, "0 of its 10 classes have 6 or more examples, but 6 are held out"),
        ],
    )
    def test_they_say_what_to_do(self, change, message):
        data = of_counts([5] * 9 + [1])
        options = {"validation": 2, "selection": 2, "test": 2} | change
        with pytest.raises(InputError, match=message):
            split_classes(data, **options, generator=generator(0))


@pytest.mark.parametrize("seed", range(3))
def test_digits_are_cut_into_four_two_two_and_two_classes(seed):
    digits = load_digits()
    parts = split_classes(digits, validation=2, selection=2, test=2, examples_per_class=170, generator=generator(seed))
    assert [len(classes(getattr(parts, name))) for name in PARTS] == [4, 2, 2, 2]
    assert [len(getattr(parts, name)) for name in PARTS[1:]] == [340, 340, 340]
