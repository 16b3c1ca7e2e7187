"""Image folders that stay on disk: the same images, splits and batches as in memory."""

import os
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from lossalign.core import InputError, generator
from lossalign.data import (
    BatchStream,
    Dataset,
    MappedImages,
    PerClass,
    StreamedBatches,
    fit_transform,
    load_image_folder,
    map_image_folder,
    open_image_folder,
    split,
    streaming,
)


@pytest.fixture
def pets(tmp_path):
    random = np.random.default_rng(0)
    for name, number in (("cat", 12), ("dog", 9)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(number):
            pixels = random.integers(0, 256, (7, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{i:02d}.png")
    return tmp_path / "pets"


@pytest.fixture
def decodings(monkeypatch):
    """How often a folder was decoded."""
    calls = []
    decode = streaming._decode_into
    monkeypatch.setattr(streaming, "_decode_into", lambda *args: calls.append(args) or decode(*args))
    return calls


def same_images(mapped, loaded):
    assert mapped.name == loaded.name
    assert mapped.class_names == loaded.class_names
    assert torch.equal(mapped.targets, loaded.targets)
    assert torch.equal(mapped.load().inputs, loaded.inputs)


class TestTheFile:
    def test_it_holds_what_the_folder_loader_loads(self, pets, monkeypatch):
        monkeypatch.setattr(streaming, "_DECODED_AT_ONCE", 4)
        mapped = map_image_folder(pets, 6)
        same_images(mapped, load_image_folder(pets, 6))
        assert mapped.input_shape == (3, 6, 6)
        assert {path.suffix for path in (pets / ".lossalign").iterdir()} == {".uint8", ".json"}

    def test_unreadable_images_are_left_out_and_named_every_time(self, pets, decodings):
        (pets / "cat" / "03.png").write_bytes(b"no image")
        (pets / "dog" / "00.png").write_bytes((pets / "dog" / "00.png").read_bytes()[:60])
        for _ in range(2):
            with pytest.warns(UserWarning, match="2 images cannot be read.* cat/03.png, dog/00.png") as caught:
                mapped = map_image_folder(pets, 6)
            assert len(caught) == 1
        assert len(decodings) == 1
        with warnings.catch_warnings(record=True):
            same_images(mapped, load_image_folder(pets, 6))

    @pytest.mark.parametrize("damage", ["a byte", "the end", "the manifest"])
    def test_a_damaged_file_is_written_again(self, pets, decodings, damage):
        whole = map_image_folder(pets, 6).load()
        (decoded,), (manifest,) = (list((pets / ".lossalign").glob(f"*{suffix}")) for suffix in (".uint8", ".json"))
        content = bytearray(decoded.read_bytes())
        content[500] ^= 1
        {
            "a byte": lambda: decoded.write_bytes(content),
            "the end": lambda: decoded.write_bytes(content[:-10]),
            "the manifest": lambda: manifest.write_text('{"unreadable": []'),
        }[damage]()
        same_images(map_image_folder(pets, 6), whole)
        assert len(decodings) == 2

    def test_it_is_used_again_until_an_image_changes(self, pets, decodings):
        map_image_folder(pets, 6)
        map_image_folder(pets, 6)
        assert len(decodings) == 1
        map_image_folder(pets, 5)
        assert len(decodings) == 2
        os.utime(pets / "cat" / "00.png", ns=(1, 1))
        map_image_folder(pets, 6)
        assert len(decodings) == 3
        (pets / "dog" / "08.png").unlink()
        same_images(map_image_folder(pets, 6), load_image_folder(pets, 6))
        assert len(decodings) == 4
        assert len(list((pets / ".lossalign").glob("*.uint8"))) == 2  # one for each size

    def test_a_file_of_another_format_is_decoded_again(self, pets, decodings, monkeypatch):
        map_image_folder(pets, 6)
        monkeypatch.setattr(streaming, "_FORMAT", streaming._FORMAT + 1)
        same_images(map_image_folder(pets, 6), load_image_folder(pets, 6))
        assert len(decodings) == 2

    def test_half_a_file_is_never_left_behind(self, pets, monkeypatch):
        def broken(*args):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(streaming, "_decode_into", broken)
            with pytest.raises(KeyboardInterrupt):
                map_image_folder(pets, 6)
        assert not list((pets / ".lossalign").iterdir())
        same_images(map_image_folder(pets, 6), load_image_folder(pets, 6))

    def test_it_can_be_kept_elsewhere(self, pets, tmp_path):
        map_image_folder(pets, 6, tmp_path / "cache")
        assert (tmp_path / "cache" / "pets").is_dir()
        assert not (pets / ".lossalign").exists()
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match=r"cannot be written there .* give another folder as cache"):
            map_image_folder(pets, 6, tmp_path / "file")

    def test_a_full_disk_is_noticed_before_anything_is_decoded(self, pets, monkeypatch, decodings):
        usage = type("Usage", (), {"free": 100})
        monkeypatch.setattr(streaming.shutil, "disk_usage", lambda folder: usage)
        with pytest.raises(InputError, match="take 2,268 bytes, but 100 are free"):
            map_image_folder(pets, 6)
        assert not decodings

    def test_only_folders_beyond_the_limit_are_mapped(self, pets):
        size = 21 * 3 * 6 * 6
        assert isinstance(open_image_folder(pets, 6, memory_limit=size), Dataset)
        assert isinstance(open_image_folder(pets, 6, memory_limit=size - 1), MappedImages)

    def test_a_folder_without_images_is_refused(self, tmp_path):
        with pytest.raises(InputError, match="images of 0 classes"):
            map_image_folder(tmp_path, 6)

    def test_nothing_is_drawn_from_the_global_stream(self, pets):
        before = torch.get_rng_state()
        map_image_folder(pets, 6)
        assert torch.equal(torch.get_rng_state(), before)


def test_splits_and_transforms_are_those_of_the_folder_in_memory(pets):
    options = {"validation": PerClass(2), "selection": PerClass(1), "test": PerClass(1)}
    mapped = split(map_image_folder(pets, 6), generator=generator(0), **options)
    loaded = split(load_image_folder(pets, 6), generator=generator(0), **options)
    for part in ("train", "validation", "selection", "test"):
        assert isinstance(getattr(mapped, part), MappedImages)
        same_images(getattr(mapped, part), getattr(loaded, part))
    here, there = fit_transform(mapped.train), fit_transform(loaded.train)
    torch.testing.assert_close(here.mean, there.mean)
    torch.testing.assert_close(here.std, there.std)
    with pytest.raises(InputError, match="indices must be 0 … 20"):
        map_image_folder(pets, 6).subset([21])


class TestStreamedBatches:
    def streams(self, pets, seed=0):
        loaded = load_image_folder(pets, 6)
        transform = fit_transform(loaded, crop=2, flip=True, noise=0.1)
        in_memory = BatchStream(loaded, 4, transform, generator(seed))
        return in_memory, StreamedBatches(map_image_folder(pets, 6), 4, transform, generator(seed))

    def test_batches_are_those_of_the_folder_in_memory(self, pets):
        in_memory, streamed = self.streams(pets)
        for _ in range(12):
            for here, there in zip(streamed.next(), in_memory.next(), strict=True):
                assert torch.equal(here, there)

    def test_the_state_is_that_of_the_batches_handed_out(self, pets):
        in_memory, streamed = self.streams(pets)
        for _ in range(8):  # an epoch is 5 batches
            expected = in_memory.state_dict()
            assert all(torch.equal(value, expected[name]) for name, value in streamed.state_dict().items())
            streamed.next()
            in_memory.next()

    @pytest.mark.parametrize("before", [0, 1, 4, 5, 7])
    def test_a_resumed_stream_continues_bit_for_bit(self, pets, before):
        streamed = self.streams(pets)[1]
        for _ in range(before):
            streamed.next()
        state = streamed.state_dict()
        expected = [streamed.next() for _ in range(9)]
        resumed = self.streams(pets, seed=1)[1]
        resumed.next()
        resumed.load_state_dict(state)
        for inputs, targets in expected:
            got = resumed.next()
            assert torch.equal(got[0], inputs)
            assert torch.equal(got[1], targets)

    def test_a_state_from_another_data_set_is_refused(self, pets):
        streamed = self.streams(pets)[1]
        state = streamed.state_dict() | {"permutation": torch.arange(20)}
        with pytest.raises(InputError, match="20 examples, but this one has 21"):
            streamed.load_state_dict(state)
