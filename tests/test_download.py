"""Benchmarks brought to a data root: from archives made here, a local server, and hosts that are gone."""
import dataclasses
import json
import logging
import os
import resource
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import pytest
from data_roots import IMAGE_DIRS, build
from file_server import serving
from hosted_sets import TOOL, hosted, run_download
from made_archives import chain_of_links
from promptcal.datasets import build_dataset
from promptcal.datasets.download.install import (
    LOCK,
    download_benchmark,
    download_splits,
    fetch_archive,
)
from promptcal.datasets.utils.locking import locked
from promptcal.tools import download

pytestmark = pytest.mark.usefixtures("no_internet")


@pytest.mark.parametrize("name", [name for name in IMAGE_DIRS if name != "ImageNet"])
def test_laid_out_as_the_reader_expects(name, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    cls, archives = hosted(name, tmp_path, monkeypatch)
    before = {path: path.stat().st_mtime_ns for path in archives.iterdir()}
    root = tmp_path / "root"
    assert download_benchmark(cls, root, str(archives))
    assert f"{cls.key()}: ready, " in caplog.text
    assert len(build_dataset(name, root).test) >= 4
    assert [path.name for path in root.iterdir()] == [cls.folder]  # no work folder left
    assert before == {path: path.stat().st_mtime_ns for path in archives.iterdir()}  # a mirror is left alone
    caplog.clear()
    assert download_benchmark(cls, root, "")
    assert f"{cls.key()}: already there, " in caplog.text and f" classes in {root / cls.folder}" in caplog.text


@pytest.mark.parametrize(("name", "fault"), [
    ("DescribableTextures", "empty"), ("DescribableTextures", "incomplete"), ("DescribableTextures", "nested"),
    ("StanfordCars", "empty"), ("StanfordCars", "nested"), ("FGVCAircraft", "incomplete"), ("ImageNetA", "empty"),
    ("ImageNetA", "nested"), ("ImageNetV2", "nested"),
])
def test_what_is_there_but_cannot_be_read_is_not_done(name, fault, tmp_path, monkeypatch, caplog):
    """It is left alone, and the way out works: move it away and run again."""
    cls, archives = hosted(name, tmp_path, monkeypatch)
    root = tmp_path / "root"
    assert download_benchmark(cls, root, str(archives))
    images = cls.test_dir(root)
    if fault == "incomplete":
        Path(cls(root).test[0].impath).unlink()
    else:
        images.rename(root / "aside")
        images.mkdir()
    if fault == "nested":  # as unpacking by hand often leaves it
        (root / "aside").rename(images / images.name)
    caplog.clear()
    assert not download_benchmark(cls, root, str(archives))
    assert f"error: {cls.key()}: " in caplog.text and "already there" not in caplog.text
    assert f"  1. move {root / cls.folder} away; then run again, or go on by hand\n" in caplog.text
    assert cls.archives[0].name in caplog.text
    (root / cls.folder).rename(root / "broken")
    assert download_benchmark(cls, root, str(archives))


def test_from_a_server_and_then_nothing_more(tmp_path, monkeypatch):
    cls, archives = hosted("UCF101", tmp_path, monkeypatch)
    with serving() as server:
        server.files = {path.name: path.read_bytes() for path in archives.iterdir()}
        assert download_benchmark(cls, tmp_path / "root", server.address)
        asked = len(server.requests)
        assert download_benchmark(cls, tmp_path / "root", server.address)
        assert len(server.requests) == asked == 2
    assert len(build_dataset("UCF101", tmp_path / "root").test) == 6


def test_an_interrupted_set_goes_on(tmp_path, monkeypatch, caplog):
    cls, archives = hosted("UCF101", tmp_path, monkeypatch)
    root = tmp_path / "root"
    with serving() as server:
        server.files = {path.name: path.read_bytes() for path in archives.iterdir()}
        server.cut = 3000
        assert not download_benchmark(cls, root, server.address)
        assert "run again to go on from there" in caplog.text
        assert not (root / "ucf101" / "UCF-101-midframes").exists()
        assert (root / ".downloads" / "UCF-101-midframes.zip.part").stat().st_size == 3000
        server.cut = None
        assert download_benchmark(cls, root, server.address)
        assert ("UCF-101-midframes.zip", "bytes=3000-") in server.requests
    assert not (root / ".downloads").exists()


def test_a_damaged_archive_without_checksum_is_fetched_again(tmp_path, monkeypatch, caplog):
    cls, archives = hosted("UCF101", tmp_path, monkeypatch)
    root = tmp_path / "root"
    with serving() as server:
        server.files = {path.name: path.read_bytes() for path in archives.iterdir()}
        whole = server.files["UCF-101-midframes.zip"]
        server.files["UCF-101-midframes.zip"] = whole[:-50]
        assert not download_benchmark(cls, root, server.address)
        assert "UCF-101-midframes.zip is" in caplog.text
        assert sorted(path.name for path in root.iterdir()) == ["ucf101"]
        server.files["UCF-101-midframes.zip"] = whole
        assert download_benchmark(cls, root, server.address)


@pytest.mark.parametrize("damage", ["truncated", "quota page", "wrong checksum", "other content", "link out"])
def test_bad_archives_leave_the_root_clean(damage, tmp_path, monkeypatch, caplog):
    cls, archives = hosted("DescribableTextures", tmp_path, monkeypatch)
    archive = archives / "dtd-r1.0.1.tar.gz"
    if damage == "truncated":
        archive.write_bytes(archive.read_bytes()[:-400])
    elif damage == "quota page":
        archive.write_text("<!DOCTYPE html><html><title>Google Drive - Quota exceeded</title></html>")
    elif damage == "wrong checksum":
        wrong = dataclasses.replace(cls.archives[0], checksum="md5:" + "0" * 32)
        monkeypatch.setattr(cls, "archives", (wrong,))
    else:
        with tarfile.open(archive, "w:gz") as tar:
            info = tarfile.TarInfo("somewhere/else" if damage == "other content" else "dtd/images")
            if damage == "link out":
                info.type, info.linkname = tarfile.SYMTYPE, "/etc"
            tar.addfile(info)
    root = tmp_path / "root"
    assert not download_benchmark(cls, root, str(archives))
    assert "error: dtd: " in caplog.text
    assert "By hand:" in caplog.text
    assert [str(path.relative_to(root)) for path in root.rglob("*.*")] == ["dtd/split_zhou_DescribableTextures.json"]
    assert sorted(path.name for path in root.iterdir()) == ["dtd"]


@pytest.mark.parametrize("name", ["DescribableTextures", "UCF101"], ids=["tar", "tar under the name of a zip"])
def test_a_chain_of_links_writes_nothing_outside_the_root(name, tmp_path, monkeypatch, capsys):
    """CVE-2025-4517, through the whole tool: with Python 3.11.7's own filter it wrote outside and said ready."""
    cls, archives = hosted(name, tmp_path, monkeypatch)
    (archives / cls.archives[0].name).write_bytes(chain_of_links("../../outside"))
    (tmp_path / "outside").mkdir()
    assert download.main([cls.key(), "--root", str(tmp_path / "root"), "--mirror", str(archives)]) == 1
    assert list((tmp_path / "outside").iterdir()) == []
    assert [path.name for path in (tmp_path / "root").iterdir()] == [cls.folder]
    assert not cls.test_dir(tmp_path / "root").exists()


def test_only_what_is_missing_is_fetched(tmp_path, monkeypatch):
    cls, archives = hosted("UCF101", tmp_path, monkeypatch)
    root = tmp_path / "root"
    assert download_benchmark(cls, root, str(archives))
    (root / "ucf101" / "split_zhou_UCF101.json").unlink()
    with serving() as server:
        server.files = {"split_zhou_UCF101.json": (archives / "split_zhou_UCF101.json").read_bytes()}
        assert download_benchmark(cls, root, server.address)
        assert [name for name, _ in server.requests] == ["split_zhou_UCF101.json"]


def test_a_full_disk_keeps_the_download(tmp_path, monkeypatch):
    """The process may write no file as large as one in the archive; later, without a network, it may."""
    _, archives = hosted("UCF101", tmp_path, monkeypatch)
    root = tmp_path / "root"
    with zipfile.ZipFile(archives / "UCF-101-midframes.zip", "a", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("UCF-101-midframes/large.jpg", bytes(1 << 20))

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))

    with serving() as server:
        server.files = {path.name: path.read_bytes() for path in archives.iterdir()}
        result = run_download("ucf101", "--root", root, "--mirror", server.address, preexec_fn=limit)
    assert result.returncode == 1
    assert f"error: ucf101: cannot write to {root}: File too large; once that is mended, run again" in result.stderr
    assert "damaged" not in result.stderr and "Traceback" not in result.stderr
    assert [path.name for path in (root / ".downloads").iterdir()] == ["UCF-101-midframes.zip"]
    result = run_download("ucf101", "--root", root)
    assert result.returncode == 0 and "ucf101: ready" in result.stderr, result.stderr
    assert [path.name for path in root.iterdir()] == ["ucf101"]


def test_a_copy_from_a_mirror_that_was_cut_off_is_never_taken(tmp_path, monkeypatch):
    cls, archives = hosted("EuroSAT", tmp_path, monkeypatch)
    root = tmp_path / "root"
    split = root / "eurosat" / "split_zhou_EuroSAT.json"

    def killed(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "fsync", killed)
        download_splits(cls, root, str(archives))
    assert not split.exists()
    assert download_splits(cls, root, str(archives))
    assert split.read_bytes() == (archives / split.name).read_bytes()
    assert [path.name for path in split.parent.iterdir()] == [split.name]


def test_two_downloads_at_once_lose_nothing(tmp_path):
    """A set that takes a while to unpack, twice at the same moment, two times over."""
    made = tmp_path / "made" / "UCF-101-midframes"
    rows = [[f"Archery/{number}.jpg", 0, "Archery"] for number in range(1500)]
    archives = tmp_path / "archives"
    archives.mkdir()
    with zipfile.ZipFile(archives / "UCF-101-midframes.zip", "w") as zipped:
        for path, _, _ in rows:
            zipped.writestr(f"{made.name}/{path}", b"x" * 2000)
    (archives / "split_zhou_UCF101.json").write_text(json.dumps({"train": [], "val": [], "test": rows}))
    for attempt in range(2):
        root = tmp_path / f"root{attempt}"
        both = [
            subprocess.Popen([sys.executable, str(TOOL), "ucf101", "--root", str(root), "--mirror", str(archives)],
                             stderr=subprocess.PIPE, text=True, env=os.environ) for _ in range(2)
        ]
        said = [process.communicate(timeout=120)[1] for process in both]
        assert [process.returncode for process in both] == [0, 0], said
        assert all("1500 test images of 1 classes" in text for text in said), said
        assert len(list((root / "ucf101" / made.name / "Archery").iterdir())) == 1500
        assert [path.name for path in root.iterdir()] == ["ucf101"]


def test_who_waits_says_so_and_finds_the_work_done(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    cls, archives = hosted("UCF101", tmp_path, monkeypatch)
    root = tmp_path / "root"
    root.mkdir()
    with locked(root / LOCK, ""):
        other = threading.Thread(target=download_benchmark, args=(cls, root, str(archives)))
        other.start()
        while "another process downloads to" not in caplog.text and other.is_alive():
            time.sleep(0.01)
        assert not (root / cls.folder).exists()
        build("UCF101", root)
    other.join(60)
    assert "ucf101: ready, 6 test images" in caplog.text
    assert sorted(path.name for path in root.iterdir()) == ["ucf101"]


def test_a_move_that_was_interrupted_is_finished(tmp_path, monkeypatch):
    cls, archives = hosted("FGVCAircraft", tmp_path, monkeypatch)
    root = tmp_path / "root"
    fetch_archive(cls.archives[0], root, root / cls.folder, str(archives))
    (root / cls.folder / "images_variant_test.txt").unlink()
    (root / cls.folder / "variants.txt").write_text("the user's own\n")
    fetch_archive(cls.archives[0], root, root / cls.folder, str(archives))
    assert (root / cls.folder / "images_variant_test.txt").is_file()
    assert (root / cls.folder / "variants.txt").read_text() == "the user's own\n"
