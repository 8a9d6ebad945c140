"""Downloads: resumed, verified, and under their final name only when they are complete."""
import gzip
import hashlib
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gdown
import pytest
from promptcal.datasets import build_dataset
from promptcal.datasets.download import fetch as module
from promptcal.datasets.download.fetch import (
    FetchError,
    Source,
    check_mirror,
    fetch,
    fetch_drive,
    fetch_once,
    fetch_url,
)
from promptcal.datasets.utils.errors import ConfigError, DataError

from data_roots import build
from file_server import BODY, MD5, SHA, answering
from folders import names


@pytest.mark.parametrize(("checksum", "second"), [(MD5, "bytes=100000-"), (SHA, "bytes=100000-"), ("", None)])
def test_an_interrupted_download_continues(checksum, second, server, tmp_path):
    """Without a checksum it starts again: the host's file may have changed."""
    server.cut = 100_000
    with pytest.raises(FetchError, match="connection lost after 100000 of 300000 bytes; run again"):
        fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip", checksum)
    assert names(tmp_path) == ["data.zip.part"]
    server.cut = None
    fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip", checksum)
    assert server.requests == [("data.zip", None), ("data.zip", second)]
    assert (tmp_path / "data.zip").read_bytes() == BODY and names(tmp_path) == ["data.zip"]


@pytest.mark.parametrize("part", [b"x" * 1000, BODY + b"more"], ids=["other bytes", "too long"])
def test_a_part_that_does_not_fit_is_loaded_again(part, server, tmp_path):
    (tmp_path / "data.zip.part").write_bytes(part)
    fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip", MD5)
    assert server.requests == [("data.zip", f"bytes={len(part)}-"), ("data.zip", None)]
    assert (tmp_path / "data.zip").read_bytes() == BODY


@pytest.mark.parametrize(("name", "body", "checksum", "message"), [
    ("data.zip", BODY, "md5:" + "0" * 32, "wrong md5 checksum: .*, expected 0000"),
    ("data.zip", b"<!DOCTYPE html><title>Quota exceeded</title>", "",
     "is a web page, not the file: the host's quota"),
    ("data.zip", b"\n <HTML><body>log in</body>", MD5, "is a web page, not the file"),
    ("data.zip", b"", "", "is empty"),
    ("split.json", b'{"error": {"code": 403, "message": "rate limit"}}', "", "did not send split.json but something"),
    ("split.json", b'{"train": [[', "", "did not send split.json"),
    ("names.txt", b"<?xml version='1.0'?><Error/>", "", "is a web page"),
    ("names.txt", b'{"error": 1}', "", "did not send names.txt"),
    ("split.json", b" " * (65 << 20), "", "far too many"),
], ids=range(9))
@pytest.mark.parametrize("host", ["web", "drive"])
def test_wrong_content_is_never_accepted(host, name, body, checksum, message, server, tmp_path, monkeypatch):
    """It must not be found and used by the next run."""
    server.files[name] = body
    source = Source(name, drive_id="abc123", checksum=checksum)
    if host == "web":
        source = Source(name, urls=(f"{server.address}/{name}",), checksum=checksum)
    drive(monkeypatch, body)
    with pytest.raises(FetchError, match=message) as caught:
        fetch(source, tmp_path)
    assert "\n" not in str(caught.value) and names(tmp_path) == []


def test_dead_links(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        for address, message in (
            (f"{server.address}/gone.zip", f"{server.address}/gone.zip: HTTP Error 404"),
            (f"http://127.0.0.1:{free.getsockname()[1]}/gone.zip", "/gone.zip: [^<]*refused"),
            ("http://no-such-host.invalid/gone.zip", "no-such-host.invalid"),
            (f"http://127.0.0.1:{silent.getsockname()[1]}/gone.zip", "timed out"),
        ):
            with pytest.raises(FetchError, match=message):
                fetch_url(address, tmp_path / "gone.zip")
    assert names(tmp_path) == []


OK = b"HTTP/1.1 200 OK\r\n"
MOVED = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: %b\r\n\r\n"
ZIPPED = gzip.compress(b'{"test": []}')


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (OK + b"Content-Length: many\r\n\r\nbody", "the host did not send list.json"),
        (OK + b"Content-Length: 100\r\n\r\nbody", "connection lost after 4 of 100 bytes"),
        (OK + b"Content-Length: 999999999999\r\n\r\nbody", "999,999,999,999 bytes or more .* far too many"),
        (OK + b"\r\n" + bytes(200_000), "bytes or more for list.json, far too many: the file has less than 100,000"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n", "list.json: "),
        (
            b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/100\r\nContent-Length: 4\r\n\r\nbody",
            "answered with HTTP 206 Partial Content, not with the file",
        ),
        (OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(ZIPPED) + ZIPPED,
         "the host did not send list.json but something else"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP 204"),
        (MOVED % b"ftp://127.0.0.1/x", "list.json: "),
        (MOVED % b"/again", "HTTP Error 302: .*infinite loop"),
        (b"nonsense", "list.json: nonsense"),
        (OK + b"X-Long: " + b"x" * 200_000 + b"\r\n\r\n", "got more than 65536 bytes"),
    ],
    ids=range(12),
)
def test_hosts_that_lie(answer, message, tmp_path):
    with answering(answer) as (address, _), pytest.raises(FetchError, match=message) as caught:
        fetch_url(f"{address}/list.json", tmp_path / "list.json", limit=100_000)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert not (tmp_path / "list.json").exists()
    for path in tmp_path.iterdir():
        assert path.stat().st_size < 1000


@pytest.mark.parametrize("stated", [b"bytes 0-7/8", b"bytes 4-7/nine", b"bytes 4-6/8", b"items 4-7/8", b""])
def test_a_part_that_was_not_requested(stated, tmp_path):
    (tmp_path / "x.zip.part").write_bytes(b"half")
    rest = (b"HTTP/1.1 206 Partial Content\r\nContent-Range: %b\r\nContent-Length: 4\r\n\r\nrest" % stated)
    with answering(rest, OK + b"Content-Length: 6\r\n\r\nPK all") as (address, requests):
        checksum = f"sha256:{hashlib.sha256(b'PK all').hexdigest()}"
        assert fetch_url(f"{address}/x.zip", tmp_path / "x.zip", checksum).read_bytes() == b"PK all"
        assert b"Range: bytes=4-\r\n" in requests[0] and b"Range" not in requests[1]


@pytest.mark.parametrize(("setting", "answer", "message"), [
    ("WINDOW", OK + b"\r\n" + b"x" * 500, "bytes per second, which is too slow"),
    ("ANSWER_WITHIN", OK + b"X-Slow: " + b"x" * 500, r"no answer within 0.3 seconds"),
])
def test_a_host_that_never_ends_is_stopped(setting, answer, message, tmp_path, monkeypatch):
    """One byte at a time, each within the time-out: in the body, and in the headers."""
    monkeypatch.setattr(module, setting, 0.3)
    with answering(answer, pause=0.01) as (address, _), pytest.raises(FetchError, match=message):
        fetch_url(f"{address}/a.zip", tmp_path / "a.zip")


def test_redirections_are_followed_but_not_out_of_https(server, tmp_path, monkeypatch):
    with answering(MOVED % f"{server.address}/data.zip".encode()) as (address, _):
        assert fetch_url(f"{address}/x", tmp_path / "data.zip", SHA).read_bytes() == BODY
    # As if https://example.org had led there.
    plain = urllib.request.urlopen(f"{server.address}/data.zip")
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: plain)
    with pytest.raises(FetchError, match="redirects to http:.* which is no https address"):
        fetch_url("https://example.org/x", tmp_path / "x.zip")


@pytest.mark.parametrize("address", [
    "file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "nonsense", "http://[::1/x",
])
def test_only_web_addresses_are_opened(address, tmp_path):
    with pytest.raises(FetchError):
        fetch_url(address, tmp_path / "x")
    if not address.startswith("http"):
        with pytest.raises(ConfigError, match="neither a folder nor an address"):
            check_mirror(address)
    assert names(tmp_path) == []


def test_what_is_kept_is_downloaded_once(server, tmp_path, caplog):
    """By several threads at once, and again if its checksum is wrong."""
    folder = tmp_path / "cache" / "clip"
    url = f"{server.address}/data.zip"
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: fetch_once(url, folder, SHA), range(3)))
    assert (folder / "data.zip").read_bytes() == BODY and len(server.requests) == 1
    (folder / "data.zip").write_bytes(b"other")
    assert fetch_once(url, folder, SHA).read_bytes() == BODY
    assert "data.zip has the wrong sha256 checksum" in caplog.text and len(server.requests) == 2
    assert names(folder) == ["data.zip"]
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot read or write .*: (Not a directory|File exists)"):
        fetch_once(url, tmp_path / "file", SHA)


def test_addresses_are_tried_in_order(server, tmp_path):
    urls = (f"{server.address}/first", f"{server.address}/second")
    source = Source("data.zip", urls=urls, checksum=SHA)
    with pytest.raises(FetchError, match=r"first: HTTP Error 404.*; .*second: HTTP Error 404"):
        fetch(source, tmp_path)
    server.files["second"] = BODY
    assert fetch(source, tmp_path).read_bytes() == BODY
    assert server.requests == [("first", None), ("second", None)] * 2
    with pytest.raises(FetchError, match=r"no address is known for y.zip"):
        fetch(Source("y.zip"), tmp_path)


def test_a_mirror_comes_first(server, tmp_path):
    server.files["own"] = b"PK own"
    source = Source("data.zip", urls=(f"{server.address}/own",))
    assert fetch(source, tmp_path / "a", mirror=f"{server.address}/").read_bytes() == BODY
    folder = tmp_path / "archives"
    folder.mkdir()
    check_mirror(str(folder))
    assert fetch(source, tmp_path / "b", mirror=str(folder)).read_bytes() == b"PK own"
    (folder / "data.zip").write_bytes(b"by hand")
    assert fetch(source, tmp_path / "c", mirror=str(folder)) == folder / "data.zip"
    (folder / "data.zip").write_bytes(b"<html>quota</html>")
    with pytest.raises(FetchError, match="web page"):
        fetch(Source("data.zip"), tmp_path / "work", mirror=str(folder))
    assert (folder / "data.zip").exists()  # the user's own file


def drive(monkeypatch, content):
    """gdown gets `content` from Google Drive."""
    asked = []

    def download(id, output, **options):
        asked.append((id, options["quiet"], options["resume"]))
        Path(output).write_bytes(content)

    monkeypatch.setattr(gdown, "download", download)
    return asked


def test_google_drive(tmp_path, monkeypatch, no_internet):
    source = Source("data.zip", drive_id="abc123", checksum=MD5)
    target = tmp_path / "data.zip"
    with pytest.raises(FetchError, match="^Google Drive file abc123: no connection to drive") as caught:
        fetch_drive(source, target)
    assert "\n" not in str(caught.value) and names(tmp_path) == []
    asked = drive(monkeypatch, BODY)
    for _ in range(2):
        assert fetch_drive(source, target).read_bytes() == BODY
    assert asked == [("abc123", False, True)] and names(tmp_path) == ["data.zip"]


def test_a_reader_downloads_its_missing_split_file(tmp_path, monkeypatch):
    build("DescribableTextures", tmp_path)
    split = tmp_path / "dtd" / "split_zhou_DescribableTextures.json"
    content = split.read_bytes()
    split.unlink()
    asked = drive(monkeypatch, content)
    for _ in range(2):
        assert len(build_dataset("DescribableTextures", tmp_path).test) == 6
    assert asked == [("1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x", True, True)]
    assert split.read_bytes() == content and names(tmp_path / "dtd") == ["images", split.name]
