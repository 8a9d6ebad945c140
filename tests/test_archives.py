"""Archives are unpacked completely, inside their folder, or not at all."""
import contextlib
import gzip
import io
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
from promptcal.datasets.download.archives import ArchiveError, unpacked

from made_archives import FILES, chain_of_links, refuse, special, tar_bytes, unix_zip_entry, zip_bytes

OUT, SPECIAL = "a name that leads out of its folder", "a link or a device"


@pytest.mark.parametrize(("name", "content", "inner"), [
    ("x.tar", tar_bytes(FILES), ""), ("x.tar.gz", tar_bytes(FILES, mode="w:gz"), ""),
    ("x.tar.gz", tar_bytes(FILES), ""),  # browsers decompress some and keep the name
    ("x.zip", zip_bytes(FILES), ""), ("x.zip", zip_bytes({"a/b.tgz": tar_bytes(FILES, mode="w:gz")}), "a/b.tgz"),
])
def test_good_archives(name, content, inner, tmp_path):
    (tmp_path / name).write_bytes(content)
    with unpacked(tmp_path / name, tmp_path, inner) as folder, unpacked(tmp_path / name, tmp_path, inner) as other:
        assert {name: (folder / name).read_bytes() for name in FILES} == FILES
        assert other != folder  # each process has its own
    assert [path.name for path in tmp_path.iterdir()] == [name]


def corrupt_zip():
    content = bytearray(zip_bytes(FILES))
    content[content.index(FILES["images/a.jpg"]) + 100] ^= 0xFF
    return bytes(content)


@pytest.mark.parametrize("content", [
    tar_bytes(FILES, mode="w:gz")[:-500],
    gzip.compress(tar_bytes(FILES)[:512 * 20]),
    tar_bytes(FILES)[:5000],  # within a file
    tar_bytes(FILES)[:512 + 20_480],  # exactly between two files
    zip_bytes(FILES)[:-100],
    corrupt_zip(),
    tar_bytes({"x" * 300: b"a"}),  # a name that no disk accepts
    b"<html>quota exceeded</html>",
    b"",
], ids=["gz", "tar in gz", "in a file", "between files", "zip", "bad byte", "name", "web page", "empty"])
def test_damaged_archives_are_refused(content, tmp_path):
    refuse(tmp_path, content, r"data.(tar|zip) is (damaged or )?incomplete")


@pytest.mark.parametrize(("member", "message"), [
    *((special(name, tarfile.REGTYPE), OUT) for name in (
        "../evil.txt", "images/../../evil.txt", "/tmp/evil.txt", "C:\\evil.txt")),
    *((special("link", kind, target), SPECIAL) for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) for target in (
        "/etc/passwd", "../../outside", "images/a.jpg")),  # even one that stays inside
    *((special("odd", kind), SPECIAL) for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"Z")),
    (special("images/a\nb.jpg", tarfile.REGTYPE), "control characters"),
])
def test_malicious_tars_are_refused(member, message, tmp_path):
    for mode in ("w", "w:gz"):
        refuse(tmp_path, tar_bytes(FILES, [member], mode), f"refused: data.tar contains .*{message}")


@pytest.mark.parametrize(("name", "mode", "message"), [
    *((name, stat.S_IFREG, OUT) for name in ("../evil.txt", "/tmp/evil.txt", "..\\evil.txt", "C:/evil.txt")),
    *(("odd", mode, SPECIAL) for mode in (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO)),
])
def test_malicious_zips_are_refused(name, mode, message, tmp_path):
    refuse(tmp_path, zip_bytes(FILES, [(unix_zip_entry(name, mode), "/etc/passwd")]), f"data.zip contains {message}")


@pytest.mark.parametrize("name", ["data.tar.gz", "data.zip", "data.tgz"])
def test_a_chain_of_links_leads_nowhere(name, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "here").mkdir()
    message = "refused: .* a link" if name != "data.zip" else "data.zip is damaged .*not a zip file"
    refuse(tmp_path / "here", chain_of_links("../outside"), message, name)
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_tar_that_grows_too_much_is_refused(kind, tmp_path, monkeypatch):
    """As a file, and as a header, which the standard library would read into memory."""
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 1 << 20)
    buffer = io.BytesIO()
    with gzip.open(buffer, "wb", compresslevel=1) as packed:
        info = special("images/a.jpg", kind)
        info.size = 1 << 24
        packed.write(info.tobuf(tarfile.GNU_FORMAT) + bytes((1 << 24) + (1 << 16)))
    refuse(tmp_path, buffer.getvalue(), "refused: .* (would unpack to|has a header of)", "data.tar.gz")


@pytest.mark.parametrize("honest", [True, False])
def test_a_zip_that_grows_too_much_is_refused(honest, tmp_path, monkeypatch):
    """By the sizes it states, or if they are wrong, by its data."""
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
    files = {f"{n}.jpg": b"" for n in range(51)}
    for content in (tar_bytes(files), zip_bytes(files)):
        refuse(tmp_path, content, "contains more than 50 files")


NAMES = ["a", "a/b", "a/b/c", "../x", "/etc/evil", "a/../../x", "./a", "..", ".", "", " ", "a\\..\\x", "C:x", "é\udcff"]
KINDS = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE,
         tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, b"Z"]
members = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from([*KINDS[:2] * 4, *KINDS]), st.sampled_from(NAMES),
                             st.integers(0, 600)), max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.booleans(), members, st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4))
def test_any_archive(zipped, entries, damage):
    """Regular files within its folder, or one line and nothing at all; what is harmless is accepted."""
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
    harmless = entries and not damage and all(
        name in ("a", "é") and kind == tarfile.REGTYPE for name, kind, _, _ in entries)
    with tempfile.TemporaryDirectory() as outside:
        work, archive = Path(outside, "work"), Path(outside, "data.zip" if zipped else "data.tar.gz")
        work.mkdir()
        archive.write_bytes(content)
        with contextlib.nullcontext() if harmless else contextlib.suppress(ArchiveError), \
                unpacked(archive, work) as folder:
            assert all(path.is_dir() or stat.S_ISREG(path.lstat().st_mode) for path in folder.rglob("*"))
            assert list(work.iterdir()) == [folder]
        assert list(work.iterdir()) == [] and sorted(Path(outside).iterdir()) == sorted([archive, work])
