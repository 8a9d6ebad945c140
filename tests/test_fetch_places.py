"""Where a file comes from: what is kept, addresses in their order, mirrors, Google Drive."""
import threading
from pathlib import Path

import gdown
import pytest
from data_roots import build
from file_server import BODY, MD5, SHA, names
from promptcal.datasets import build_dataset
from promptcal.datasets.download.fetch import (
    FetchError,
    check_mirror,
    fetch,
    fetch_drive,
    fetch_once,
)
from promptcal.datasets.download.sources import Source
from promptcal.datasets.utils.errors import ConfigError, DataError


def test_what_is_kept_is_fetched_once(server, tmp_path, caplog):
    """By two at the same moment too, and again if it is not what it should be."""
    folder, url = tmp_path / "cache" / "clip", f"{server.address}/data.zip"
    threads = [threading.Thread(target=fetch_once, args=(url, folder, SHA)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (folder / "data.zip").read_bytes() == BODY and len(server.requests) == 1
    (folder / "data.zip").write_bytes(b"other")
    assert fetch_once(url, folder, SHA).read_bytes() == BODY
    assert "data.zip has the wrong sha256 checksum" in caplog.text and len(server.requests) == 2
    assert names(folder) == ["data.zip"]
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot (read|write) .*: (Not a directory|File exists)"):
        fetch_once(url, tmp_path / "file", SHA)


def test_addresses_are_tried_in_order(server, tmp_path):
    server.files["second"] = BODY
    source = Source("data.zip", urls=(f"{server.address}/first", f"{server.address}/second"), checksum=SHA)
    assert fetch(source, tmp_path).read_bytes() == BODY
    assert [name for name, _ in server.requests] == ["first", "second"]


def test_all_failures_are_told(server, tmp_path):
    source = Source("x.zip", urls=(f"{server.address}/first", f"{server.address}/second"))
    with pytest.raises(FetchError, match=r"first: HTTP 404 .*; .*second: HTTP 404"):
        fetch(source, tmp_path)
    with pytest.raises(FetchError, match=r"no address is known for y.zip"):
        fetch(Source("y.zip"), tmp_path)


def test_a_mirror_comes_first(server, tmp_path):
    server.files["own"] = b"from its own address"
    source = Source("data.zip", urls=(f"{server.address}/own",))
    assert fetch(source, tmp_path / "a", mirror=f"{server.address}/").read_bytes() == BODY
    folder = tmp_path / "archives"
    folder.mkdir()
    assert fetch(source, tmp_path / "b", mirror=str(folder)).read_bytes() == b"from its own address"
    (folder / "data.zip").write_bytes(b"by hand")
    assert fetch(source, tmp_path / "c", mirror=str(folder)) == folder / "data.zip"


def test_a_mirror_that_is_none(tmp_path):
    check_mirror("")
    check_mirror(str(tmp_path))
    check_mirror("https://example.org/archives")
    with pytest.raises(ConfigError, match="neither a folder nor an address"):
        check_mirror(str(tmp_path / "nowhere"))


def test_a_wrong_file_in_the_mirror_is_refused_but_kept(tmp_path):
    (tmp_path / "data.zip").write_bytes(b"<html>quota</html>")
    with pytest.raises(FetchError, match="web page"):
        fetch(Source("data.zip"), tmp_path / "work", mirror=str(tmp_path))
    assert (tmp_path / "data.zip").exists()


@pytest.mark.parametrize("quiet", [True, False])
def test_google_drive_out_of_reach(quiet, tmp_path, no_internet):
    with pytest.raises(FetchError, match="Google Drive file abc123: ") as caught:
        fetch_drive(Source("data.zip", drive_id="abc123"), tmp_path / "data.zip", quiet)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


def drive(monkeypatch, content):
    """Google Drive, as far as gdown is concerned, sends `content`, or nothing at all for None."""
    asked = []

    def download(id, output, **options):
        asked.append((id, options["quiet"], options["resume"]))
        if content is not None:
            Path(output).write_bytes(content)

    monkeypatch.setattr(gdown, "download", download)
    return asked


@pytest.mark.parametrize("quiet", [True, False])
def test_google_drive(quiet, tmp_path, monkeypatch):
    asked = drive(monkeypatch, BODY)
    target = fetch_drive(Source("data.zip", drive_id="abc123", checksum=MD5), tmp_path / "data.zip", quiet)
    assert target == tmp_path / "data.zip" and target.read_bytes() == BODY
    assert asked == [("abc123", quiet, not quiet)]
    assert names(tmp_path) == ["data.zip"]


@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize(("content", "message"), [
    (b"<!DOCTYPE html><title>Google Drive - Quota exceeded</title>", "is a web page, not the file: the host's quota"),
    (b"", "is empty"), (None, "nothing arrived"), (BODY[:-1], "wrong md5 checksum"),
], ids=["quota page", "empty", "nothing", "cut"])
def test_google_drive_sends_something_else(content, message, quiet, tmp_path, monkeypatch):
    drive(monkeypatch, content)
    with pytest.raises(FetchError, match=f"^Google Drive file abc123: .*{message}") as caught:
        fetch_drive(Source("data.zip", drive_id="abc123", checksum=MD5), tmp_path / "data.zip", quiet)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize("quiet", [True, False])
@pytest.mark.parametrize(("name", "content"), [
    ("split.json", b'{"error": {"code": 403, "message": "rate limit"}}'), ("split.json", b"PK\x03\x04"),
    ("split.json", b'{"train": [['), ("split.json", b"[1]"), ("split.json", b"<?xml version='1.0'?><Error/>"),
    ("names.txt", b"<?xml version='1.0'?><Error/>"), ("names.txt", b'{"error": 1}'), ("names.txt", b"\x89PNG\0\0"),
    ("images.zip", b"<?xml version='1.0'?><Error/>"), ("images.zip", b'{"error": 1}'), ("a.tar.gz", b"PK\x03\x04"),
    ("a.tgz", b"Sorry, try later"),
])
def test_google_drive_sends_another_kind_of_file(name, content, quiet, tmp_path, monkeypatch):
    """Without a checksum its kind is all that can be told, and it must not be found later and taken for good."""
    drive(monkeypatch, content)
    with pytest.raises(FetchError, match=f"^Google Drive file abc123: what arrived is not {name} but something else"):
        fetch_drive(Source(name, drive_id="abc123"), tmp_path / name, quiet)
    assert names(tmp_path) == []


def test_a_reader_fetches_the_split_file_it_lacks(tmp_path, monkeypatch):
    build("DescribableTextures", tmp_path)
    split = tmp_path / "dtd" / "split_zhou_DescribableTextures.json"
    content = split.read_bytes()
    split.unlink()
    asked = drive(monkeypatch, content)
    assert len(build_dataset("DescribableTextures", tmp_path).test) == 6
    assert asked == [("1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x", True, False)]
    assert split.read_bytes() == content and names(tmp_path / "dtd") == ["images", split.name]
    build_dataset("DescribableTextures", tmp_path)
    assert len(asked) == 1
