"""Downloads over HTTP and from Google Drive: resumed, verified, and bounded in size, time and redirections.

A download is written to `<name>.part` and gets its final name when it is complete.
"""
from __future__ import annotations

import hashlib
import http.client
import logging
import re
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from ..utils.errors import ConfigError, DataError, one_line
from ..utils.files import read_json
from ..utils.locking import locked
from .sources import LARGEST, Source

logger = logging.getLogger(__name__)

TIMEOUT = 20  # seconds without a byte
ANSWER_WITHIN = 90  # seconds before the first byte of the file, redirections included
WINDOW, SLOWEST = 60, 1000  # a host must send this many bytes per second, averaged over this many seconds
CHUNK = 1 << 20
NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)
MAGIC = {".zip": b"PK", ".gz": b"\x1f\x8b", ".tgz": b"\x1f\x8b"}  # first bytes of archives
HANDLERS = ("ProxyHandler", "UnknownHandler", "HTTPHandler", "HTTPSHandler", "HTTPDefaultErrorHandler",
            "HTTPErrorProcessor")  # of urllib; no local files, no ftp

T = TypeVar("T")


class FetchError(DataError):
    """A file that could not be downloaded, or has the wrong content."""


def check_mirror(mirror: str) -> None:
    if mirror and not mirror.startswith(("http://", "https://")) and not Path(mirror).expanduser().is_dir():
        raise ConfigError(f"mirror {mirror} is neither a folder nor an address such as https://host/path")


def fetch(source: Source, folder: Path, mirror: str = "") -> Path:
    """The file of `source`: from the mirror (a folder or an address) if it is there, otherwise from its own addresses.

    A file in a mirror's folder is used in place; downloads go to `folder`.
    """
    target = folder / source.name
    if target.is_file():  # an earlier run was stopped between download and extraction
        return target
    failures = []
    if mirror and Path(mirror).expanduser().is_dir():
        local = Path(mirror).expanduser() / source.name
        if local.is_file():
            verify(local, source.checksum)
            return local
        failures.append(f"{local}: no such file")
    urls = [f"{mirror.rstrip('/')}/{source.name}", *source.urls] if "://" in mirror else source.urls
    attempts = [partial(fetch_url, url, target, source.checksum, source.limit) for url in urls]
    if source.drive_id:
        attempts.append(partial(fetch_drive, source, target, quiet=False))
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in attempts:
        try:
            return attempt()
        except FetchError as error:
            failures.append(str(error))
    raise FetchError("; ".join(failures) or f"no address is known for {source.name}")


def fetch_once(url: str, folder: Path, checksum: str) -> Path:
    """The file of `url` in `folder`, downloaded unless it is there with the right checksum. Other processes that need
    it wait."""
    target = folder / url.rsplit("/", 1)[-1]
    if is_complete(target, checksum):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(target.with_name(f".{target.name}.lock"), f"downloads {url}"):
            return target if is_complete(target, checksum) else fetch_url(url, target, checksum)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror}") from error


def is_complete(path: Path, checksum: str) -> bool:
    try:
        verify(path, checksum)
    except FileNotFoundError:
        return False
    except FetchError as error:
        logger.warning("%s; it is downloaded again", error)
        return False
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    return True


def fetch_url(url: str, target: Path, checksum: str = "", limit: int = LARGEST) -> Path:
    """Downloads `url` to `target`; continues `<target>.part` if the host still has the same version of the file."""
    part = target.with_name(f"{target.name}.part")
    try:
        resumed = load_part(url, part, limit)
        try:
            verify_or_remove(part, checksum, target.name)
        except FetchError:
            if not resumed:
                raise
            logger.info("%s: the earlier part does not fit; starting again", url)
            load_part(url, part, limit)
            verify_or_remove(part, checksum, target.name)
        part.replace(target)
        version_file(part).unlink(missing_ok=True)
    except urllib.error.HTTPError as error:
        raise FetchError(f"{url}: HTTP {error.code} {error.reason}") from error
    except FetchError as error:
        raise FetchError(f"{url}: {error}") from error
    except (*NETWORK_ERRORS, ValueError) as error:  # ValueError: not an address
        raise FetchError(f"{url}: {innermost(error)}") from error
    except OSError as error:
        raise DataError(f"cannot write {part}: {error.strerror}") from error
    return target


def fetch_drive(source: Source, target: Path, quiet: bool = True) -> Path:
    """Downloads a Google Drive file with gdown.

    `quiet` is for small files that a reader needs: several processes may download one at once, and no partial file
    stays. Otherwise an interrupted download is resumed.
    """
    import gdown  # imports `requests`, which readers do not need otherwise
    from gdown.exceptions import DownloadError

    try:
        with ExitStack() as stack:
            if quiet:
                folder = tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-")
                part = Path(stack.enter_context(folder)) / target.name
            else:
                part = target.with_name(f"{target.name}.drive")  # gdown gives this name to a complete file only
            gdown.download(
                id=source.drive_id, output=str(part), quiet=quiet, resume=not quiet, use_cookies=False,
                timeout=(TIMEOUT / 2, 3 * TIMEOUT),
            )
            if not part.is_file():
                raise FetchError("nothing arrived")
            check_limit(part.stat().st_size, source.limit, part)
            verify_or_remove(part, source.checksum, source.name)
            part.replace(target)
    except FetchError as error:
        raise FetchError(f"Google Drive file {source.drive_id}: {error}") from error
    except (DownloadError, OSError) as error:  # OSError includes the errors of `requests`
        raise FetchError(f"Google Drive file {source.drive_id}: {innermost(error)}") from error
    return target


def verify_or_remove(path: Path, checksum: str, name: str) -> None:
    try:
        verify(path, checksum, name)
    except FetchError:
        path.unlink(missing_ok=True)
        version_file(path).unlink(missing_ok=True)
        raise


def verify(path: Path, checksum: str = "", name: str = "") -> None:
    """Refuses an empty file, a web page in place of the file (quota, login), and a wrong checksum or, where there is
    none, a file of another kind than its `name` says."""
    with path.open("rb") as file:
        head = file.read(512)
        text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
        if not text:
            raise FetchError(f"{path.name} is empty")
        if text.startswith((b"<!doctype html", b"<html")):
            raise FetchError(f"{path.name} is a web page, not the file: the host's quota is used up or it requires a "
                             f"login; try again tomorrow or download it with a browser")
        if checksum:
            kind, _, expected = checksum.partition(":")
            file.seek(0)
            found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
            if found != expected:
                raise FetchError(f"{path.name} has the wrong {kind} checksum: {found}, expected {expected}")
            return
    if name.endswith(".json"):
        content = read_json(path)
        right = isinstance(content, dict) and not content.keys().isdisjoint(("train", "val", "test"))
    elif name.endswith(".txt"):
        right = b"\0" not in head and not text.startswith((b"<", b"{"))
    else:
        right = head.startswith(MAGIC.get(Path(name).suffix, b""))
    if not right:
        raise FetchError(f"the host did not send {name} but something else, perhaps a message; try again later or "
                         f"download it with a browser")


def innermost(error: BaseException) -> str:
    """One line of a network error. They are nested, and the innermost has the reason."""
    while isinstance(inner := getattr(error, "reason", None) or next(iter(error.args), None), Exception):
        error = inner
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows at most five redirections to other hosts, never from https to http."""

    max_redirections = 5

    def redirect_request(
        self, request: urllib.request.Request, answer: Any, code: int, message: str, headers: Any, address: str,
    ) -> urllib.request.Request | None:
        if not address.startswith("https://" if request.type == "https" else ("http://", "https://")):
            raise FetchError(f"the host redirects to {one_line(address, 200)}, which is not a {request.type} address")
        return super().redirect_request(request, answer, code, message, headers, address)


def load_part(url: str, part: Path, limit: int) -> bool:
    """Downloads `url` into `part` to the end. True if an earlier part was continued.

    The version of the part is stored beside it and sent as If-Range: a host whose file has changed sends it whole.
    """
    have = part.stat().st_size if part.is_file() else 0
    lines = version_file(part).read_text(encoding="utf-8").splitlines() if version_file(part).is_file() else []
    version = lines[1] if len(lines) == 2 and lines[0] == url else ""
    headers = {"User-Agent": "promptcal", "Accept-Encoding": "identity"}
    resuming = bool(have and version)
    if resuming:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    opener = urllib.request.OpenerDirector()
    for handler in (*(getattr(urllib.request, name)() for name in HANDLERS), Redirects()):
        opener.add_handler(handler)
    request = urllib.request.Request(url, headers=headers)
    try:
        response = within(ANSWER_WITHIN, lambda: opener.open(request, timeout=TIMEOUT))
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not resuming:
            raise
        part.unlink()  # longer than the host's file, so not a part of it
        return load_part(url, part, limit)
    with response:
        if response.status == HTTPStatus.PARTIAL_CONTENT and not resuming:
            raise FetchError("the host sent a part, though the whole file was requested")
        if response.status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            raise FetchError(f"HTTP {response.status} {response.reason}")
        resuming = response.status == HTTPStatus.PARTIAL_CONTENT
        total = whole_size(response.headers, have if resuming else None)
        etag = response.headers.get("ETag") or ""
        version = etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified") or ""
        version_file(part).write_text(f"{url}\n{one_line(version, 200)}", encoding="utf-8")
        save(response, part, have if resuming else 0, total, limit)
    return resuming


def version_file(part: Path) -> Path:
    """Address and version (strong ETag or date) of a part; without a version a stopped download starts again."""
    return part.with_name(f"{part.name}.version")


def within(seconds: float, work: Callable[[], T]) -> T:
    """The result of `work`, or TimeoutError. A host that sends its headers byte by byte never exceeds the socket's
    time-out."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():  # the socket's own
            raise
        raise TimeoutError(f"no answer within {seconds:g} seconds") from None


def whole_size(headers: http.client.HTTPMessage, have: int | None) -> int | None:
    """The size of the whole file, or None if the host does not state it. With `have`, the bytes after those were
    requested, and another range is refused."""
    length = headers.get("Content-Length")
    if length is not None and not re.fullmatch(r"[0-9]{1,18}", length.strip()):
        raise FetchError(f"the host states a length that is not a number: {one_line(length, 60)}")
    if have is None:
        return None if length is None else int(length)
    stated = headers.get("Content-Range", "").strip()
    found = re.fullmatch(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", stated)
    if not found or int(found[1]) != have or (length is not None and int(length) != int(found[2]) + 1 - have):
        raise FetchError("the host sent another part than the one requested")
    return int(found[2]) + 1 if found[3] == "*" else int(found[3])


def save(response: http.client.HTTPResponse, part: Path, have: int, total: int | None, limit: int) -> None:
    """Appends the body to the `have` bytes of `part`. Stops a host that sends too much, too slowly, or too little."""
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
                    raise FetchError(f"the host sends {fresh / seconds:.0f} bytes per second, which is too slow; run "
                                     f"again to continue")
                since, fresh = time.monotonic(), 0
    if total is not None and have < total:
        raise ConnectionError(f"connection lost after {have} of {total} bytes; run again to continue")


def check_limit(size: int, limit: int, part: Path) -> None:
    if size > limit:
        part.unlink(missing_ok=True)
        raise FetchError(f"the host sends {size:,} bytes or more for {part.stem}, far too many: the file has less than "
                         f"{limit:,}")
