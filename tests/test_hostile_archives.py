"""Archives that want to write outside their folder, or to fill the disk, write nothing."""
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
from made_archives import FILES, chain_of_links, named, refuse, special, tar_bytes, unix_zip_entry, zip_bytes
from promptcal.datasets.download import archives
from promptcal.datasets.download.archives import ArchiveError, unpacked


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
