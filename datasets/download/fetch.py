"""Downloads files of data sets over HTTP and from Google Drive: resumed, verified, and bounded in
size, time and redirections.

A download is written to `<name>.part` and gets its final name when it is complete.
"""
from __future__ import annotations

import hashlib
import http.client
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from ..utils.errors import ConfigError, DataError, one_line
from ..utils.files import read_json
from ..utils.lock import OwnedLock
from ..utils.progress import progress_bar

logger = logging.getLogger(__name__)

TIMEOUT = 20  # seconds without a byte
ANSWER_WITHIN = 90  # seconds before the first byte of the file, redirections included
# A host must send SLOWEST bytes per second, averaged over WINDOW seconds.
WINDOW = 60
SLOWEST = 1000
CHUNK = 1 << 20
NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)
WEB = ("http://", "https://")
# Bytes; the largest archive that can be downloaded has 23 GB, the largest split file 7 MB.
LARGEST = 50 << 30
LARGEST_LIST = 64 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """Where one file comes from, and where its content belongs.

    Attributes:
        name: File name, also in a mirror.
        urls: Addresses, in the order in which they are tried.
        drive_id: Identifier at Google Drive, which is tried last; "" if it is not there.
        checksum: "md5:…" or "sha256:…"; "" if it is not known.
        inner: Path of an archive inside the archive, which holds the images; "" if there is none.
        places: The parts of an archive: path in the archive -> path below the set's folder. A file
            without places is copied as it is.
        substitute: Another archive with the same content, if this one cannot be downloaded.
    """

    name: str
    urls: tuple[str, ...] = ()
    drive_id: str = ""
    checksum: str = ""
    inner: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    substitute: Source | None = None

    @property
    def limit(self) -> int:
        """The largest plausible size in bytes."""
        if self.name.endswith((".json", ".txt")):
            return LARGEST_LIST
        return LARGEST

    @property
    def link(self) -> str:
        """The address to open in a browser; "" if there is none."""
        if self.drive_id:
            return f"https://drive.google.com/file/d/{self.drive_id}/view"
        if self.urls:
            return self.urls[0]
        return ""


class FetchError(DataError):
    """A file that could not be downloaded, or has the wrong content."""


def check_mirror(mirror: str) -> None:
    """Refuses a mirror that is neither a folder nor a web address; "" = none."""
    if mirror and not mirror.startswith(WEB) and not Path(mirror).expanduser().is_dir():
        raise ConfigError(f"mirror {mirror} is neither a folder nor an address such as "
                          f"https://host/path")


def fetch(source: Source, folder: Path, mirror: str = "") -> Path:
    """The file of a source: from the mirror if it is there, otherwise from its own addresses.

    Args:
        source: Addresses and checksum of the file.
        folder: Folder in which a download is stored.
        mirror: A folder or an address; "" = none. A file in a mirror's folder is used in place.

    Returns:
        The path of the file.
    """
    target = folder / source.name
    if target.is_file():  # an earlier run was stopped between download and extraction
        return target
    failures = []
    urls = source.urls
    if mirror.startswith(WEB):
        urls = (f"{mirror.rstrip('/')}/{source.name}", *urls)
    elif mirror:
        local = Path(mirror).expanduser() / source.name
        if local.is_file():
            verify(local, source.checksum, source.name)
            return local
        failures.append(f"{local}: no such file")
    attempts = []
    for url in urls:
        attempts.append(partial(fetch_url, url, target, source.checksum, source.limit))
    if source.drive_id:
        attempts.append(partial(fetch_drive, source, target))
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in attempts:
        try:
            return attempt()
        except FetchError as error:
            failures.append(str(error))
    raise FetchError("; ".join(failures) or f"no address is known for {source.name}")


def fetch_any(source: Source, folder: Path, mirror: str = "") -> tuple[Source, Path]:
    """The file of a source or, if it cannot be had, of its substitute.

    What a mirror's folder has comes first.

    Args:
        source: Addresses and checksum of the file.
        folder: Folder in which a download is stored.
        mirror: A folder or an address; "" = none.

    Returns:
        Which of the two it is, and the file.
    """
    sources = [source]
    if source.substitute is not None:
        sources.append(source.substitute)
        is_folder = bool(mirror) and not mirror.startswith(WEB)
        if is_folder and (Path(mirror).expanduser() / source.substitute.name).is_file():
            sources.reverse()
    failures = []
    for candidate in sources:
        try:
            return candidate, fetch(candidate, folder, mirror)
        except FetchError as error:
            failures.append(str(error))
    raise FetchError("; ".join(failures))


def fetch_once(url: str, folder: Path, checksum: str) -> Path:
    """Downloads a file unless it is there with the right checksum. Other processes wait.

    Args:
        url: Address of the file.
        folder: Folder in which the file is stored, under the last part of the address.
        checksum: "md5:…" or "sha256:…".
    """
    target = folder / url.rsplit("/", 1)[-1]
    try:
        if not is_complete(target, checksum):
            with new_folder(folder), lock_of(target).awaited(f"downloads {url}"):
                if not is_complete(target, checksum):
                    fetch_url(url, target, checksum)
    except OSError as error:
        raise DataError(f"cannot read or write {target}: {error.strerror}") from error
    return target


def lock_of(target: Path) -> OwnedLock:
    """The lock of a file that is downloaded."""
    return OwnedLock(target.with_name(f".{target.name}.lock"))


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Makes a folder and those above it.

    What it made is removed again if it is still empty at the end.
    """
    absent = [folder]
    while not absent[-1].parent.exists():
        absent.append(absent[-1].parent)
    absent = [path for path in absent if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            for path in absent:
                path.rmdir()


def is_complete(path: Path, checksum: str) -> bool:
    """Whether a file is there with the right content."""
    try:
        verify(path, checksum)
    except FileNotFoundError:
        return False
    except FetchError as error:
        logger.warning("%s; it is downloaded again", error)
        return False
    return True


def fetch_url(url: str, target: Path, checksum: str = "", limit: int = LARGEST) -> Path:
    """Downloads a file.

    With a checksum, an incomplete `<target>.part` is continued. If the whole then has another
    checksum, the download starts again from 0.

    Args:
        url: Address of the file.
        target: Path of the file here.
        checksum: "md5:…" or "sha256:…"; "" = not known.
        limit: Bytes beyond which it is refused.
    """
    part = target.with_name(f"{target.name}.part")
    try:
        if not checksum:
            part.unlink(missing_ok=True)
        # `load_part` returns True if an earlier part was continued, which may be of another file.
        if load_part(url, part, limit) and not is_complete(part, checksum):
            part.unlink()
            load_part(url, part, limit)
        accept(part, target, checksum)
    except (*NETWORK_ERRORS, ValueError) as error:  # ValueError: a FetchError, or not an address
        raise FetchError(f"{url}: {network_reason(error)}") from error
    except OSError as error:
        raise DataError(f"cannot write {part}: {error.strerror}") from error
    return target


def network_reason(error: Exception) -> object:
    """Why a host was not reached, without the wrapping of urllib."""
    if isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError):
        return getattr(error.reason, "strerror", None) or error.reason
    return error


def fetch_drive(source: Source, target: Path) -> Path:
    """Downloads a Google Drive file with gdown, which resumes interrupted downloads."""
    import gdown  # imports `requests`, which readers do not need otherwise
    from gdown.exceptions import DownloadError

    part = target.with_name(f"{target.name}.drive")  # gdown gives this name to a complete file only
    try:
        with lock_of(target).awaited(f"downloads {target}"):
            if target.is_file():
                return target
            gdown.download(
                id=source.drive_id,
                output=str(part),
                quiet=source.limit == LARGEST_LIST,
                resume=True,
                use_cookies=False,
                timeout=(TIMEOUT / 2, 3 * TIMEOUT),
            )
            check_limit(part.stat().st_size, source.limit, part)
            accept(part, target, source.checksum)
    # OSError includes the errors of `requests`.
    except (FetchError, DownloadError, OSError) as error:
        reason = drive_reason(error)
        raise FetchError(f"Google Drive file {source.drive_id}: {reason}") from error
    return target


def drive_reason(error: Exception) -> str:
    """Why a download from Google Drive failed, in one short line.

    Without a network the message of `requests` is a nest of classes and addresses.
    """
    from requests.exceptions import ConnectionError as NoConnection
    from requests.exceptions import Timeout

    if isinstance(error, Timeout):
        return "drive.google.com did not answer in time"
    if isinstance(error, NoConnection):
        return "no connection to drive.google.com; is there a network?"
    return one_line(error, 300)


def accept(part: Path, target: Path, checksum: str) -> None:
    """Gives a download its final name, or removes one with the wrong content."""
    try:
        verify(part, checksum, target.name)
    except FetchError:
        part.unlink()
        raise
    part.replace(target)


def verify(path: Path, checksum: str = "", name: str = "") -> None:
    """Refuses an empty file, a web page in place of the file (quota, login), and a wrong checksum.

    Archives without a checksum are checked when they are unpacked; a split file is checked here.

    Args:
        path: Path of the file.
        checksum: "md5:…" or "sha256:…"; "" = not known.
        name: Name of the requested file, whose ending says what it must hold; "" = anything.
    """
    with path.open("rb") as file:
        text = file.read(512).lstrip(b"\xef\xbb\xbf \t\r\n")
        if not text:
            raise FetchError(f"{path.name} is empty")
        if text.startswith(b"<"):
            raise FetchError(
                f"{path.name} is a web page, not the file: the host's quota is used up "
                f"or it requires a login; try again tomorrow or download it with a "
                f"browser"
            )
        if checksum:
            kind, _, expected = checksum.partition(":")
            file.seek(0)
            digest = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
            checksum_of_file = digest.hexdigest()
            if checksum_of_file != expected:
                raise FetchError(f"{path.name} has the wrong {kind} checksum: {checksum_of_file}, "
                                 f"expected {expected}")
    is_other_content = False
    if name.endswith(".json"):
        content = read_json(path)
        is_other_content = not isinstance(content, dict) or "test" not in content
    elif name.endswith(".txt"):
        is_other_content = text.startswith(b"{")
    if is_other_content:
        raise FetchError(f"the host did not send {name} but something else, perhaps a message; try "
                         f"again later or download it with a browser")


def load_part(url: str, part: Path, limit: int) -> bool:
    """Downloads a file to the end.

    Args:
        url: Address of the file.
        part: Path of the incomplete file. If it exists, the download is continued.
        limit: Bytes beyond which it is refused.

    Returns:
        Whether an earlier part was continued.
    """
    if not url.startswith(WEB):  # urllib would open local files
        raise FetchError("not a web address")
    have = 0  # bytes
    if part.is_file():
        have = part.stat().st_size
    headers = {"User-Agent": "promptcal", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        response = within(ANSWER_WITHIN, lambda: urllib.request.urlopen(request, timeout=TIMEOUT))
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        part.unlink()  # longer than the host's file, so not a part of it
        return load_part(url, part, limit)
    with response:
        if not response.url.startswith(("https://", f"{request.type}://")):
            raise FetchError(f"the host redirects to {one_line(response.url, 200)}, which is no "
                             f"{request.type} address")
        if response.status == HTTPStatus.OK:
            have = 0
        elif response.status != HTTPStatus.PARTIAL_CONTENT or not have:
            raise FetchError(
                f"the host answered with HTTP {response.status} {response.reason}, not "
                f"with the file"
            )
        total = None  # bytes of the file, which a host need not say
        if response.length is not None:
            total = have + response.length
        expected_range = f"bytes {have}-{(total or 0) - 1}/{total}"
        if have and response.headers.get("Content-Range") != expected_range:
            part.unlink()  # another part than the one requested
            return load_part(url, part, limit)
        save(response, part, have, total, limit)
    return have > 0


def within(seconds: float, work: Callable[[], T]) -> T:
    """The result of a function, or TimeoutError.

    A host that sends its headers byte by byte never exceeds the socket's time-out.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    return future.result()


def save(
    response: http.client.HTTPResponse, part: Path, have: int, total: int | None, limit: int,
) -> None:
    """Appends the body of an answer to a file.

    Stops a host that sends too much, too slowly, or too little.

    Args:
        response: The host's response.
        part: The file.
        have: Bytes that it already has.
        total: Bytes that it has at the end; None if the host does not say.
        limit: Bytes beyond which it is refused.
    """
    check_limit(max(total or 0, have), limit, part)
    bar = progress_bar(total, part.stem, "B", initial=have)
    window_began = time.monotonic()
    window_bytes = 0
    with bar, part.open("ab" if have else "wb") as file:
        while chunk := response.read1(CHUNK):  # what has arrived; `read` would wait for all of it
            file.write(chunk)
            bar.update(len(chunk))
            have += len(chunk)
            window_bytes += len(chunk)
            check_limit(have, limit, part)
            seconds = time.monotonic() - window_began
            if seconds < WINDOW:
                continue
            if window_bytes < SLOWEST * seconds:
                raise FetchError(
                    f"the host sends {window_bytes / seconds:.0f} bytes per second, which "
                    f"is too slow; run again to continue"
                )
            window_began = time.monotonic()
            window_bytes = 0
    if total is not None and have < total:
        raise ConnectionError(f"connection lost after {have} of {total} bytes; run again to "
                              f"continue")


def check_limit(size: int, limit: int, part: Path) -> None:
    """Refuses a download that is too large, and removes it."""
    if size > limit:
        part.unlink(missing_ok=True)
        raise FetchError(
            f"the host sends {size:,} bytes or more for {part.stem}, far too many: the "
            f"file has less than {limit:,}"
        )
