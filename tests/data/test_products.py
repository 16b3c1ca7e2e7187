import pytest
from PIL import Image

from lossalign.core import InputError
from lossalign.data import open_products

HEADER = "image_id class_id super_class_id path\n"


@pytest.fixture
def folder(tmp_path):
    """Classes 1, 2 (train) and 3, 4 (test), two images each; an image's red value is 40 · class + its number."""
    lists = {"train": HEADER, "test": HEADER}
    image_id = 0
    for class_id, kind in ((1, "chair"), (2, "lamp"), (3, "chair"), (4, "lamp")):
        (tmp_path / f"{kind}_final").mkdir(exist_ok=True)
        for number in (1, 0):
            image_id += 1
            path = f"{kind}_final/{class_id}0{number}.JPG"
            Image.new("RGB", (9, 7), (40 * class_id + 4 * number, 0, 0)).save(tmp_path / path, quality=95)
            lists["train" if class_id < 3 else "test"] += f"{image_id} {class_id} {len(kind)} {path}\n"
    for name, text in lists.items():
        (tmp_path / f"Ebay_{name}.txt").write_text(text)
    return tmp_path


def reds(part):
    return [round(value) for value in part.load().inputs[:, 0].float().mean((1, 2)).tolist()]


def test_each_set_has_the_listed_images_and_its_own_classes(folder):
    train, test = open_products(folder, 6)
    assert (train.name, test.name) == ("products-train", "products-test")
    assert (train.class_names, test.class_names) == (("1", "2"), ("3", "4"))
    assert train.targets.tolist() == test.targets.tolist() == [0, 0, 1, 1]
    assert train.input_shape == (3, 6, 6)
    assert reds(train) == pytest.approx([44, 40, 84, 80], abs=1)
    assert reds(test) == pytest.approx([124, 120, 164, 160], abs=1)


def test_classes_are_sorted_by_number_not_by_text(folder):
    text = (folder / "Ebay_train.txt").read_text().replace(" 1 5 ", " 10 5 ")
    (folder / "Ebay_train.txt").write_text(text)
    train, _ = open_products(folder, 6)
    assert train.class_names == ("2", "10")
    assert train.targets.tolist() == [1, 1, 0, 0]


def test_both_sets_read_one_decoded_file_that_is_used_again(folder, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    train, test = open_products(folder, 6, cache)
    assert train.pixels is test.pixels
    (written,) = cache.glob("*/*.uint8")
    before = written.stat().st_mtime_ns
    open_products(folder, 6, cache)
    assert written.stat().st_mtime_ns == before
    assert not (folder / ".lossalign").exists()


def test_unreadable_images_are_left_out_and_shift_no_other(folder):
    (folder / "chair_final" / "101.JPG").write_bytes(b"no image")
    (folder / "lamp_final" / "400.JPG").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="2 images cannot be read") as caught:
        train, test = open_products(folder, 6)
    assert len(caught) == 1
    assert reds(train) == pytest.approx([40, 84, 80], abs=1)
    assert reds(test) == pytest.approx([124, 120, 164], abs=1)
    assert train.targets.tolist() == [0, 1, 1]


def test_a_missing_image_is_noticed_before_anything_is_decoded(folder):
    (folder / "chair_final" / "101.JPG").unlink()
    with pytest.raises(InputError, match=r"1 listed images are missing, e\.g\. .*101\.JPG"):
        open_products(folder, 6)
    assert not (folder / ".lossalign").exists()


@pytest.mark.parametrize("text", ["", HEADER, "a b\n", HEADER + "1 x 1 lamp_final/200.JPG\n", HEADER + "1 1 1\n"])
def test_a_damaged_list_is_refused(folder, text):
    (folder / "Ebay_test.txt").write_text(text)
    with pytest.raises(InputError, match=r"Ebay_test\.txt: its lines do not have the columns image_id class_id"):
        open_products(folder, 6)


def test_a_missing_list_is_named(folder):
    (folder / "Ebay_test.txt").unlink()
    with pytest.raises(InputError, match=r"Ebay_test\.txt: this list is missing; give the folder Stanford"):
        open_products(folder, 6)
