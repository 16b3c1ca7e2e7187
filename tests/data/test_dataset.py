import pytest
import torch

from lossalign.core import InputError
from lossalign.data import Dataset


def make(**changes):
    given = {
        "name": "toy",
        "inputs": torch.arange(12.0).view(4, 3),
        "targets": torch.tensor([2, 0, 2, 0]),
        "class_names": ("a", "b", "c"),
    }
    return Dataset(**{**given, **changes})


def test_counts_cover_every_class_even_one_without_examples():
    data = make()
    assert len(data) == 4
    assert data.num_classes == 3
    assert data.counts.tolist() == [2, 0, 2]


def test_subset_keeps_order_classes_and_pairs_of_input_and_target():
    data = make()
    part = data.subset([3, 0, 0])
    assert part.inputs.tolist() == data.inputs[[3, 0, 0]].tolist()
    assert part.targets.tolist() == [0, 2, 2]
    assert part.class_names == data.class_names
    assert data.subset(torch.tensor([1])).targets.tolist() == [0]


@pytest.mark.parametrize("indices", [[4], [-1]])
def test_subset_refuses_indices_beyond_the_set(indices):
    with pytest.raises(InputError, match=r"indices must be 0 … 3"):
        make().subset(indices)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": torch.zeros(4, 3, dtype=torch.float64)}, "uint8 or float32"),
        ({"inputs": torch.zeros(4)}, "features"),
        ({"inputs": torch.zeros(0, 3), "targets": torch.zeros(0, dtype=torch.long)}, "empty"),
        ({"inputs": torch.zeros(3, 3)}, "one class index for each"),
        ({"targets": torch.zeros(4, 1, dtype=torch.long)}, "one class index for each"),
        ({"targets": torch.zeros(4)}, r"\.long\(\)"),
        ({"targets": torch.tensor([0, 1, 2, 3])}, "0 … 2"),
        ({"targets": torch.tensor([0, 1, 2, -1])}, "0 … 2"),
    ],
)
def test_what_is_no_data_set_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        make(**changes)
