import hashlib
import io
import re
import sys
import tarfile
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lossalign.core import InputError
from lossalign.data import PublishedFile, Source, check, fetch, known

fetching = sys.modules["lossalign.data.fetch"]

CONTENT = {"a.bin": bytes(range(256)) * 40, "b.bin": b"b" * 5000}


class Server:
    """Serves one archive; ``ranges`` says how Range is answered, ``cut`` how many bytes are sent before hanging up."""

    def __init__(self, body):
        self.body, self.ranges, self.cut, self.requests = body, "honoured", None, []
        self.length, self.pause = None, 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/pub/"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def answer(self, handler):
        self.requests.append((handler.path, handler.headers.get("Range")))
        asked = re.match(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        start = int(asked[1]) if asked and self.ranges != "ignored" else 0
        if asked and start >= len(self.body):
            handler.send_error(416)
            return
        if asked and self.ranges == "shifted":
            start -= 1
        if asked and self.ranges == "ahead":
            start += 1
        partial = asked and self.ranges != "ignored"
        handler.send_response(206 if partial else 200)
        if partial:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        handler.send_header("Content-Length", self.length or str(len(self.body) - start))
        handler.end_headers()
        sent = self.body[start:][: self.cut]
        for at in range(0, len(sent), 100) if self.pause else [0]:
            handler.wfile.write(sent[at : at + 100] if self.pause else sent)
            time.sleep(self.pause)

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def archive(members):
    """The bytes of a tar.gz that holds ``members``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, body in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
    return buffer.getvalue()


def source_of(body, **changes):
    facts = {
        name: PublishedFile(size=len(file), sha256=hashlib.sha256(file).hexdigest()) for name, file in CONTENT.items()
    }
    given = Source(
        name="toy",
        base_url="http://127.0.0.1:9/nobody-listens",
        archive="toy.tar.gz",
        folder="toy-bin",
        files=facts,
        sha256=hashlib.sha256(body).hexdigest(),
        md5=hashlib.md5(body).hexdigest(),
    )
    return replace(given, **changes)


@pytest.fixture
def body():
    return archive({f"toy-bin/{name}": file for name, file in CONTENT.items()})


@pytest.fixture
def server(body):
    server = Server(body)
    yield server
    server.close()


def names_under(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def assert_whole(root):
    """The data set, and nothing else, is under ``root``."""
    assert names_under(root) == ["toy-bin", "toy-bin/a.bin", "toy-bin/b.bin"]
    assert {name: (root / "toy-bin" / name).read_bytes() for name in CONTENT} == CONTENT


def test_fetch_puts_the_checked_folder_in_place_and_leaves_nothing_else(server, body, tmp_path):
    seen = []
    root = tmp_path / "new" / "root"
    folder = fetch(source_of(body), root, progress=lambda done, total: seen.append((done, total)), base_url=server.url)
    assert folder == root / "toy-bin"
    assert_whole(root)
    assert seen[-1] == (len(body), len(body))
    assert server.requests == [("/pub/toy.tar.gz", None)]


def test_a_data_set_that_is_whole_is_not_fetched_again(server, body, tmp_path):
    fetch(source_of(body), tmp_path, base_url=server.url)
    fetch(source_of(body), tmp_path, base_url=server.url)
    assert len(server.requests) == 1


def test_a_transfer_cut_halfway_keeps_its_part_and_resumes_there(server, body, tmp_path):
    half = len(body) // 2
    server.cut = half
    with pytest.raises(InputError, match=f"{half} of {len(body)} bytes; run it again|transfer failed"):
        fetch(source_of(body), tmp_path, base_url=server.url)
    assert names_under(tmp_path) == ["toy.tar.gz.part"]
    assert (tmp_path / "toy.tar.gz.part").read_bytes() == body[:half]

    server.cut, seen = None, []
    fetch(source_of(body), tmp_path, progress=lambda *at: seen.append(at), base_url=server.url)
    assert server.requests[-1] == ("/pub/toy.tar.gz", f"bytes={half}-")
    assert seen[0][0] > half
    assert seen[-1] == (len(body), len(body))
    assert_whole(tmp_path)


@pytest.mark.parametrize("ranges", ["ignored", "shifted"])
def test_a_server_that_starts_at_another_byte_than_asked_for_gives_the_whole_file_too(server, body, tmp_path, ranges):
    (tmp_path / "toy.tar.gz.part").write_bytes(body[:100])
    server.ranges = ranges
    fetch(source_of(body), tmp_path, base_url=server.url)
    assert_whole(tmp_path)


def test_a_part_longer_than_the_file_is_thrown_away_after_416(server, body, tmp_path):
    (tmp_path / "toy.tar.gz.part").write_bytes(body + b"more")
    fetch(source_of(body), tmp_path, base_url=server.url)
    assert [asked for _, asked in server.requests] == [f"bytes={len(body) + 4}-", None]
    assert_whole(tmp_path)


def test_a_part_that_is_already_whole_is_unpacked_without_a_request(server, body, tmp_path):
    (tmp_path / "toy.tar.gz.part").write_bytes(body)
    fetch(source_of(body), tmp_path, base_url=server.url)
    assert server.requests == []
    assert_whole(tmp_path)


@pytest.mark.parametrize("wrong", [{"sha256": "0" * 64}, {"md5": "0" * 32}, {"sha256": None, "md5": "0" * 32}])
def test_a_wrong_digest_removes_the_download_and_unpacks_nothing(server, body, tmp_path, wrong):
    with pytest.raises(InputError, match="digest"):
        fetch(source_of(body, **wrong), tmp_path, base_url=server.url)
    assert names_under(tmp_path) == []


def test_a_resumed_part_with_other_bytes_is_caught_by_the_digest(server, body, tmp_path):
    (tmp_path / "toy.tar.gz.part").write_bytes(b"x" * 100)
    with pytest.raises(InputError, match="digest"):
        fetch(source_of(body), tmp_path, base_url=server.url)
    assert names_under(tmp_path) == []
    fetch(source_of(body), tmp_path, base_url=server.url)
    assert_whole(tmp_path)


def test_an_archive_that_writes_outside_its_root_is_refused(server, tmp_path):
    evil = archive({"toy-bin/a.bin": CONTENT["a.bin"], "../../outside.txt": b"gotcha"})
    server.body, root = evil, tmp_path / "deep" / "root"
    with pytest.raises(InputError, match="cannot be unpacked safely"):
        fetch(source_of(evil), root, base_url=server.url)
    assert names_under(tmp_path) == ["deep", "deep/root"]


def test_an_archive_without_the_published_files_never_reaches_the_final_name(server, tmp_path):
    server.body = archive({"toy-bin/a.bin": CONTENT["a.bin"]})
    with pytest.raises(InputError, match=r"does not contain toy as published.*b\.bin"):
        fetch(source_of(server.body), tmp_path, base_url=server.url)
    assert names_under(tmp_path) == []


def test_a_damaged_folder_is_repaired_and_what_else_is_in_it_stays(server, body, tmp_path):
    fetch(source_of(body), tmp_path, base_url=server.url)
    (tmp_path / "toy-bin" / "a.bin").write_bytes(b"short")
    (tmp_path / "toy-bin" / "notes.txt").write_text("mine")
    fetch(source_of(body), tmp_path, base_url=server.url)
    assert check(source_of(body), tmp_path) == []
    assert (tmp_path / "toy-bin" / "notes.txt").read_text() == "mine"
    assert names_under(tmp_path) == ["toy-bin", "toy-bin/a.bin", "toy-bin/b.bin", "toy-bin/notes.txt"]


def test_a_server_that_cannot_be_reached_or_has_no_such_file_is_named(server, body, tmp_path):
    with pytest.raises(InputError, match=r"nobody-listens/toy\.tar\.gz: the transfer failed"):
        fetch(source_of(body), tmp_path)
    server.answer = lambda handler: handler.send_error(404)
    with pytest.raises(InputError, match="404"):
        fetch(source_of(body), tmp_path, base_url=server.url)


def test_check_names_what_is_missing_of_the_wrong_size_or_of_the_wrong_content(server, body, tmp_path):
    source = source_of(body)
    assert "toy-bin: this folder is missing; run `lossalign data fetch toy`" in check(source, tmp_path)[0]
    folder = fetch(source, tmp_path, base_url=server.url)
    assert check(source, tmp_path) == check(source, folder) == []
    (folder / "a.bin").write_bytes(b"c" * len(CONTENT["a.bin"]))
    (folder / "b.bin").write_bytes(b"b")
    assert ["sha256" in problem for problem in check(source, folder)] == [True, False]
    assert "b.bin: it has 1 bytes, but 5000 as published" in check(source, folder)[1]
    (folder / "a.bin").unlink()
    assert "a.bin: this file is missing" in check(source, folder)[0]


def test_the_known_sources_are_those_of_the_publisher():
    assert list(known()) == ["cifar10", "cifar100"]
    ten, hundred = known().values()
    assert f"{ten.base_url}/{ten.archive}" == "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    assert f"{hundred.base_url}/{hundred.archive}" == "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
    assert {file.size for file in ten.files.values()} == {10_000 * 3073}
    assert {name: file.size for name, file in hundred.files.items()} == {
        "train.bin": 50_000 * 3074,
        "test.bin": 10_000 * 3074,
    }


def test_an_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(InputError, match="cifar10"):
        fetch("mnist", tmp_path)


def test_a_source_without_a_digest_is_refused(body):
    with pytest.raises(InputError, match="give sha256 or md5"):
        source_of(body, sha256=None, md5=None)


class TestALyingServer:
    def test_a_range_beyond_what_is_there_is_refused(self, server, body, tmp_path):
        (tmp_path / "toy.tar.gz.part").write_bytes(body[:100])
        server.ranges = "ahead"
        with pytest.raises(InputError, match="the server sends bytes from 101 on, and 100 are there"):
            fetch(source_of(body), tmp_path, base_url=server.url)
        assert (tmp_path / "toy.tar.gz.part").read_bytes() == body[:100]

    def test_more_bytes_than_an_archive_can_have_are_refused_and_removed(self, server, body, tmp_path, monkeypatch):
        monkeypatch.setattr(fetching, "_largest", lambda source: 50)
        with pytest.raises(InputError, match="it is larger than 50 bytes"):
            fetch(source_of(body), tmp_path, base_url=server.url)
        assert list(tmp_path.iterdir()) == []

    def test_a_length_that_is_too_large_is_refused_at_once(self, server, body, tmp_path):
        server.length = str(10**12)
        with pytest.raises(InputError, match="it is larger than"):
            fetch(source_of(body), tmp_path, base_url=server.url)

    def test_both_digests_are_shown(self, server, body, tmp_path):
        expected, found = "0" * 64, hashlib.sha256(body).hexdigest()
        with pytest.raises(InputError, match=f"sha256 {found} instead of {expected}"):
            fetch(source_of(body, sha256=expected), tmp_path, base_url=server.url)

    def test_a_trickle_is_given_up_and_can_be_resumed(self, server, body, tmp_path, monkeypatch):
        monkeypatch.setattr(fetching, "_TIMEOUT", 0.3)
        server.pause = 0.1
        with pytest.raises(InputError, match=r"bytes in 0 seconds\); run it again to resume"):
            fetch(source_of(body), tmp_path, base_url=server.url)
        assert (tmp_path / "toy.tar.gz.part").exists()
