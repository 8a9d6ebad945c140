"""Downloads that resume, are checked, and appear under their final name only when they are whole."""
from __future__ import annotations

import hashlib
import logging
import tempfile
import urllib.error
from contextlib import ExitStack
from pathlib import Path

from ..utils.errors import ConfigError, DataError
from ..utils.files import read_json
from ..utils.locking import locked
from .sources import LARGEST, Source
from .transfer import NETWORK_ERRORS, TIMEOUT, FetchError, load_part, version_file

logger = logging.getLogger(__name__)

SPLITS = {"train", "val", "test"}  # keys of a split file
MAGIC = {".zip": b"PK", ".gz": b"\x1f\x8b", ".tgz": b"\x1f\x8b"}  # with which archives begin

__all__ = ["FetchError", "check_mirror", "fetch", "fetch_drive", "fetch_once", "fetch_url", "verify"]


def check_mirror(mirror: str) -> None:
    if mirror and not mirror.startswith(("http://", "https://")) and not Path(mirror).expanduser().is_dir():
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
            return fetch_url(url, target, source.checksum, source.limit)
        except FetchError as error:
            failures.append(str(error))
    if source.drive_id:
        try:
            return fetch_drive(source, target, quiet=False)
        except FetchError as error:
            failures.append(str(error))
    raise FetchError("; ".join(failures) or f"no address is known for {source.name}")


def fetch_once(url: str, folder: Path, checksum: str) -> Path:
    """The file of `url` in `folder`, fetched unless one of the right checksum is there. Processes that want it at the
    same moment wait for the one that fetches it."""
    target = folder / url.rsplit("/", 1)[-1]
    if is_whole(target, checksum):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(target.with_name(f".{target.name}.lock"), f"downloads {url}"):
            return target if is_whole(target, checksum) else fetch_url(url, target, checksum)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror}") from error


def is_whole(path: Path, checksum: str) -> bool:
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
    """Downloads `url` to `target`, going on from `<target>.part` where the server still has the same file."""
    part = target.with_name(f"{target.name}.part")
    try:
        resumed = load_part(url, part, limit)
        try:
            verify_or_remove(part, checksum)
        except FetchError:
            if not resumed:
                raise
            logger.info("%s: what was loaded earlier does not fit; starting again", url)
            load_part(url, part, limit)
            verify_or_remove(part, checksum)
        part.replace(target)
        version_file(part).unlink(missing_ok=True)
    except urllib.error.HTTPError as error:
        raise FetchError(f"{url}: HTTP {error.code} {error.reason}") from error
    except FetchError as error:
        raise FetchError(f"{url}: {error}") from error
    except (*NETWORK_ERRORS, ValueError) as error:  # ValueError: what is no address
        raise FetchError(f"{url}: {innermost(error)}") from error
    except OSError as error:
        raise DataError(f"cannot write {part}: {error.strerror}") from error
    return target


def fetch_drive(source: Source, target: Path, quiet: bool = True) -> Path:
    """Downloads a Google Drive file with gdown; quota pages and lost connections leave no file under `target`.

    Quietly, for the small files a reader lacks: nothing half-loaded stays, since nobody will come back for it, and
    several processes may want one file at once. Otherwise, for archives, a stopped download is resumed.
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
            if part.stat().st_size > source.limit:
                part.unlink()
                raise FetchError(f"what arrived is far too large: {source.name} has less than {source.limit:,} bytes")
            verify_or_remove(part, source.checksum)
            if not source.checksum and not looks_like(source.name, part):
                part.unlink()
                raise FetchError(f"what arrived is not {source.name} but something else, a page or an answer of the "
                                 f"host's perhaps; try again later or fetch it with a browser")
            part.replace(target)
    except FetchError as error:
        raise FetchError(f"Google Drive file {source.drive_id}: {error}") from error
    except (DownloadError, OSError) as error:  # OSError: among others what `requests`, which gdown uses, raises
        raise FetchError(f"Google Drive file {source.drive_id}: {innermost(error)}") from error
    return target


def looks_like(name: str, path: Path) -> bool:
    """Whether a file is of the kind that its name says: all that can be told of one without a checksum."""
    if name.endswith(".json"):
        content = read_json(path)
        return isinstance(content, dict) and bool(SPLITS & content.keys())
    with path.open("rb") as file:
        head = file.read(512)
    if name.endswith(".txt"):
        return b"\0" not in head and not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"<", b"{"))
    return head.startswith(MAGIC.get(Path(name).suffix, b""))


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
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
        if found != expected:
            raise FetchError(f"{path.name} has the wrong {kind} checksum: {found}, expected {expected}")
