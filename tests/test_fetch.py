"""Downloads: resumed, checked, and under their final name only when whole."""
import gzip
import socket
import urllib.request

import pytest
from file_server import BODY, MD5, SHA, answering, names
from promptcal.datasets.download import transfer
from promptcal.datasets.download.fetch import (
    FetchError,
    check_mirror,
    fetch_url,
    verify,
)
from promptcal.datasets.utils.errors import ConfigError


@pytest.mark.parametrize("checksum", ["", MD5, SHA])
def test_a_plain_download(checksum, server, tmp_path):
    fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip", checksum)
    assert (tmp_path / "data.zip").read_bytes() == BODY
    assert names(tmp_path) == ["data.zip"]


@pytest.mark.parametrize("checksum", ["", MD5])
def test_an_interrupted_download_goes_on(checksum, server, tmp_path):
    server.cut = 100_000
    with pytest.raises(FetchError, match="connection lost after 100000 of 300000 bytes; run again"):
        fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip", checksum)
    assert names(tmp_path) == ["data.zip.part", "data.zip.part.version"]
    server.cut = None
    fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip", checksum)
    assert server.requests[-1] == ("data.zip", "bytes=100000-")
    assert (tmp_path / "data.zip").read_bytes() == BODY
    assert names(tmp_path) == ["data.zip"]


@pytest.mark.parametrize("etag", ['"2"', None])
def test_a_file_that_changed_meanwhile_is_loaded_anew(etag, server, tmp_path):
    server.cut = 1000
    with pytest.raises(FetchError):
        fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip")
    server.cut, server.etag, server.files["data.zip"] = None, etag, BODY[::-1]
    fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip")
    assert (tmp_path / "data.zip").read_bytes() == BODY[::-1]


def test_a_host_without_versions_starts_again(server, tmp_path):
    server.etag, server.cut = None, 1000
    with pytest.raises(FetchError):
        fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip")
    server.cut = None
    fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip")
    assert server.requests[-1] == ("data.zip", None)
    assert (tmp_path / "data.zip").read_bytes() == BODY


def test_a_part_that_does_not_fit_is_loaded_anew(server, tmp_path):
    (tmp_path / "data.zip.part").write_bytes(b"x" * 1000)
    (tmp_path / "data.zip.part.version").write_text(f'{server.address}/data.zip\n"1"')
    fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip", MD5)
    assert [wanted for _, wanted in server.requests] == ["bytes=1000-", None]
    assert (tmp_path / "data.zip").read_bytes() == BODY


def test_a_part_longer_than_the_file(server, tmp_path):
    (tmp_path / "data.zip.part").write_bytes(BODY + b"more")
    (tmp_path / "data.zip.part.version").write_text(f'{server.address}/data.zip\n"1"')
    fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip")
    assert (tmp_path / "data.zip").read_bytes() == BODY


@pytest.mark.parametrize(("body", "checksum", "message"), [
    (BODY, "md5:" + "0" * 32, "wrong md5 checksum: .*, expected 0000"),
    (b"<!DOCTYPE html><title>Quota exceeded</title>", "", "is a web page, not the file: the host's quota"),
    (b"\n <HTML><body>log in</body>", MD5, "is a web page, not the file"),
    (b"", "", "data.zip.part is empty"),
])
def test_wrong_content_is_never_taken(body, checksum, message, server, tmp_path):
    server.files["data.zip"] = body
    with pytest.raises(FetchError, match=message):
        fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip", checksum)
    assert names(tmp_path) == []


def test_dead_links(server, tmp_path):
    with pytest.raises(FetchError, match=f"{server.address}/gone.zip: HTTP 404"):
        fetch_url(f"{server.address}/gone.zip", tmp_path / "gone.zip")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(FetchError, match="refused"):
        fetch_url(f"http://127.0.0.1:{port}/gone.zip", tmp_path / "gone.zip")
    with pytest.raises(FetchError, match=r"no-such-host.invalid"):
        fetch_url("http://no-such-host.invalid/gone.zip", tmp_path / "gone.zip")
    assert names(tmp_path) == []


def test_a_silent_host_does_not_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(FetchError, match="timed out"):
        fetch_url(f"http://127.0.0.1:{silent.getsockname()[1]}/data.zip", tmp_path / "data.zip")


OK = b"HTTP/1.1 200 OK\r\n"
ZIPPED = gzip.compress(b'{"test": []}')


@pytest.mark.parametrize(("answer", "message"), [
    (OK + b"Content-Length: many\r\n\r\nbody", "states a length that is no number: many"),
    (OK + b"Content-Length: -5\r\n\r\nbody", "states a length that is no number: -5"),
    (OK + b"Content-Length: 99999999999999999999999\r\n\r\nbody", "states a length that is no number"),
    (OK + b"Content-Length: 100\r\n\r\nbody", "connection lost after 4 of 100 bytes"),
    (OK + b"Content-Length: 999999999999\r\n\r\nbody", "999,999,999,999 bytes or more .* far too much"),
    (OK + b"\r\n" + bytes(200_000), "bytes or more for list.json, which is far too much: it has less than 100,000"),
    (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n", "list.json: "),
    (b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/100\r\nContent-Length: 4\r\n\r\nbody",
     "sent a part, though the whole was asked for"),
    (OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(ZIPPED) + ZIPPED,
     r"sends list.json packed \(gzip\), though it was asked not to"),
    (b"HTTP/1.1 204 No Content\r\n\r\n", "HTTP 204"),
    (b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1/x\r\nContent-Length: 0\r\n\r\n", "is no http address"),
    (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n", "list.json: "),
    (b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n", "HTTP 302 .*infinite loop"),
    (b"nonsense", "list.json: nonsense"),
    (b"", "list.json: "),
    (OK + b"X-Long: " + b"x" * 200_000 + b"\r\n\r\n", "got more than 65536 bytes"),
], ids=range(16))
def test_hosts_that_lie(answer, message, tmp_path):
    with answering(answer) as (address, _), pytest.raises(FetchError, match=message) as caught:
        fetch_url(f"{address}/list.json", tmp_path / "list.json", limit=100_000)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert not (tmp_path / "list.json").exists()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1000


def test_a_part_that_was_not_asked_for(tmp_path):
    """After a first half, another part of the file than the rest."""
    half = OK + b'ETag: "1"\r\nContent-Length: 8\r\n\r\nhalf'
    for stated in (b"bytes 0-7/8", b"bytes 4-7/nine", b"bytes 4-6/8", b"items 4-7/8", b""):
        rest = b"HTTP/1.1 206 Partial Content\r\nContent-Range: %b\r\nContent-Length: 4\r\n\r\nrest" % stated
        with answering(half, rest) as (address, requests):
            with pytest.raises(FetchError, match="after 4 of 8"):
                fetch_url(f"{address}/x.zip", tmp_path / "x.zip")
            with pytest.raises(FetchError, match="sent another part than the one asked for"):
                fetch_url(f"{address}/x.zip", tmp_path / "x.zip")
            assert b"Range: bytes=4-\r\n" in requests[1]
        assert not (tmp_path / "x.zip").exists()


def test_a_part_of_one_address_is_not_continued_from_another(server, tmp_path):
    server.cut = 1000
    with pytest.raises(FetchError):
        fetch_url(f"{server.address}/data.zip", tmp_path / "data.zip")
    server.cut, server.files["other"] = None, BODY[::-1]
    assert fetch_url(f"{server.address}/other", tmp_path / "data.zip").read_bytes() == BODY[::-1]


def test_a_host_that_calls_a_gz_file_encoded(tmp_path):
    """Many do, and mean the file itself."""
    with answering(OK + b"Content-Encoding: x-gzip\r\n\r\n" + ZIPPED) as (address, _):
        assert fetch_url(f"{address}/a.tar.gz", tmp_path / "a.tar.gz").read_bytes() == ZIPPED


def test_a_host_that_never_ends_is_ended(tmp_path, monkeypatch):
    """One byte at a time, each within the time-out: in the body, and already in the headers."""
    monkeypatch.setattr(transfer, "WINDOW", 0.3)
    with answering(OK + b"\r\n" + b"x" * 500, pause=0.01) as (address, _), \
            pytest.raises(FetchError, match="bytes a second, which would take for ever"):
        fetch_url(f"{address}/a.zip", tmp_path / "a.zip")
    monkeypatch.setattr(transfer, "ANSWER_WITHIN", 0.3)
    with answering(OK + b"X-Slow: " + b"x" * 500, pause=0.01) as (address, _), \
            pytest.raises(FetchError, match=r"no answer within 0.3 seconds"):
        fetch_url(f"{address}/a.zip", tmp_path / "a.zip")


def test_redirections_are_followed_but_not_out_of_https(server, tmp_path):
    moved = b"HTTP/1.1 302 Found\r\nLocation: %b/data.zip\r\nContent-Length: 0\r\n\r\n" % server.address.encode()
    with answering(moved) as (address, _):
        assert fetch_url(f"{address}/x", tmp_path / "data.zip", SHA).read_bytes() == BODY
    request = urllib.request.Request("https://example.org/x")
    with pytest.raises(FetchError, match="is no https address"):
        transfer.Redirects().redirect_request(request, None, 302, "", {}, "http://example.org/x")


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x", "nonsense", "http://[::1/x"])
def test_only_web_addresses_are_opened(address, tmp_path):
    with pytest.raises(FetchError):
        fetch_url(address, tmp_path / "x")
    if not address.startswith("http"):
        with pytest.raises(ConfigError):
            check_mirror(address)
    assert names(tmp_path) == []


def test_verify_passes_a_good_file(tmp_path):
    (tmp_path / "data.zip").write_bytes(BODY)
    verify(tmp_path / "data.zip", MD5)
    verify(tmp_path / "data.zip")
