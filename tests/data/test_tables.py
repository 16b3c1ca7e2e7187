from contextlib import suppress

import numpy as np
import pytest
import torch

from lossalign.core import InputError
from lossalign.data import load_table


@pytest.fixture
def csv(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "pets.csv"
        path.write_text(text, encoding=encoding)
        return path

    return write


@pytest.fixture
def npz(tmp_path):
    def write(**arrays):
        np.savez(tmp_path / "pets.npz", **arrays)
        return tmp_path / "pets.npz"

    return write


X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


@pytest.mark.parametrize(
    ("y", "class_names"),
    [
        (np.array([0, 1, 0]), ("0", "1")),
        (np.array([0.0, 1.0, 0.0]), ("0", "1")),
        (np.array([-1, 3, -1]), ("-1", "3")),
        (np.array([[2], [10], [2]], dtype=np.uint8), ("2", "10")),
        (np.array([False, True, False]), ("False", "True")),
        (np.array(["cat", "dog", "cat"]), ("cat", "dog")),
        (np.array(["2", "10", "2"]), ("2", "10")),
    ],
)
def test_npz_labels_of_any_kind_become_sorted_classes(npz, y, class_names):
    table = load_table(npz(X=X, y=y))
    assert table.name == "pets"
    assert table.inputs.dtype is torch.float32
    assert table.inputs.tolist() == X.tolist()
    assert table.targets.tolist() == [0, 1, 0]
    assert table.class_names == class_names


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": X}, r"not \['y'\]"),
        ({"X": X, "y": np.array([0, 1])}, "2 labels for 3 rows"),
        ({"X": X[:, 0], "y": np.array([0, 1, 0])}, "rows and columns"),
        ({"X": X[:0], "y": np.array([])}, "rows and columns"),
        ({"X": X.astype(str), "y": np.array([0, 1, 0])}, "not numbers"),
        ({"X": X, "y": np.eye(3)}, "one number or word for each row"),
        ({"X": X, "y": np.array([0.0, 1.5, 1.0])}, r"row 1.*regression"),
        ({"X": X, "y": np.array([0.0, 1.0, np.nan])}, "label of row 2 is not a finite number"),
        ({"X": X, "y": np.array([1, 1, 1])}, "every label is '1'"),
        ({"X": np.where(X == 4, np.nan, X), "y": np.array([0, 1, 0])}, "row 1 holds NaN"),
        ({"X": np.where(X == 5, -np.inf, X), "y": np.array([0, 1, 0])}, "row 2 holds NaN, inf"),
        ({"X": np.where(X == 1, 1e300, X), "y": np.array([0, 1, 0])}, "row 0 holds .* beyond float32"),
        ({"X": X, "y": np.array(["a", None, "b"], dtype=object)}, "cannot be read as npz"),
    ],
)
def test_an_npz_file_that_is_no_table_is_refused(npz, arrays, message):
    with pytest.raises(InputError, match=message):
        load_table(npz(**arrays))


@pytest.mark.parametrize("name", ["y", "label", "Target", "CLASS"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_csv_finds_its_target_column_by_name(csv, name, place):
    rows = [["u", "v"], ["1", "2"], ["3", "4"]]
    for row, label in zip(rows, (name, "dog", "cat"), strict=True):
        row.insert(place, label)
    table = load_table(csv("\n".join(",".join(row) for row in rows)))
    assert table.inputs.tolist() == [[1, 2], [3, 4]]
    assert table.targets.tolist() == [1, 0]
    assert table.class_names == ("cat", "dog")


@pytest.mark.parametrize(
    "text",
    [
        "1,2,5\n3,4,7\n",
        "\ufeff1,2,5\n3,4,7\n",
        "width,height,kind\n1,2,5\n3,4,7\n",
        "0,1,target\n1,2,5\n3,4,7\n",
        "\ufeffwidth, height ,kind\r\n1, 2,5\r\n\r\n3,4 ,7.0\r\n",
    ],
    ids=["no header", "byte-order mark", "last column", "numbers as names", "as spreadsheets write it"],
)
def test_csv_with_and_without_header_reads_the_same(csv, text):
    table = load_table(csv(text))
    assert table.inputs.tolist() == [[1, 2], [3, 4]]
    assert table.targets.tolist() == [0, 1]
    assert table.class_names == ("5", "7")


def test_labels_y_and_n_in_the_first_row_are_no_header(csv):
    table = load_table(csv("1,2,y\n3,4,n\n5,6,y\n"))
    assert table.class_names == ("n", "y")
    assert table.targets.tolist() == [1, 0, 1]


def test_y_is_a_coordinate_beside_a_column_called_label(csv):
    table = load_table(csv("x,y,label\n1,2,a\n3,4,b\n"))
    assert table.inputs.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 columns"),
        ("a;b;label\n1;2;x\n", "has 1 columns.*commas"),
        ("a,b,label\n", "no rows"),
        ("a,b,label\n1,2,x\n1,2\n", "row 3 has 2 columns, but the first has 3"),
        ("a,colour,label\n1,2,x\n3,red,y\n", "column 'colour', row 3 holds 'red'"),
        ("1,2,x\n3,,y\n", "column '2', row 2 holds ''"),
        ("1,?,x\n3,4,y\n", "column '2', row 1 holds '\\?'.*if this row is a header"),
        ("a,b,label\n1,2,x\n3,nan,y\n", "row 3 holds NaN"),
        ("a,b,label\n1,inf,x\n3,4,y\n", "row 2 holds NaN, inf"),
        ("a,b,label\n1,2,0.5\n3,4,1\n", r"row 2\), which looks like regression"),
        ("a,b,label\n1,2,x\n3,4, \n", "row 3 has no label"),
        ("a,b,label\n1,2,x\n3,4,x\n", "every label is 'x'"),
        ("a,class,label\n1,2,x\n3,4,y\n", r"\['class', 'label'\] could each be the target"),
    ],
)
def test_a_csv_file_that_is_no_table_is_refused_by_row_and_column(csv, text, message):
    with pytest.raises(InputError, match=message):
        load_table(csv(text))


def test_files_that_cannot_be_read_are_refused(csv, tmp_path):
    with pytest.raises(InputError, match="UTF-8"):
        load_table(csv("größe,label\n1,a\n2,b\n", encoding="latin-1"))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(InputError, match=r"broken\.npz: cannot be read as npz"):
        load_table(tmp_path / "broken.npz")
    with pytest.raises(InputError, match="no such file"):
        load_table(tmp_path / "absent.csv")
    with pytest.raises(InputError, match=r"\.npz and \.csv"):
        load_table(tmp_path / "table.parquet")


@pytest.mark.parametrize("large", [2**53, 2**63 + 10, 10**30])
def test_large_labels_do_not_merge(csv, large):
    rows = [f"{i},{large + i % 3}" for i in range(9)]
    table = load_table(csv("x,label\n" + "\n".join(rows)))
    assert table.class_names == tuple(str(large + i) for i in range(3))
    assert table.counts.tolist() == [3, 3, 3]


def test_floats_that_merge_labels_are_refused(npz):
    with pytest.raises(InputError, match="row 1 is beyond 2⁵³"):
        load_table(npz(X=X, y=np.array([0.0, 2.0**60, 1.0])))


def test_a_damaged_npz_is_one_sentence(tmp_path):
    np.savez_compressed(tmp_path / "pets.npz", X=np.random.default_rng(0).normal(size=(50, 4)), y=np.arange(50) % 2)
    content = (tmp_path / "pets.npz").read_bytes()
    for at in range(0, len(content), 37):
        (tmp_path / "pets.npz").write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        with suppress(InputError):
            load_table(tmp_path / "pets.npz")
