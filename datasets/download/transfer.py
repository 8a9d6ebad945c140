"""One file over HTTP into a part file: resumed where the host allows it, bounded in size, time and redirections."""
from __future__ import annotations

import http.client
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from ..utils.errors import DataError, one_line

TIMEOUT = 20  # seconds without a byte before a host counts as gone
ANSWER_WITHIN = 90  # seconds for all that comes before the first byte of the file, redirections included
WINDOW, SLOWEST = 60, 1000  # a host must send so many bytes a second, on average over so many seconds
CHUNK = 1 << 20
NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)

T = TypeVar("T")


class FetchError(DataError):
    """A file that could not be had, or is not what it should be."""


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a host to other hosts, as downloads need it, but not without end and never out of https."""

    max_redirections = 5

    def redirect_request(
        self, request: urllib.request.Request, answer: Any, code: int, message: str, headers: Any, address: str,
    ) -> urllib.request.Request | None:
        if not address.startswith("https://" if request.type == "https" else ("http://", "https://")):
            raise FetchError(f"the host leads on to {one_line(address, 200)}, which is no {request.type} address")
        return super().redirect_request(request, answer, code, message, headers, address)


def opener() -> urllib.request.OpenerDirector:
    """What opens http and https addresses, proxies included, and nothing else: no local files, no ftp."""
    director = urllib.request.OpenerDirector()
    handlers = ("ProxyHandler", "UnknownHandler", "HTTPHandler", "HTTPSHandler", "HTTPDefaultErrorHandler",
                "HTTPErrorProcessor")
    for name in handlers:
        director.add_handler(getattr(urllib.request, name)())
    director.add_handler(Redirects())
    return director


def load_part(url: str, part: Path, limit: int) -> bool:
    """Loads `url` into `part` to the end. True if it went on from what was there.

    The version that the part belongs to is kept beside it and sent as If-Range: a server whose file has changed since
    then answers with the whole file, never with the rest of another one.
    """
    have = part.stat().st_size if part.is_file() else 0
    version = known_version(url, part)
    headers = {"User-Agent": "promptcal", "Accept-Encoding": "identity"}
    resuming = bool(have and version)
    if resuming:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    request = urllib.request.Request(url, headers=headers)
    try:
        response = within(ANSWER_WITHIN, lambda: opener().open(request, timeout=TIMEOUT))
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not resuming:
            raise
        part.unlink()  # longer than the server's file, so not a part of it
        return load_part(url, part, limit)
    with response:
        if response.status == HTTPStatus.PARTIAL_CONTENT and not resuming:
            raise FetchError("the host sent a part, though the whole was asked for")
        if response.status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            raise FetchError(f"HTTP {response.status} {response.reason}")
        resuming = response.status == HTTPStatus.PARTIAL_CONTENT
        check_encoding(response.headers, part.stem)
        total = whole_size(response.headers, have if resuming else None)
        remember_version(url, part, response.headers)
        save(response, part, have if resuming else 0, total, limit)
    return resuming


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` gives, or TimeoutError. A host that sends its headers letter by letter keeps every socket waiting,
    each time for less than the time-out."""
    outcome: list = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def whole_size(headers: http.client.HTTPMessage, have: int | None) -> int | None:
    """The size of the file by what the host says, or None if it does not; `have` where it sends what comes after."""
    length = headers.get("Content-Length")
    if length is not None and not re.fullmatch(r"[0-9]{1,18}", length.strip()):
        raise FetchError(f"the host states a length that is no number: {one_line(length, 60)}")
    if have is None:
        return None if length is None else int(length)
    stated = headers.get("Content-Range", "").strip()
    found = re.fullmatch(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", stated)
    if not found or int(found[1]) != have or (length is not None and int(length) != int(found[2]) + 1 - have):
        raise FetchError("the host sent another part than the one asked for")
    return int(found[2]) + 1 if found[3] == "*" else int(found[3])


def check_encoding(headers: http.client.HTTPMessage, name: str) -> None:
    """Refuses a body that the host has packed unasked. Many hosts call a .tar.gz gzip-encoded and mean the file itself,
    which is then right as it is: its checksum or its end will tell."""
    encoding = headers.get("Content-Encoding", "identity").strip().lower()
    if encoding == "identity" or (encoding in ("gzip", "x-gzip") and name.lower().endswith((".gz", ".tgz"))):
        return
    raise FetchError(f"the host sends {name} packed ({one_line(encoding, 40)}), though it was asked not to: fetch it "
                     f"with a browser")


def save(response: http.client.HTTPResponse, part: Path, have: int, total: int | None, limit: int) -> None:
    """Appends the body to the `have` bytes of `part`. Ends a host that sends too much, too slowly, or not all."""
    check_limit(max(total or 0, have), limit, part)
    bar = tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=part.stem, disable=None)
    since, fresh = time.monotonic(), 0
    with bar, part.open("ab" if have else "wb") as file:
        while chunk := response.read1(CHUNK):  # what has arrived; `read` would wait for all of it
            file.write(chunk)
            bar.update(len(chunk))
            have, fresh = have + len(chunk), fresh + len(chunk)
            check_limit(have, limit, part)
            if (seconds := time.monotonic() - since) >= WINDOW:
                if fresh < SLOWEST * seconds:
                    raise FetchError(f"the host sends {fresh / seconds:.0f} bytes a second, which would take for ever; "
                                     f"run again to go on from there")
                since, fresh = time.monotonic(), 0
    if total is not None and have < total:
        raise ConnectionError(f"connection lost after {have} of {total} bytes; run again to go on from there")


def check_limit(size: int, limit: int, part: Path) -> None:
    if size > limit:
        part.unlink(missing_ok=True)
        raise FetchError(f"the host sends {size:,} bytes or more for {part.stem}, which is far too much: it has less "
                         f"than {limit:,}")


def version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def known_version(url: str, part: Path) -> str:
    """The version of what was loaded of this address earlier; "" if nothing was, or the host did not say."""
    lines = version_file(part).read_text(encoding="utf-8").splitlines() if version_file(part).is_file() else []
    return lines[1] if len(lines) == 2 and lines[0] == url else ""


def remember_version(url: str, part: Path, headers: http.client.HTTPMessage) -> None:
    """Keeps the strong ETag or the date of what is being loaded; without either, a stopped download starts again."""
    etag = headers.get("ETag") or ""
    version = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified") or ""
    version_file(part).write_text(f"{url}\n{one_line(version, 200)}", encoding="utf-8")
