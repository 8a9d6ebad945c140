"""Downloads that resume, are checked, and appear under their final name only when they are whole."""
from __future__ import annotations

import hashlib
import http.client
import logging
import tempfile
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from ..utils.errors import ConfigError, DataError
from .sources import Source

logger = logging.getLogger(__name__)

TIMEOUT = 20  # seconds without a byte before a host counts as gone
CHUNK = 1 << 20
NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


class FetchError(DataError):
    """A file that could not be had, or is not what it should be."""


def check_mirror(mirror: str) -> None:
    if mirror and "://" not in mirror and not Path(mirror).expanduser().is_dir():
        raise ConfigError(f"mirror {mirror} is neither a folder nor an address such as https://host/path")


def fetch(source: Source, folder: Path, mirror: str = "") -> Path:
    """The file of `source`: from the mirror (a folder or an address) if it has it, else from its own addresses.

    A mirror's folder is read in place; everything else lands in `folder`, half-loaded files as `<name>.part`.
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
        failures.append(f"{local}: not there")
    attempts = [f"{mirror.rstrip('/')}/{source.name}"] if "://" in mirror else []
    folder.mkdir(parents=True, exist_ok=True)
    for url in (*attempts, *source.urls):
        try:
            return fetch_url(url, target, source.checksum)
        except FetchError as error:
            failures.append(str(error))
    if source.drive_id:
        try:
            return fetch_drive(source, target, quiet=False)
        except FetchError as error:
            failures.append(str(error))
    raise FetchError("; ".join(failures) or f"no address is known for {source.name}")


def fetch_url(url: str, target: Path, checksum: str = "") -> Path:
    """Downloads `url` to `target`, going on from `<target>.part` where the server still has the same file."""
    part = target.with_name(f"{target.name}.part")
    try:
        resumed = load_part(url, part)
        try:
            verify_or_remove(part, checksum)
        except FetchError:
            if not resumed:
                raise
            logger.info("%s: what was loaded earlier does not fit; starting again", url)
            load_part(url, part)
            verify_or_remove(part, checksum)
        part.replace(target)
        version_file(part).unlink(missing_ok=True)
    except urllib.error.HTTPError as error:
        raise FetchError(f"{url}: HTTP {error.code} {error.reason}") from error
    except NETWORK_ERRORS as error:
        raise FetchError(f"{url}: {innermost(error)}") from error
    except FetchError as error:
        raise FetchError(f"{url}: {error}") from error
    except OSError as error:
        raise DataError(f"cannot write {part}: {error.strerror}") from error
    return target


def load_part(url: str, part: Path) -> bool:
    """Loads `url` into `part` to the end. True if it went on from what was there.

    The version the part belongs to is kept beside it and sent as If-Range: a server whose file has changed since then
    answers with the whole file, never with the rest of another one.
    """
    have = part.stat().st_size if part.is_file() else 0
    version = version_file(part).read_text() if version_file(part).is_file() else ""
    headers = {"User-Agent": "promptcal", "Accept-Encoding": "identity"}
    resuming = bool(have and version)
    if resuming:
        headers |= {"Range": f"bytes={have}-", "If-Range": version}
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not resuming:
            raise
        part.unlink()  # longer than the server's file, so not a part of it
        return load_part(url, part)
    with response:
        resuming = response.status == http.client.PARTIAL_CONTENT
        have = have if resuming else 0
        if resuming and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise ConnectionError("the server sent another part than the one asked for")
        remember_version(part, response.headers)
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        bar = tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=part.stem, disable=None)
        with bar, part.open("ab" if resuming else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
    size = part.stat().st_size
    if total is not None and size < total:
        raise ConnectionError(f"connection lost after {size} of {total} bytes; run again to go on from there")
    return resuming


def version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def remember_version(part: Path, headers: http.client.HTTPMessage) -> None:
    """Keeps the strong ETag or the date of what is being loaded; without either, a stopped download starts again."""
    etag = headers.get("ETag") or ""
    version = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified") or ""
    version_file(part).write_text(version)


def fetch_drive(source: Source, target: Path, quiet: bool = True) -> Path:
    """Downloads a Google Drive file with gdown; quota pages and lost connections leave no file under `target`.

    Quietly, for the small files a reader lacks: nothing half-loaded stays, since nobody will come back for it, and
    several processes may want one file at once. Otherwise, for archives, a stopped download is gone on with.
    """
    import gdown  # needs a whole web stack, which reading a data set does not
    from gdown.exceptions import DownloadError

    try:
        with ExitStack() as stack:
            if quiet:
                folder = tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-")
                part = Path(stack.enter_context(folder)) / target.name
            else:
                part = target.with_name(f"{target.name}.drive")  # gdown gives this name only to a whole file
            gdown.download(
                id=source.drive_id, output=str(part), quiet=quiet, resume=not quiet, use_cookies=False,
                timeout=(TIMEOUT / 2, 3 * TIMEOUT),
            )
            if not part.is_file():
                raise FetchError("nothing arrived")
            verify_or_remove(part, source.checksum)
            part.replace(target)
    except FetchError as error:
        raise FetchError(f"Google Drive file {source.drive_id}: {error}") from error
    except (DownloadError, OSError) as error:  # OSError: among others what `requests`, which gdown uses, raises
        raise FetchError(f"Google Drive file {source.drive_id}: {innermost(error)}") from error
    return target


def innermost(error: Exception) -> str:
    """One line of a network error. They nest, and the innermost says what happened."""
    while isinstance(inner := getattr(error, "reason", None) or next(iter(error.args), None), Exception):
        error = inner
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def verify_or_remove(path: Path, checksum: str) -> None:
    try:
        verify(path, checksum)
    except FetchError:
        path.unlink(missing_ok=True)
        version_file(path).unlink(missing_ok=True)
        raise


def verify(path: Path, checksum: str = "") -> None:
    """Refuses an empty file, a web page in place of the file (quota, login), and a wrong checksum."""
    with path.open("rb") as file:
        head = file.read(512).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not head:
        raise FetchError(f"{path.name} is empty")
    if head.startswith((b"<!doctype html", b"<html")):
        raise FetchError(f"{path.name} is a web page, not the file: the host's quota is used up or it wants a login; "
                         f"try again tomorrow or fetch it with a browser")
    if checksum:
        kind, _, expected = checksum.partition(":")
        digest = hashlib.new(kind, usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        found = digest.hexdigest()
        if found != expected:
            raise FetchError(f"{path.name} has the wrong {kind} checksum: {found}, expected {expected}")
