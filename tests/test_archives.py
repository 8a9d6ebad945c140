"""Archives that are damaged or malicious write nothing outside their folder and leave nothing behind."""
import contextlib
import errno
import gzip
import io
import random
import stat
import tarfile
import tempfile
import warnings
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from promptcal.datasets.download import archives
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


def refuse(tmp_path, content, message, name=""):
    """Unpacks `content` in a work folder; whatever it says, nothing may be left there or beside it."""
    work = tmp_path / "work"
    work.mkdir()
    archive = tmp_path / (name or named(content))
    archive.write_bytes(content)
    with pytest.raises(ArchiveError, match=message) as caught, unpacked(archive, work):
        pytest.fail("a bad archive was unpacked")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    assert list(work.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([archive.name, "work"])


def named(content):
    """The name that belongs to the content."""
    return "data.zip" if content.startswith(b"PK") else "data.tar"


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


@pytest.mark.parametrize(("member", "message"), [
    (special("../evil.txt", tarfile.REGTYPE), "leads out of its folder"),
    (special("images/../../evil.txt", tarfile.REGTYPE), "leads out of its folder"),
    (special("/tmp/evil.txt", tarfile.REGTYPE), "leads out of its folder"),
    (special("C:\\evil.txt", tarfile.REGTYPE), "leads out of its folder"),
    (special("link", tarfile.SYMTYPE, "/etc/passwd"), "a link"),
    (special("link", tarfile.SYMTYPE, "../../outside"), "a link"),
    (special("link", tarfile.SYMTYPE, "images/a.jpg"), "a link"),  # even one that stays inside
    (special("link", tarfile.LNKTYPE, "images/a.jpg"), "a link"),
    (special("link", tarfile.LNKTYPE, "../outside"), "a link"),
    (special("null", tarfile.CHRTYPE), "a device"),
    (special("disk", tarfile.BLKTYPE), "a device"),
    (special("pipe", tarfile.FIFOTYPE), "a device"),
    (special("odd", b"Z"), "a device"),
    (special("images/a\nb.jpg", tarfile.REGTYPE), "control characters"),
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


def chain_of_links(outside):
    """The pattern of CVE-2025-4517: a chain of links longer than a path may be, after which the standard library's
    `data` filter no longer sees where the next link leads; then a file through it."""
    extra, path = [], ""
    for step in "abcdefghijklmnop":
        extra.append(special(f"{path}{'d' * 247}", tarfile.DIRTYPE))
        extra.append(special(f"{path}{step}", tarfile.SYMTYPE, "d" * 247))
        path += f"{'d' * 247}/"
    top = f"{'/'.join('abcdefghijklmnop')}/{'l' * 254}"
    extra.append(special(top, tarfile.SYMTYPE, "../" * 16))
    extra.append(special("escape", tarfile.SYMTYPE, f"{top}/../../{outside}"))
    extra.append(special("escape/evil.txt", tarfile.REGTYPE))
    return tar_bytes({}, extra, "w:gz")


@pytest.mark.parametrize("name", ["data.tar.gz", "data.zip", "data.tgz"])
def test_a_chain_of_links_leads_nowhere(name, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "here").mkdir()
    message = "refused: .* a link" if name != "data.zip" else "data.zip is no zip archive"
    refuse(tmp_path / "here", chain_of_links("../outside"), message, name)
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_link_that_somebody_else_made_is_not_followed(tmp_path):
    """What is checked is the real place of each file when it is written, not its name alone."""
    (tmp_path / "x.tar").write_bytes(tar_bytes(FILES))
    (tmp_path / "outside").mkdir()
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "images").symlink_to(tmp_path / "outside")
    with pytest.raises(ArchiveError, match="leads to .*outside, out of its folder"):
        archives.extract(tmp_path / "x.tar", tmp_path / "into")
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize(("content", "name"), [
    (tar_bytes(FILES), "data.zip"), (tar_bytes(FILES, mode="w:gz"), "data.zip"), (zip_bytes(FILES), "data.tar"),
    (zip_bytes(FILES), "data.tar.gz"), (tar_bytes(FILES), "data.jpg"), (tar_bytes(FILES) + zip_bytes(FILES), "d.tar"),
])
def test_an_archive_under_another_ending_is_refused(content, name, tmp_path):
    refuse(tmp_path, content, f"{name} is no ", name)


def tar_bomb(kind, size):
    buffer = io.BytesIO()
    with gzip.open(buffer, "wb", compresslevel=1) as packed:
        info = tarfile.TarInfo("images/a.jpg")
        info.size, info.type = size, kind
        packed.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(size >> 20):
            packed.write(bytes(1 << 20))
        packed.write(bytes(1 << 16))
    return buffer.getvalue()


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_tar_that_grows_too_much_is_refused(kind, tmp_path, monkeypatch):
    """As a file, and as a header, which the standard library would read into memory whole."""
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 1 << 20)
    refuse(tmp_path, tar_bomb(kind, 1 << 24), "refused: data.tar.gz (would unpack to|has a header of)", "data.tar.gz")


@pytest.mark.parametrize("honest", [True, False])
def test_a_zip_that_grows_too_much_is_refused(honest, tmp_path, monkeypatch):
    """By what it announces, or where it lies about that, by what arrives."""
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 1 << 20)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zipped:
        for number in range(40):
            zipped.writestr(f"images/{number}.jpg", bytes(1 << 20))
    content = buffer.getvalue()
    if not honest:
        content = content.replace((1 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    refuse(tmp_path, content, "refused: data.zip would unpack to" if honest else "data.zip is damaged .*CRC")


def test_too_many_members_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_MEMBERS", 50)
    for content in (tar_bytes({f"{n}.jpg": b"" for n in range(51)}), zip_bytes({f"{n}.jpg": b"" for n in range(51)})):
        here = tmp_path / named(content)[-3:]
        here.mkdir()
        refuse(here, content, "holds more than 50 files")


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


NAMES = ["a", "a/b", "a/b/c", "../x", "/etc/evil", "a/../../x", "./a", "..", ".", "", " ", "a\\..\\x", "C:x", "é\udcff"]
KINDS = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE,
         tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, b"Z"]
members = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from([*KINDS[:2] * 4, *KINDS]), st.sampled_from(NAMES),
                             st.integers(0, 600)), max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.booleans(), members, st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4))
def test_any_archive(zipped, entries, damage):
    """Whatever is in it: regular files within its folder, or one line and nothing at all."""
    infos = []
    for name, kind, target, size in entries:
        infos.append(special(name, kind, target))
        infos[-1].size = size if kind not in (tarfile.SYMTYPE, tarfile.LNKTYPE) else 0
    if zipped:
        modes = {tarfile.SYMTYPE: stat.S_IFLNK, tarfile.FIFOTYPE: stat.S_IFIFO, tarfile.DIRTYPE: stat.S_IFDIR}
        extra = [(unix_zip_entry(one.name.replace("\udcff", "?"), modes.get(one.type, stat.S_IFREG)), b"x" * one.size)
                 for one in infos]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # names that occur twice
            content = bytearray(zip_bytes({}, extra))
    else:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", errors="surrogateescape") as tar:
            for info in infos:
                tar.addfile(info, io.BytesIO(b"x" * info.size))
        content = bytearray(buffer.getvalue())
    for place, value in damage:
        content[int(place * (len(content) - 1))] = value
    with tempfile.TemporaryDirectory() as outside:
        work, archive = Path(outside, "work"), Path(outside, "data.zip" if zipped else "data.tar.gz")
        work.mkdir()
        archive.write_bytes(content)
        with contextlib.suppress(ArchiveError), unpacked(archive, work) as folder:
            assert all(path.is_dir() or stat.S_ISREG(path.lstat().st_mode) for path in folder.rglob("*"))
            assert list(work.iterdir()) == [folder]
        assert list(work.iterdir()) == [] and sorted(Path(outside).iterdir()) == sorted([archive, work])
