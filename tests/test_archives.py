"""Archives that are damaged or malicious write nothing outside their folder and leave nothing behind."""
import errno
import gzip
import io
import random
import stat
import tarfile
import zipfile

import pytest
from promptcal.datasets.download.archives import DISK_FAULTS, ArchiveError, unpacked

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
        for name, content in files.items():
            zipped.writestr(name, content)
        for info, content in extra:
            zipped.writestr(info, content)
    return buffer.getvalue()


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def unix_zip_entry(name, mode):
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


def refuse(tmp_path, content, message):
    """Unpacks `content` in a work folder; whatever it says, nothing may be left there or beside it."""
    work = tmp_path / "work"
    work.mkdir()
    archive = tmp_path / "data.archive"
    archive.write_bytes(content)
    with pytest.raises(ArchiveError, match=message), unpacked(archive, work):
        pytest.fail("a bad archive was unpacked")
    assert list(work.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.archive", "work"]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tar(mode, tmp_path):
    (tmp_path / "x.zip").write_bytes(tar_bytes(FILES, mode=mode))  # the content decides, not the name
    with unpacked(tmp_path / "x.zip", tmp_path) as folder:
        assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert not folder.exists()


def test_zip(tmp_path):
    (tmp_path / "x.tar").write_bytes(zip_bytes(FILES))
    with unpacked(tmp_path / "x.tar", tmp_path) as folder:
        assert {name: (folder / name).read_bytes() for name in FILES} == FILES


def test_an_archive_in_an_archive(tmp_path):
    (tmp_path / "x.zip").write_bytes(zip_bytes({"caltech/inner.tar.gz": tar_bytes(FILES, mode="w:gz")}))
    with unpacked(tmp_path / "x.zip", tmp_path, inner="caltech/inner.tar.gz") as folder:
        assert (folder / "images" / "a.jpg").read_bytes() == FILES["images/a.jpg"]
    with pytest.raises(ArchiveError, match=r"x.zip does not hold other.tar; at its top are: caltech"), \
            unpacked(tmp_path / "x.zip", tmp_path, inner="other.tar"):
        pytest.fail("there is no such archive")


def test_what_a_killed_run_left_does_not_mix_in(tmp_path):
    (tmp_path / "x.tar").write_bytes(tar_bytes(FILES))
    (tmp_path / "unpacking-x.tar" / "images").mkdir(parents=True)
    (tmp_path / "unpacking-x.tar" / "images" / "half.jpg").touch()
    with unpacked(tmp_path / "x.tar", tmp_path) as folder:
        assert sorted(path.name for path in (folder / "images").iterdir()) == ["a.jpg", "deep"]


@pytest.mark.parametrize(("member", "message"), [
    (special("../evil.txt", tarfile.REGTYPE), "leads out of its folder"),
    (special("images/../../evil.txt", tarfile.REGTYPE), "leads out of its folder"),
    (special("/tmp/evil.txt", tarfile.REGTYPE), "leads out of its folder"),
    (special("C:\\evil.txt", tarfile.REGTYPE), "leads out of its folder"),
    (special("link", tarfile.SYMTYPE, "/etc/passwd"), "unsafe"),
    (special("link", tarfile.SYMTYPE, "../../outside"), "unsafe"),
    (special("link", tarfile.LNKTYPE, "../outside"), "unsafe"),
    (special("null", tarfile.CHRTYPE), "unsafe"),
    (special("disk", tarfile.BLKTYPE), "unsafe"),
    (special("pipe", tarfile.FIFOTYPE), "unsafe"),
])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_malicious_tars_are_refused(member, message, mode, tmp_path):
    refuse(tmp_path, tar_bytes(FILES, [member], mode), f"refused: .*{message}")


@pytest.mark.parametrize(("name", "mode", "message"), [
    ("../evil.txt", stat.S_IFREG, "leads out of its folder"),
    ("/tmp/evil.txt", stat.S_IFREG, "leads out of its folder"),
    ("images/../../evil.txt", stat.S_IFREG, "leads out of its folder"),
    ("..\\evil.txt", stat.S_IFREG, "leads out of its folder"),
    ("C:/evil.txt", stat.S_IFREG, "leads out of its folder"),
    ("link", stat.S_IFLNK, "a link or a device"),
    ("null", stat.S_IFCHR, "a link or a device"),
    ("pipe", stat.S_IFIFO, "a link or a device"),
])
def test_malicious_zips_are_refused(name, mode, message, tmp_path):
    refuse(tmp_path, zip_bytes(FILES, [(unix_zip_entry(name, mode), "/etc/passwd")]), f"refused: .*{message}")


def corrupt_zip():
    content = bytearray(zip_bytes(FILES))
    content[content.index(FILES["images/a.jpg"]) + 100] ^= 0xFF
    return bytes(content)


@pytest.mark.parametrize("content", [
    tar_bytes(FILES, mode="w:gz")[:-500],
    tar_bytes(FILES, mode="w:xz")[:-500],
    gzip.compress(tar_bytes(FILES)[:512 * 20]),
    tar_bytes(FILES)[:5000],  # within a file
    tar_bytes(FILES)[:512 + 20_480],  # exactly between two files
    zip_bytes(FILES)[:-100],
    corrupt_zip(),
    tar_bytes({}),
    b"<html>quota exceeded</html>",
    b"",
], ids=["gz", "xz", "tar in gz", "in a file", "between files", "zip", "bad byte", "no files", "web page", "empty"])
def test_damaged_archives_are_refused(content, tmp_path):
    refuse(tmp_path, content, r"data.archive is (damaged or cut short|cut short|no tar or zip archive|empty)")


@pytest.mark.parametrize("code", DISK_FAULTS, ids=errno.errorcode.get)
@pytest.mark.parametrize("content", [tar_bytes(FILES), zip_bytes(FILES)], ids=["tar", "zip"])
def test_a_disk_that_refuses_is_not_blamed_on_the_archive(content, code, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(code, "no")

    monkeypatch.setattr(tarfile, "copyfileobj", refuse)
    monkeypatch.setattr("shutil.copyfileobj", refuse)
    (tmp_path / "data.archive").write_bytes(content)
    with pytest.raises(OSError) as caught, unpacked(tmp_path / "data.archive", tmp_path):
        pytest.fail("nothing could be written")
    assert caught.value.errno == code
    assert [path.name for path in tmp_path.iterdir()] == ["data.archive"]


def test_names_that_no_disk_takes_are_the_archives_fault(tmp_path):
    refuse(tmp_path, tar_bytes({"x" * 300: b"a"}), "is damaged or cut short .*name too long")
