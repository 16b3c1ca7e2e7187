import numpy as np
import pytest
import torch

from lossalign.core import InputError
from lossalign.data import load_cifar10, load_cifar100

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def records(rng, number, *, classes=10, coarse=False):
    labels = rng.integers(0, classes, (number, 1), dtype=np.uint8)
    pixels = rng.integers(0, 256, (number, 3072), dtype=np.uint8)
    head = [rng.integers(0, 20, (number, 1), dtype=np.uint8)] if coarse else []
    return np.concatenate([*head, labels, pixels], axis=1)


@pytest.fixture
def cifar10(tmp_path):
    """A tiny CIFAR-10 on disk, and its records by file name."""
    folder, rng = tmp_path / "cifar-10-batches-bin", np.random.default_rng(0)
    folder.mkdir()
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    content = {name: records(rng, 2 + i) for i, name in enumerate(names)}
    for name, values in content.items():
        values.tofile(folder / name)
    (folder / "batches.meta.txt").write_text("\n".join(CLASSES) + "\n\n")
    return folder, content


def test_cifar10_reads_label_and_pixels_of_every_record_in_file_order(cifar10):
    folder, content = cifar10
    train, test = load_cifar10(folder.parent)
    expected = np.concatenate([content[f"data_batch_{i}.bin"] for i in range(1, 6)])
    assert torch.equal(train.targets, torch.from_numpy(expected[:, 0].astype(np.int64)))
    assert train.inputs.shape == (20, 3, 32, 32)
    assert train.inputs.dtype is torch.uint8
    assert int(train.inputs[7, 1, 2, 3]) == expected[7, 1 + 1024 + 2 * 32 + 3]  # the green plane, row 2, column 3
    assert torch.equal(test.inputs.flatten(1), torch.from_numpy(content["test_batch.bin"][:, 1:]))
    assert train.class_names == test.class_names == tuple(CLASSES)


def test_root_may_be_the_folder_itself(cifar10):
    folder, _ = cifar10
    assert torch.equal(load_cifar10(folder)[0].inputs, load_cifar10(folder.parent)[0].inputs)


def test_class_names_are_numbers_without_the_meta_file(cifar10):
    folder, _ = cifar10
    (folder / "batches.meta.txt").unlink()
    assert load_cifar10(folder)[0].class_names == tuple("0123456789")


def test_a_meta_file_with_too_few_names_is_refused(cifar10):
    folder, _ = cifar10
    (folder / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(InputError, match=r"batches\.meta\.txt: it lists 2 class names, not 10"):
        load_cifar10(folder)


def test_a_missing_file_is_named_with_the_command_that_fetches_it(cifar10):
    folder, _ = cifar10
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(InputError, match=r"data_batch_3\.bin.*`lossalign data fetch cifar10`"):
        load_cifar10(folder.parent)


def test_a_root_with_nothing_in_it_names_the_command(tmp_path):
    with pytest.raises(InputError, match="lossalign data fetch cifar100"):
        load_cifar100(tmp_path)


@pytest.mark.parametrize("keep", [0, 3072, 2 * 3073 - 1])
def test_a_file_that_is_cut_within_a_record_is_named(cifar10, keep):
    folder, content = cifar10
    (folder / "test_batch.bin").write_bytes(content["test_batch.bin"].tobytes()[:keep])
    with pytest.raises(InputError, match=r"test_batch\.bin: \d+ bytes.*fetch cifar10"):
        load_cifar10(folder)


def test_a_label_beyond_the_classes_names_the_file(cifar10):
    folder, content = cifar10
    values = content["data_batch_2.bin"]
    values[0, 0] = 10
    values.tofile(folder / "data_batch_2.bin")
    with pytest.raises(InputError, match=r"data_batch_2\.bin: it has label 10"):
        load_cifar10(folder)


def test_cifar100_uses_the_fine_label(tmp_path):
    folder, rng = tmp_path / "cifar-100-binary", np.random.default_rng(1)
    folder.mkdir()
    train, test = (records(rng, number, classes=100, coarse=True) for number in (7, 3))
    train.tofile(folder / "train.bin")
    test.tofile(folder / "test.bin")
    (folder / "fine_label_names.txt").write_text("\n".join(f"c{i}" for i in range(100)))
    for root in (tmp_path, folder):
        read = load_cifar100(root)
        for data, values in zip(read, (train, test), strict=True):
            assert torch.equal(data.targets, torch.from_numpy(values[:, 1].astype(np.int64)))
            assert torch.equal(data.inputs.flatten(1), torch.from_numpy(values[:, 2:]))
            assert data.class_names[99] == "c99"
