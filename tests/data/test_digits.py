import sys

import torch
from sklearn import datasets

from lossalign.data import load_digits, load_turned_digits


def test_digits_equal_those_of_scikit_learn_pixel_for_pixel():
    oracle = datasets.load_digits()
    digits = load_digits()
    assert digits.inputs.dtype is torch.float32
    assert torch.equal(digits.inputs[:, 0], torch.from_numpy(oracle.images / 16).float())
    assert torch.equal(digits.targets, torch.from_numpy(oracle.target))
    assert digits.class_names == tuple("0123456789")


def test_digits_fill_the_range_from_0_to_1():
    inputs = load_digits().inputs
    assert (float(inputs.min()), float(inputs.max())) == (0.0, 1.0)


def test_the_file_that_ships_is_small():
    from importlib import resources

    file = resources.files("lossalign.data").joinpath("digits.npz")
    with resources.as_file(file) as path:
        assert path.stat().st_size < 200_000


def test_loading_needs_no_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert len(load_digits()) == 1797


def test_turned_digits_are_the_same_images_each_in_one_class():
    digits, turned = load_digits(), load_turned_digits()
    assert torch.equal(turned.targets % 10, digits.targets)
    assert len(turned) == len(digits)
    for way in range(8):
        rows = turned.targets // 10 == way
        back = turned.inputs[rows].flip(-1) if way >= 4 else turned.inputs[rows]
        assert torch.equal(back.rot90(-(way % 4), (-2, -1)), digits.inputs[rows])
    assert set(turned.counts.tolist()) <= {21, 22, 23}
    assert turned.class_names[75] == "5 turned right, mirrored"
