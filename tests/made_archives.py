"""Archives for tests: good ones, links, devices, chains of links that lead outside."""
import io
import random
import tarfile
import zipfile

import pytest
from promptcal.datasets.download.archives import ArchiveError, unpacked

from folders import names

FILES = {"images/a.jpg": random.Random(0).randbytes(20_000), "images/deep/b.jpg": b"b" * 700, "list.txt": b"a\nb\n"}


def tar_bytes(files, extra=(), mode="w"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in extra:
            tar.addfile(info)
    return buffer.getvalue()


def zip_bytes(files, extra=()):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        for info, content in (*files.items(), *extra):
            zipped.writestr(info, content)
    return buffer.getvalue()


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


def unix_zip_entry(name, mode):
    info = zipfile.ZipInfo(name)
    info.create_system = 3  # Unix
    info.external_attr = mode << 16
    return info


def refuse(tmp_path, content, message, name=""):
    """Unpacks `content`, which must be refused. Nothing may be left in the work folder or beside
    it."""
    if not name:
        name = "data.zip" if content.startswith(b"PK") else "data.tar"
    work = tmp_path / "work"
    work.mkdir()
    archive = tmp_path / name
    archive.write_bytes(content)
    with pytest.raises(ArchiveError, match=message) as caught, unpacked(archive, work):
        pytest.fail("a bad archive was unpacked")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    assert list(work.iterdir()) == []
    assert names(tmp_path) == [name, "work"]
    work.rmdir()
    archive.unlink()


def chain_of_links(outside):
    """The pattern of CVE-2025-4517: a chain of links, then a file through it.

    The chain is longer than a path may be. After it the standard library's `data` filter no longer
    sees where the next link leads.
    """
    steps = "abcdefghijklmnop"
    long_name = "d" * 247
    extra = []
    path = ""
    for step in steps:
        extra.append(special(f"{path}{long_name}", tarfile.DIRTYPE))
        extra.append(special(f"{path}{step}", tarfile.SYMTYPE, long_name))
        path += f"{long_name}/"
    top = f"{'/'.join(steps)}/{'l' * 254}"
    extra.append(special(top, tarfile.SYMTYPE, "../" * 16))
    extra.append(special("escape", tarfile.SYMTYPE, f"{top}/../../{outside}"))
    extra.append(special("escape/evil.txt", tarfile.REGTYPE))
    return tar_bytes({}, extra, "w:gz")
