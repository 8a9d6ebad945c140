"""Archives: unpacked whole or not at all; damaged ones are refused and leave nothing behind."""
import errno
import gzip
import io
import tarfile

import pytest
from made_archives import FILES, named, refuse, tar_bytes, zip_bytes
from promptcal.datasets.download import archives
from promptcal.datasets.download.archives import DISK_FAULTS, ArchiveError, unpacked


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tar(mode, tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(tar_bytes(FILES, mode=mode))  # browsers unpack some and keep the name
    with unpacked(tmp_path / "x.tar.gz", tmp_path) as folder:
        assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    assert not folder.exists()


def test_zip(tmp_path):
    (tmp_path / "x.zip").write_bytes(zip_bytes(FILES))
    with unpacked(tmp_path / "x.zip", tmp_path) as folder:
        assert {name: (folder / name).read_bytes() for name in FILES} == FILES


def test_an_archive_in_an_archive(tmp_path):
    (tmp_path / "x.zip").write_bytes(zip_bytes({"caltech/inner.tar.gz": tar_bytes(FILES, mode="w:gz")}))
    with unpacked(tmp_path / "x.zip", tmp_path, inner="caltech/inner.tar.gz") as folder:
        assert (folder / "images" / "a.jpg").read_bytes() == FILES["images/a.jpg"]
    with pytest.raises(ArchiveError, match=r"x.zip does not hold other.tar; at its top are: caltech"), \
            unpacked(tmp_path / "x.zip", tmp_path, inner="other.tar"):
        pytest.fail("there is no such archive")


def test_each_process_unpacks_into_its_own_folder(tmp_path):
    (tmp_path / "x.tar").write_bytes(tar_bytes(FILES))
    with unpacked(tmp_path / "x.tar", tmp_path) as one, unpacked(tmp_path / "x.tar", tmp_path) as other:
        assert one != other
        assert sorted(path.name for path in (one / "images").iterdir()) == ["a.jpg", "deep"]


def test_files_that_something_else_takes_away_are_missed(tmp_path, monkeypatch):
    (tmp_path / "x.tar").write_bytes(tar_bytes(FILES))
    honest = archives.extract

    def beside_another_process(archive, into):
        count = honest(archive, into)
        (into / "list.txt").unlink()
        return count

    monkeypatch.setattr(archives, "extract", beside_another_process)
    with pytest.raises(ArchiveError, match="3 files were unpacked, but 2 are there"), \
            unpacked(tmp_path / "x.tar", tmp_path):
        pytest.fail("half of it was taken for whole")
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


def test_a_file_that_is_in_a_tar_twice_is_the_later_one(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for content in (b"old", b"new one"):
            info = tarfile.TarInfo("images/a.jpg")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    (tmp_path / "x.tar").write_bytes(buffer.getvalue())
    with unpacked(tmp_path / "x.tar", tmp_path) as folder:
        assert (folder / "images" / "a.jpg").read_bytes() == b"new one"


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
    refuse(tmp_path, content, r"data.(tar|zip) is (damaged or cut short|cut short|no zip archive|empty)")


@pytest.mark.parametrize("code", DISK_FAULTS, ids=errno.errorcode.get)
@pytest.mark.parametrize("content", [tar_bytes(FILES), zip_bytes(FILES)], ids=["tar", "zip"])
def test_a_disk_that_refuses_is_not_blamed_on_the_archive(content, code, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(code, "no")

    monkeypatch.setattr(archives.Target, "write", refuse)
    (tmp_path / named(content)).write_bytes(content)
    with pytest.raises(OSError) as caught, unpacked(tmp_path / named(content), tmp_path):
        pytest.fail("nothing could be written")
    assert caught.value.errno == code
    assert [path.name for path in tmp_path.iterdir()] == [named(content)]


def test_names_that_no_disk_takes_are_the_archives_fault(tmp_path):
    refuse(tmp_path, tar_bytes({"x" * 300: b"a"}), "is damaged or cut short .*name too long")
