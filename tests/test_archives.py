"""Archives are unpacked completely, inside their folder, or not at all."""
import gzip
import io
import stat
import tarfile
import tempfile
import warnings
import zipfile
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from promptcal.datasets.download import archives
from promptcal.datasets.download.archives import ArchiveError, unpacked

from made_archives import FILES, chain_of_links, refuse, special, tar_bytes, unix_zip_entry, zip_bytes

OUT = "a name that leads out of its folder"
SPECIAL = "a link or a device"
ZIP_MODES = {  # others are regular files
    tarfile.SYMTYPE: stat.S_IFLNK, tarfile.FIFOTYPE: stat.S_IFIFO, tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.CHRTYPE: stat.S_IFCHR, tarfile.BLKTYPE: stat.S_IFBLK,
}


@pytest.mark.parametrize(("name", "content", "inner"), [
    ("x.tar", tar_bytes(FILES), ""),
    ("x.tar.gz", tar_bytes(FILES, mode="w:gz"), ""),
    ("x.tar.gz", tar_bytes(FILES), ""),  # browsers decompress some and keep the name
    ("x.zip", zip_bytes(FILES), ""),
    ("x.zip", zip_bytes({"a/b.tgz": tar_bytes(FILES, mode="w:gz")}), "a/b.tgz"),
])
def test_good_archives(name, content, inner, tmp_path):
    archive = tmp_path / name
    archive.write_bytes(content)
    with unpacked(archive, tmp_path, inner) as folder, unpacked(archive, tmp_path, inner) as other:
        for path, expected in FILES.items():
            assert (folder / path).read_bytes() == expected
        assert other != folder  # each process has its own
    assert list(tmp_path.iterdir()) == [archive]


def corrupt_zip():
    content = bytearray(zip_bytes(FILES))
    content[content.index(FILES["images/a.jpg"]) + 100] ^= 0xFF
    return bytes(content)


@pytest.mark.parametrize("content", [
    tar_bytes(FILES, mode="w:gz")[:-500],
    gzip.compress(tar_bytes(FILES)[: 512 * 20]),
    tar_bytes(FILES)[:5000],  # within a file
    tar_bytes(FILES)[: 512 + 20_480],  # exactly between two files
    zip_bytes(FILES)[:-100],
    corrupt_zip(),
    tar_bytes({"x" * 300: b"a"}),  # a name that no disk accepts
    b"<html>quota exceeded</html>",
    b"",
],
ids=["gz", "tar in gz", "in a file", "between files", "zip", "bad byte", "name", "page", "empty"])
def test_damaged_archives_are_refused(content, tmp_path):
    refuse(tmp_path, content, r"data.(tar|zip) is (damaged or )?incomplete")


@pytest.mark.parametrize(("name", "kind", "target", "message"), [
    ("../evil.txt", tarfile.REGTYPE, "", OUT),
    ("images/../../evil.txt", tarfile.REGTYPE, "", OUT),
    ("/tmp/evil.txt", tarfile.REGTYPE, "", OUT),
    ("C:\\evil.txt", tarfile.REGTYPE, "", OUT),
    ("link", tarfile.SYMTYPE, "/etc/passwd", SPECIAL),
    ("link", tarfile.SYMTYPE, "images/a.jpg", SPECIAL),  # even one that stays inside
    ("link", tarfile.LNKTYPE, "images/a.jpg", SPECIAL),
    ("odd", tarfile.CHRTYPE, "", SPECIAL),
    ("odd", tarfile.BLKTYPE, "", SPECIAL),
    ("odd", tarfile.FIFOTYPE, "", SPECIAL),
    ("odd", b"Z", "", SPECIAL),
    ("images/a\nb.jpg", tarfile.REGTYPE, "", "a name with control characters"),
])
def test_malicious_members_are_refused(name, kind, target, message, tmp_path):
    for mode in ("w", "w:gz"):
        content = tar_bytes(FILES, [special(name, kind, target)], mode)
        refuse(tmp_path, content, f"refused: data.tar contains {message}")
    if kind not in (tarfile.LNKTYPE, b"Z"):  # which zips do not have
        entry = unix_zip_entry(name, ZIP_MODES.get(kind, stat.S_IFREG))
        refuse(tmp_path, zip_bytes(FILES, [(entry, target)]), f"refused: data.zip contains {message}")


@pytest.mark.parametrize(("name", "message"), [
    ("data.tar.gz", "refused: .* a link"),
    ("data.tgz", "refused: .* a link"),
    ("data.zip", "data.zip is damaged .*not a zip file"),
])
def test_a_chain_of_links_leads_nowhere(name, message, tmp_path):
    outside = tmp_path / "outside"
    here = tmp_path / "here"
    outside.mkdir()
    here.mkdir()
    refuse(here, chain_of_links("../outside"), message, name)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_tar_that_grows_too_much_is_refused(kind, tmp_path, monkeypatch):
    """As a file, and as a header, which the standard library would read into memory."""
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 1 << 20)
    info = special("images/a.jpg", kind)
    info.size = 1 << 24
    content = info.tobuf(tarfile.GNU_FORMAT) + bytes((1 << 24) + (1 << 16))
    message = "refused: .* (would unpack to|has a header of)"
    refuse(tmp_path, gzip.compress(content, compresslevel=1), message, "data.tar.gz")


@pytest.mark.parametrize(("stated_size", "message"), [
    (1 << 20, "refused: data.zip would unpack to"),
    (100, "data.zip is damaged .*CRC"),
])
def test_a_zip_that_grows_too_much_is_refused(stated_size, message, tmp_path, monkeypatch):
    """By the sizes it states, or if they are wrong, by its data."""
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 1 << 20)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zipped:
        for number in range(40):
            zipped.writestr(f"images/{number}.jpg", bytes(1 << 20))
    true_bytes = (1 << 20).to_bytes(4, "little")
    content = buffer.getvalue().replace(true_bytes, stated_size.to_bytes(4, "little"))
    refuse(tmp_path, content, message)


def test_too_many_members_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_MEMBERS", 50)
    files = {f"{n}.jpg": b"" for n in range(51)}
    for content in (tar_bytes(files), zip_bytes(files)):
        refuse(tmp_path, content, "contains more than 50 files")


LINKS = (tarfile.SYMTYPE, tarfile.LNKTYPE)
ODD_KINDS = (*LINKS, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, b"Z")
names = st.sampled_from([
    "a", "a/b", "a/b/c", "../x", "/etc/evil", "a/../../x", "./a", "..", ".", "", " ", "a\\..\\x",
    "C:x", "é\udcff",
])
# Files and folders are more frequent than the rest.
kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE] * 5 + list(ODD_KINDS))
members = st.lists(st.tuples(names, kinds, names, st.integers(0, 600)), max_size=5)
changed_bytes = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4)


def tar_gz_of(infos: list[tarfile.TarInfo]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", errors="surrogateescape") as tar:
        for info in infos:
            tar.addfile(info, io.BytesIO(b"x" * info.size))
    return buffer.getvalue()


def zip_of(infos: list[tarfile.TarInfo]) -> bytes:
    entries = []
    for info in infos:
        mode = ZIP_MODES.get(info.type, stat.S_IFREG)
        name = info.name.replace("\udcff", "?")
        entries.append((unix_zip_entry(name, mode), b"x" * info.size))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names that occur twice
        return zip_bytes({}, entries)


@settings(max_examples=150, deadline=None)
@given(st.booleans(), members, changed_bytes)
def test_any_archive(zipped, entries, damage):
    """Regular files within its folder, or one line and nothing at all. What is harmless is
    accepted."""
    infos = []
    harmless = bool(entries) and not damage
    for name, kind, target, size in entries:
        info = special(name, kind, target)
        if kind not in LINKS:
            info.size = size
        infos.append(info)
        if name != "a" or kind != tarfile.REGTYPE:
            harmless = False
    content = bytearray(zip_of(infos) if zipped else tar_gz_of(infos))
    for position, value in damage:
        content[int(position * (len(content) - 1))] = value

    with tempfile.TemporaryDirectory() as outside:
        work = Path(outside, "work")
        work.mkdir()
        archive = Path(outside, "data.zip" if zipped else "data.tar.gz")
        archive.write_bytes(content)
        refusal = nullcontext() if harmless else suppress(ArchiveError)
        with refusal, unpacked(archive, work) as folder:
            for path in folder.rglob("*"):
                assert path.is_dir() or stat.S_ISREG(path.lstat().st_mode)
            assert list(work.iterdir()) == [folder]
        assert list(work.iterdir()) == []
        assert set(Path(outside).iterdir()) == {archive, work}
