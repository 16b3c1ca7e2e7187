import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from lossalign.core import InputError, generator
from lossalign.data import Dataset, Fraction, OfTrain, PerClass, Splits, long_tailed_counts, split

PARTS = ("train", "validation", "selection", "test")


def make(targets, num_classes=None):
    """A data set whose every input is its own number, so that examples can be told apart."""
    targets = torch.as_tensor(targets)
    names = tuple(f"c{i}" for i in range(num_classes or int(targets.max()) + 1))
    return Dataset(name="toy", inputs=torch.arange(float(len(targets)))[:, None], targets=targets, class_names=names)


def of_counts(counts):
    return make(torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)), len(counts))


def ids(data):
    return data.inputs[:, 0].int().tolist()


def counts(parts: Splits):
    return {name: getattr(parts, name).counts.tolist() for name in PARTS}


class TestLongTailedCounts:
    def test_the_published_class_sizes(self):
        assert long_tailed_counts(5000, 10, 100).tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
        assert long_tailed_counts(500, 100, 100)[[0, 1, 99]].tolist() == [500, 477, 5]
        assert long_tailed_counts(60, 10, 20)[[0, -1]].tolist() == [60, 3]

    @given(st.integers(1, 10_000), st.integers(2, 200), st.integers(1, 500))
    def test_they_fall_from_largest_to_largest_over_ratio_exactly(self, smallest, num_classes, ratio):
        sizes = long_tailed_counts(smallest * ratio, num_classes, ratio)
        assert sizes[0] == smallest * ratio
        assert sizes[-1] == smallest
        assert (sizes.diff() <= 0).all()

    def test_no_class_is_without_examples(self):
        assert long_tailed_counts(3, 4, 1000).tolist() == [3, 1, 1, 1]

    @pytest.mark.parametrize("arguments", [(0, 10, 10), (10, 1, 10), (10, 10, 0.5), (10, 10, float("nan"))])
    def test_what_makes_no_tail_is_refused(self, arguments):
        with pytest.raises(InputError):
            long_tailed_counts(*arguments)


@st.composite
def tasks(draw):
    num_classes = draw(st.integers(2, 6))
    validation, selection, test = draw(st.tuples(*[st.integers(1, 4)] * 3))
    ratio = draw(st.sampled_from([1.0, 2.0, 10.0]))
    extra = draw(st.lists(st.integers(1, 20), min_size=num_classes, max_size=num_classes))
    labels = [c for c, number in enumerate(extra) for _ in range(number + validation + selection + test)]
    sizes = {
        "validation": PerClass(validation),
        "selection": PerClass(selection),
        "test": PerClass(test),
        "ratio": ratio,
    }
    return make(draw(st.permutations(labels)), num_classes), extra, sizes, draw(st.integers(0, 99))


class TestSplit:
    @settings(max_examples=60, deadline=None)
    @given(tasks())
    def test_parts_are_disjoint_of_the_size_asked_for_and_keep_their_labels(self, task):
        data, extra, sizes, seed = task
        parts = split(data, **sizes, generator=generator(seed))
        chosen = [i for name in PARTS for i in ids(getattr(parts, name))]
        assert len(chosen) == len(set(chosen))
        for name in ("validation", "selection", "test"):
            assert counts(parts)[name] == [sizes[name].number] * data.num_classes
        if sizes["ratio"] == 1:
            assert counts(parts)["train"] == extra
        for name in PARTS:
            part = getattr(parts, name)
            assert torch.equal(part.targets, data.targets[ids(part)])

    @settings(max_examples=60, deadline=None)
    @given(tasks())
    def test_without_largest_the_tail_is_as_large_as_the_classes_allow(self, task):
        data, extra, sizes, seed = task
        sizes["ratio"] = max(sizes["ratio"], 2.0)
        got = torch.tensor(counts(split(data, **sizes, generator=generator(seed)))["train"])
        available = torch.tensor(extra)
        assert torch.equal(got, long_tailed_counts(int(got[0]), data.num_classes, sizes["ratio"]))
        assert (got <= available).all()
        larger = long_tailed_counts(int(got[0]) + 1, data.num_classes, sizes["ratio"])
        assert (larger > available).any()

    @settings(max_examples=30, deadline=None)
    @given(tasks())
    def test_the_same_generator_gives_the_same_parts(self, task):
        data, _, sizes, seed = task
        a, b = (split(data, **sizes, generator=generator(seed)) for _ in range(2))
        assert [ids(getattr(a, name)) for name in PARTS] == [ids(getattr(b, name)) for name in PARTS]

    @settings(max_examples=30, deadline=None)
    @given(tasks(), st.randoms(use_true_random=False))
    def test_how_classes_are_interleaved_in_storage_does_not_matter(self, task, random):
        data, _, sizes, seed = task
        labels = data.targets.tolist()
        random.shuffle(labels)
        queues = {c: (data.targets == c).nonzero().squeeze(1).tolist() for c in range(data.num_classes)}
        order = [queues[c].pop(0) for c in labels]  # another order of the classes, the same order within each
        a = split(data, **sizes, generator=generator(seed))
        b = split(data.subset(order), **sizes, generator=generator(seed))
        assert [ids(getattr(a, name)) for name in PARTS] == [ids(getattr(b, name)) for name in PARTS]

    @settings(max_examples=30, deadline=None)
    @given(tasks(), st.randoms(use_true_random=False))
    def test_renaming_classes_renames_the_counts(self, task, random):
        data, _, _, seed = task
        new = list(range(data.num_classes))
        random.shuffle(new)
        renamed = make(torch.tensor(new)[data.targets], data.num_classes)
        fractions = {"validation": Fraction(0.2), "selection": Fraction(0.1), "test": Fraction(0.1)}
        try:
            a = counts(split(data, **fractions, generator=generator(seed)))
        except InputError:  # three parts and training need four examples of a class
            assert data.counts.min() < 4
            reject()
        b = counts(split(renamed, **fractions, generator=generator(seed)))
        assert all([b[name][new[c]] for c in range(data.num_classes)] == a[name] for name in PARTS)

    def test_other_seeds_give_other_parts(self):
        data = of_counts([40, 40])
        sizes = {"validation": PerClass(5), "selection": PerClass(5), "test": PerClass(5)}
        a, b = (split(data, **sizes, generator=generator(seed)) for seed in (0, 1))
        assert ids(a.validation) != ids(b.validation)

    def test_a_smaller_training_part_is_within_the_larger_and_the_other_parts_stay(self):
        data = of_counts([50, 50, 50])
        sizes = {"validation": PerClass(5), "selection": PerClass(5), "test": PerClass(5)}
        large = split(data, **sizes, largest=30, generator=generator(0))
        small = split(data, **sizes, largest=20, ratio=4, generator=generator(0))
        assert counts(large)["train"] == [30, 30, 30]
        assert counts(small)["train"] == [20, 10, 5]
        assert set(ids(small.train)) < set(ids(large.train))
        assert [ids(getattr(small, name)) for name in PARTS[1:]] == [ids(getattr(large, name)) for name in PARTS[1:]]

    def test_a_test_set_that_exists_is_passed_through(self):
        data, test = of_counts([10, 10]), of_counts([3, 3])
        parts = split(data, validation=PerClass(2), selection=PerClass(3), test=test, generator=generator(0))
        assert parts.test is test
        assert counts(parts)["train"] == [5, 5]

    def test_fractions_follow_each_class_and_take_at_least_one(self):
        parts = split(
            of_counts([1000, 40, 5]),
            validation=Fraction(0.2),
            selection=Fraction(0.1),
            test=Fraction(0.25),
            generator=generator(0),
        )
        assert counts(parts) == {
            "train": [450, 18, 2],
            "validation": [200, 8, 1],
            "selection": [100, 4, 1],
            "test": [250, 10, 1],
        }

    def test_a_class_that_is_too_small_is_named_with_what_it_has_and_needs(self):
        with pytest.raises(InputError, match=r"class 'c1' has 5 examples, but 6 are needed \(1 test, 2 validation, "):
            split(
                of_counts([9, 5]),
                validation=PerClass(2),
                selection=PerClass(2),
                test=PerClass(1),
                generator=generator(0),
            )
        with pytest.raises(InputError, match=r"class 'c0' has 9 examples, but 11 are needed .*6 train"):
            split(
                of_counts([9, 9]),
                validation=PerClass(2),
                selection=PerClass(2),
                test=PerClass(1),
                largest=6,
                generator=generator(0),
            )

    def test_a_class_without_examples_is_named(self):
        data = make([0, 0, 0, 0, 0], num_classes=2)
        with pytest.raises(InputError, match="class 'c1' has 0 examples"):
            split(data, validation=Fraction(0.2), selection=Fraction(0.2), test=Fraction(0.2), generator=generator(0))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"test": of_counts([2, 2, 2])}, "its classes are not those"),
            ({"validation": PerClass(0)}, "validation_per_class=0"),
            ({"test": PerClass(0)}, "test_per_class=0"),
            ({"selection": Fraction(1.5)}, "selection: the fraction 1.5 is not between 0 and 1"),
            ({"ratio": 0.5}, "ratio=0.5"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, changes, message):
        sizes = {"validation": PerClass(1), "selection": PerClass(1), "test": PerClass(1), **changes}
        with pytest.raises(InputError, match=message):
            split(of_counts([9, 9]), **sizes, generator=generator(0))

    def test_a_test_set_of_another_shape_is_refused(self):
        test = Dataset(name="t", inputs=torch.zeros(2, 7), targets=torch.tensor([0, 1]), class_names=("c0", "c1"))
        with pytest.raises(InputError, match="load both the same way"):
            split(of_counts([9, 9]), validation=PerClass(1), selection=PerClass(1), test=test, generator=generator(0))


class TestValidationOutOfTheTrainingPart:
    def test_it_is_as_long_tailed_and_training_keeps_the_rest(self):
        data = of_counts([600, 600, 600])
        whole = split(data, validation=PerClass(1), selection=PerClass(9), test=PerClass(10), largest=400, ratio=16,
                      generator=generator(0))  # fmt: skip
        cut = split(data, validation=OfTrain(0.2), selection=PerClass(9), test=PerClass(10), largest=400, ratio=16,
                    generator=generator(0))  # fmt: skip
        assert whole.train.counts.tolist() == [400, 100, 25]
        assert cut.validation.counts.tolist() == [80, 20, 5]
        assert cut.train.counts.tolist() == [320, 80, 20]

    def test_train_and_validation_together_are_both_and_nothing_else(self):
        parts = split(of_counts([50, 40]), validation=OfTrain(0.2), selection=PerClass(3), test=PerClass(4),
                      generator=generator(0))  # fmt: skip
        assert sorted(ids(parts.train_and_validation)) == sorted(ids(parts.train) + ids(parts.validation))
        assert not set(ids(parts.train_and_validation)) & set(ids(parts.selection) + ids(parts.test))

    @pytest.mark.parametrize(("share", "counts_"), [(0.0, [50, 50]), (1.0, [50, 50]), (0.2, [50, 12])])
    def test_what_cannot_be_taken_is_refused(self, share, counts_):
        with pytest.raises(InputError, match="validation_of_train"):
            split(of_counts(counts_), validation=OfTrain(share), selection=PerClass(3), test=PerClass(4),
                  generator=generator(0))  # fmt: skip
