import pytest
import torch
from PIL import Image

from lossalign.core import InputError
from lossalign.data import Dataset, load_lfw, without_identities

PEOPLE = {"Ann_Lee": 3, "Bo": 2, "Cy_Ng": 2, "Di": 1}
LISTS = {
    "peopleDevTrain.txt": "2\nAnn_Lee\t3\nDi\t1\n",
    "peopleDevTest.txt": "2\nBo\t2\nCy_Ng\t2\n",
    "pairsDevTrain.txt": "1\nAnn_Lee\t1\t3\nAnn_Lee\t2\tDi\t1\n",
    "pairsDevTest.txt": "2\nBo\t1\t2\nCy_Ng\t1\t2\nBo\t1\tCy_Ng\t2\nBo\t2\tCy_Ng\t1\n",
    "pairs.txt": "2\t1\nBo\t1\t2\nBo\t2\tDi\t1\nAnn_Lee\t2\t3\nCy_Ng\t1\tDi\t1\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, number in PEOPLE.items():
        (tmp_path / name).mkdir()
        for i in range(1, number + 1):
            Image.new("RGB", (10, 10), (20 * i, 0, 0)).save(tmp_path / name / f"{name}_{i:04d}.jpg")
    for name, text in LISTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def named(lfw, rows):
    name_of = {row: name for name, row in lfw.rows.items()}
    return [name_of[row] for row in rows.tolist()]


def test_a_person_is_a_class_also_with_one_image(folder):
    lfw = load_lfw(folder, size=8)
    assert lfw.images.class_names == tuple(PEOPLE)
    assert lfw.images.counts.tolist() == list(PEOPLE.values())
    assert lfw.images.inputs.shape == (8, 3, 8, 8)
    assert (lfw.dev_train, lfw.dev_test) == (("Ann_Lee", "Di"), ("Bo", "Cy_Ng"))


def test_rows_are_those_of_the_images_by_name(folder):
    lfw = load_lfw(folder, size=8)
    for name, row in lfw.rows.items():
        person, number = name.rsplit("_", 1)
        assert lfw.images.class_names[lfw.images.targets[row]] == person
        assert abs(int(lfw.images.inputs[row, 0].float().mean()) - 20 * int(number)) < 4


def test_faces_of_people_keep_their_labels(folder):
    lfw = load_lfw(folder)
    faces = lfw.faces_of(lfw.dev_train)
    assert faces.targets.tolist() == [0, 0, 0, 3]
    assert faces.class_names == lfw.images.class_names
    with pytest.raises(InputError, match=r"no images of 1 of them, e\.g\. 'Ed'"):
        lfw.faces_of(["Bo", "Ed"])


class TestPairs:
    def test_they_point_at_the_listed_images(self, folder):
        lfw = load_lfw(folder)
        pairs = lfw.pairs("dev_test")
        assert named(lfw, pairs.first) == ["Bo_0001", "Cy_Ng_0001", "Bo_0001", "Bo_0002"]
        assert named(lfw, pairs.second) == ["Bo_0002", "Cy_Ng_0002", "Cy_Ng_0002", "Cy_Ng_0001"]
        assert pairs.same.tolist() == [True, True, False, False]
        assert pairs.folds.tolist() == [0, 0, 0, 0]
        assert len(lfw.pairs("dev_train").same) == 2

    def test_view_2_has_folds(self, folder):
        pairs = load_lfw(folder).pairs("view2")
        assert pairs.folds.tolist() == [0, 0, 1, 1]
        assert pairs.same.tolist() == [True, False, True, False]

    def test_an_image_left_out_shifts_no_other_and_is_missed(self, folder):
        (folder / "Ann_Lee" / "Ann_Lee_0001.jpg").write_bytes(b"no image")
        with pytest.warns(UserWarning, match="1 images cannot be read") as caught:
            lfw = load_lfw(folder)
        assert len(caught) == 1
        assert named(lfw, lfw.pairs("view2").first) == ["Bo_0001", "Bo_0002", "Ann_Lee_0002", "Cy_Ng_0001"]
        with pytest.raises(InputError, match="Ann_Lee_0001 is missing or unreadable"):
            lfw.pairs("dev_train")

    @pytest.mark.parametrize("text", ["2\nBo\t1\t2\n", "1\nBo\t1\t2\nBo\t1\n", "1\nBo\t1\t2\nBo\t1\tDi\t1\textra\n"])
    def test_a_damaged_list_is_refused(self, folder, text):
        (folder / "pairsDevTest.txt").write_text(text)
        with pytest.raises(InputError, match=r"pairsDevTest\.txt: it should have \d lines"):
            load_lfw(folder).pairs("dev_test")

    def test_other_names_are_refused(self, folder):
        with pytest.raises(InputError, match="choose from dev_train, dev_test, view2"):
            load_lfw(folder).pairs("pairs.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [("3\nBo\t2\n", "it has 1 people, but its first line says 3"), ("Bo\t2\n", "first line"), ("", "first line")],
)
def test_a_damaged_list_of_people_is_refused(folder, text, message):
    (folder / "peopleDevTest.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        load_lfw(folder)


def test_a_missing_list_is_named(folder):
    (folder / "peopleDevTrain.txt").unlink()
    with pytest.raises(InputError, match=r"peopleDevTrain\.txt: this list is missing"):
        load_lfw(folder)


class TestWithoutIdentities:
    faces = Dataset(
        name="casia", inputs=torch.eye(4), targets=torch.tensor([2, 0, 1, 0]), class_names=("045", "099", "100")
    )

    def test_examples_of_named_classes_are_dropped(self):
        kept = without_identities(self.faces, ["045", "not there"])
        assert kept.targets.tolist() == [2, 1]
        assert kept.class_names == self.faces.class_names

    def test_names_may_come_from_a_file(self, tmp_path):
        (tmp_path / "overlap.txt").write_text("099\n\n 100 \n")
        assert without_identities(self.faces, tmp_path / "overlap.txt").targets.tolist() == [0, 0]
        assert without_identities(self.faces, str(tmp_path / "overlap.txt")).targets.tolist() == [0, 0]

    def test_a_list_that_drops_nothing_is_a_mistake(self, tmp_path):
        with pytest.raises(InputError, match="none is a class of dataset 'casia'"):
            without_identities(self.faces, ["45"])
        with pytest.raises(InputError, match="there is no such file"):
            without_identities(self.faces, tmp_path / "absent.txt")
