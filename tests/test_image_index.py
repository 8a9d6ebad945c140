"""Digests of image files by content, and the index that stores them, once per file."""
from __future__ import annotations

import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from promptcal.datasets import image_index
from promptcal.datasets.image_index import ImageIndex, Stamp, hash_file, hash_text, new_hash

from common import make_image_folder
from folders import names

OLD = 1_600_000_000  # seconds since 1970


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Twelve images. Their times of change are those of this test, so they are young."""
    folder = make_image_folder(tmp_path / "images")
    return [str(path) for path in sorted(folder.rglob("*.png"))]


@pytest.fixture
def settled(files: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The images an hour later."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3600 * 10**9)
    return files


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read for their digests."""
    file_names = []

    def counting(path: str) -> image_index.ImageHash:
        file_names.append(Path(path).name)
        return hash_file(path)

    monkeypatch.setattr(image_index, "hash_file", counting)
    return file_names


def digests(index: ImageIndex, files: list[str], image_folder: Path) -> list[bytes]:
    return [image.digest for image in index.look_up(files, image_folder)]


def test_a_file_is_read_once_and_its_digest_is_that_of_its_bytes(settled, read_files, tmp_path):
    expected = [new_hash(Path(file).read_bytes()).digest() for file in settled]
    assert len(set(expected)) == 12 and len(expected[0]) == 16
    for _ in range(2):
        assert digests(ImageIndex(tmp_path / "cache"), settled, tmp_path / "images") == expected
        assert len(read_files) == 12
    (index_file,) = (tmp_path / "cache").iterdir()
    assert index_file.name.startswith("images-")


def test_young_files_are_not_kept(files, read_files, tmp_path):
    for _ in range(2):
        digests(ImageIndex(tmp_path / "cache"), files, tmp_path / "images")
    assert len(read_files) == 24 and not (tmp_path / "cache").exists()


@pytest.mark.parametrize("how", ["written", "replaced", "moved", "linked"])
def test_another_file_of_the_same_name_size_and_date_is_hashed_again(settled, tmp_path, how):
    index = ImageIndex(tmp_path / "cache")
    image_folder = tmp_path / "images"
    victim = Path(settled[4])
    os.utime(victim, (OLD, OLD))
    before = digests(index, settled, image_folder)
    time.sleep(0.02)  # the file system's clock ticks: the fixture says that an hour has passed
    other = tmp_path / "other.png"
    other.write_bytes(bytes(len(victim.read_bytes())))
    os.utime(other, (OLD, OLD))
    if how == "written":
        victim.write_bytes(other.read_bytes())
        os.utime(victim, (OLD, OLD))
    elif how == "replaced":
        victim.unlink()
        victim.write_bytes(other.read_bytes())
        os.utime(victim, (OLD, OLD))
    elif how == "moved":
        other.replace(victim)
    else:
        victim.unlink()
        victim.symlink_to(other)
    after = digests(index, settled, image_folder)
    assert after[4] == new_hash(victim.read_bytes()).digest() != before[4]
    assert after[:4] + after[5:] == before[:4] + before[5:]


def test_folders_that_change_places_on_a_coarse_clock(settled, tmp_path, monkeypatch):
    """Files of equal size that were made within one tick have the same times."""
    exact = Stamp.of

    def coarse(status: os.stat_result) -> Stamp:
        return exact(status)._replace(mtime_ns=OLD * 10**9, ctime_ns=OLD * 10**9)

    monkeypatch.setattr(Stamp, "of", coarse)
    folder = tmp_path / "images"
    other = tmp_path / "other"
    for file in settled:
        copy = other / Path(file).relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(Path(file).read_bytes()[:-1] + b"?")
    index = ImageIndex(tmp_path / "cache")
    before = digests(index, settled, folder)
    folder.rename(tmp_path / "away")
    other.rename(folder)
    assert not set(before) & set(digests(index, settled, folder))


@pytest.mark.parametrize("damage", [b"", b"\n", b"{}", b"\x00\xff", None])
def test_a_damaged_index_is_made_again(settled, read_files, tmp_path, damage):
    index = ImageIndex(tmp_path / "cache")
    image_folder = tmp_path / "images"
    first = digests(index, settled, image_folder)
    (index_file,) = (tmp_path / "cache").iterdir()
    index_bytes = index_file.read_bytes()
    if damage is None:  # one digit of one digest
        damage = index_bytes.replace(first[3].hex().encode(), first[4].hex().encode())
        assert damage != index_bytes
    index_file.write_bytes(damage)
    assert digests(index, settled, image_folder) == first and len(read_files) == 24
    assert index_file.read_bytes() == index_bytes


def test_an_index_that_cannot_be_kept_is_no_obstacle(settled, tmp_path, monkeypatch):
    expected = digests(ImageIndex(None), settled, tmp_path)
    (tmp_path / "file").write_text("not a folder")
    assert digests(ImageIndex(tmp_path / "file" / "cache"), settled, tmp_path) == expected
    (tmp_path / "closed").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    assert digests(ImageIndex(tmp_path / "closed"), settled, tmp_path) == expected
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # of a user without a home
    assert ImageIndex().folder is None and digests(ImageIndex(), settled, tmp_path) == expected
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert digests(ImageIndex(), settled, tmp_path) == expected
    (index_file,) = (tmp_path / "home" / "promptcal").iterdir()
    assert index_file.name.startswith("images-")
    assert names(tmp_path / "images") == ["kind_a", "kind_b", "kind_c", "kind_d"]


def test_several_writers_leave_a_whole_index(settled, tmp_path):
    """Each adds some files. What the last one wrote can be read, and no digest in it is wrong."""
    def add(start: int) -> None:
        digests(ImageIndex(tmp_path / "cache"), settled[start : start + 4], tmp_path)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(add, list(range(9)) * 3))
    (index_file,) = (tmp_path / "cache").iterdir()
    entries = image_index.read_index(index_file)
    assert len(entries) >= 4
    for path, image in entries.items():
        assert image.digest == hash_file(path).digest


def test_what_cannot_be_read_has_an_identity_that_a_repair_changes(tmp_path):
    """Missing, a folder and a pipe: no exception, and nothing waits."""
    missing = tmp_path / "missing.png"
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    paths = [str(missing), str(tmp_path / "folder.png"), str(tmp_path / "pipe.png")]
    before = ImageIndex(None).look_up(paths, tmp_path)
    assert [image.is_missing for image in before] == [True, False, False]
    assert [image.stamp for image in before] == [None, None, None]
    assert len({image.digest for image in before}) == 3
    assert before == ImageIndex(None).look_up(paths, tmp_path)
    missing.write_bytes(b"here")
    (after,) = ImageIndex(None).look_up(paths[:1], tmp_path)
    assert after.digest == new_hash(b"here").digest() and not after.is_missing


def test_a_file_that_is_written_while_it_is_hashed(tmp_path, monkeypatch):
    """The digest is of the bytes that the stamp belongs to."""
    file = tmp_path / "growing.png"
    file.write_bytes(b"begin")
    real = image_index.hashlib.file_digest
    calls = []

    def digest(opened, make):
        content = real(opened, make)
        if not calls:
            file.write_bytes(b"begin and end")
        calls.append(1)
        return content

    monkeypatch.setattr(image_index.hashlib, "file_digest", digest)
    image = hash_file(str(file))
    assert image.digest == new_hash(b"begin and end").digest()
    assert image.stamp == Stamp.of(file.stat())


def test_a_hash_depends_on_where_a_text_ends():
    assert hash_text("a", "bc") != hash_text("ab", "c") != hash_text("abc")
