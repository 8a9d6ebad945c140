"""Data sets installed below a data root: from archives, from a local server, and without a
network."""
import dataclasses
import hashlib
import json
import logging
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from promptcal.datasets.download.install import COOP_PROMPTS, download_coop, download_dataset, install, manual_steps
from promptcal.datasets.download.verify import inspect
from promptcal.datasets.file_dataset import file_datasets
from promptcal.tools import download

from data_roots import CORRUPTED_AND_CIFAR, IMAGE_DIRS, build, write_classnames
from file_server import serving
from folders import contents, names
from hosted_sets import TOOL, hosted, run_download
from made_archives import FILES, chain_of_links, special, tar_bytes

pytestmark = pytest.mark.usefixtures("no_internet")


@pytest.fixture(autouse=True)
def all_messages(caplog):
    caplog.set_level(logging.INFO)


@pytest.mark.parametrize("name", sorted((IMAGE_DIRS.keys() | CORRUPTED_AND_CIFAR) - {"ImageNet"}))
def test_installed_as_the_reader_expects(name, tmp_path, monkeypatch, caplog):
    cls, archives = hosted(name, tmp_path, monkeypatch)
    before = contents(archives)
    root = tmp_path / "root"
    if name == "ImageNetC":
        write_classnames(root / "imagenet")
    assert download_dataset(cls, root, str(archives)), caplog.text
    assert f"{cls.key()}: ready, " in caplog.text
    assert inspect(cls, root, deep=True).state == "partial"  # it has few images
    assert f"{name}: without" not in caplog.text  # it has all corruptions
    assert set(names(root)) <= {cls.folder, "imagenet"}  # no work folder is left
    assert contents(archives) == before  # a mirror is not changed
    caplog.clear()
    assert download_dataset(cls, root, "")
    assert f"{cls.key()}: already there, " in caplog.text
    assert f" classes in {root / cls.folder}" in caplog.text


@pytest.mark.parametrize(("name", "fault"), [
    ("DescribableTextures", "incomplete"),
    ("DescribableTextures", "nested"),
    ("StanfordCars", "empty"),
    ("FGVCAircraft", "incomplete"),
    ("ImageNetA", "empty"),
    ("ImageNetV2", "nested"),
])
def test_a_faulty_folder_is_reported_and_not_changed(name, fault, tmp_path, monkeypatch, caplog):
    """The stated remedy works: move it away and run again."""
    cls, archives = hosted(name, tmp_path, monkeypatch)
    root = tmp_path / "root"
    assert download_dataset(cls, root, str(archives))
    images = cls.test_dir(root)
    if fault == "incomplete":
        Path(cls(root).test[0].impath).unlink()
    else:
        images.rename(root / "aside")
        images.mkdir()
    if fault == "nested":  # as unpacking by hand often leaves it
        (root / "aside").rename(images / images.name)
    caplog.clear()
    assert not download_dataset(cls, root, str(archives))
    assert f"error: {cls.key()}: " in caplog.text and "already there" not in caplog.text
    assert f"  1. move {root / cls.folder} away; then run again, or continue by hand\n" in caplog.text
    assert cls.archives[0].name in caplog.text
    (root / cls.folder).rename(root / "broken")
    assert download_dataset(cls, root, str(archives))


def test_from_a_server(tmp_path, monkeypatch, caplog):
    """Interrupted and resumed; damaged and downloaded again; then only what is missing."""
    cls, archives = hosted("UCF101", tmp_path, monkeypatch)
    root = tmp_path / "root"
    archive = "UCF-101-midframes.zip"
    split = "split_zhou_UCF101.json"
    archive_bytes = (archives / archive).read_bytes()
    with serving() as server:
        server.files = contents(archives)
        server.files[archive] = archive_bytes[:-50]
        assert not download_dataset(cls, root, server.address)
        assert f"{archive} is damaged" in caplog.text and names(root) == ["ucf101"]

        checksum = f"sha256:{hashlib.sha256(archive_bytes).hexdigest()}"
        source = dataclasses.replace(cls.archives[0], checksum=checksum)
        monkeypatch.setattr(cls, "archives", (source,))
        server.files[archive] = archive_bytes
        server.cut = 3000
        assert not download_dataset(cls, root, server.address)
        assert "run again to continue" in caplog.text
        assert not (root / "ucf101" / "UCF-101-midframes").exists()
        assert (root / ".downloads" / f"{archive}.part").stat().st_size == 3000

        server.cut = None
        assert download_dataset(cls, root, server.address)
        assert (archive, "bytes=3000-") in server.requests and names(root) == ["ucf101"]
        server.requests.clear()
        assert download_dataset(cls, root, server.address) and not server.requests
        (root / "ucf101" / split).unlink()
        assert download_dataset(cls, root, server.address)
        assert server.requests == [(split, None)]


@pytest.mark.parametrize("content", [
    tar_bytes(FILES, mode="w:gz")[:-400],
    b"<!DOCTYPE html><html><title>Google Drive - Quota exceeded</title></html>",
    tar_bytes({"somewhere/else": b""}),
    tar_bytes({}, [special("dtd/images", tarfile.SYMTYPE, "/etc")]),
    chain_of_links("../../../outside"),
], ids=["truncated", "quota page", "other content", "link out", "CVE-2025-4517"])
def test_bad_archives_leave_everything_clean(content, tmp_path, monkeypatch, caplog):
    cls, archives = hosted("DescribableTextures", tmp_path, monkeypatch)
    (archives / "dtd-r1.0.1.tar.gz").write_bytes(content)
    root = tmp_path / "root"
    (tmp_path / "outside").mkdir()
    assert download.main([cls.key(), "--root", str(root), "--mirror", str(archives)]) == 1
    assert "error: dtd: " in caplog.text and "By hand:" in caplog.text
    assert names(root) == ["dtd"] and names(tmp_path / "outside") == []
    assert names(root / "dtd") == ["split_zhou_DescribableTextures.json"]


def test_a_full_disk_keeps_the_download(tmp_path, monkeypatch):
    """The process may not write a file as large as one in the archive; later, without a network, it
    may."""
    _, archives = hosted("UCF101", tmp_path, monkeypatch)
    root = tmp_path / "root"
    with zipfile.ZipFile(archives / "UCF-101-midframes.zip", "a", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("UCF-101-midframes/large.jpg", bytes(1 << 20))

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))

    with serving() as server:
        server.files = contents(archives)
        result = run_download("ucf101", "--root", root, "--mirror", server.address, preexec_fn=limit)
    assert result.returncode == 1
    words = f"error: ucf101: cannot write to {root}: File too large; fix this and run again"
    assert words in result.stderr
    assert "damaged" not in result.stderr and "Traceback" not in result.stderr
    assert names(root / ".downloads") == ["UCF-101-midframes.zip"]
    result = run_download("ucf101", "--root", root)
    assert result.returncode == 0 and "ucf101: ready" in result.stderr, result.stderr
    assert names(root) == ["ucf101"]


def test_two_downloads_at_once_lose_nothing(tmp_path):
    """A set that takes a while to unpack, twice at the same moment."""
    root = tmp_path / "root"
    archives = tmp_path / "archives"
    archives.mkdir()
    rows = []
    with zipfile.ZipFile(archives / "UCF-101-midframes.zip", "w") as zipped:
        for number in range(1500):
            rows.append([f"Archery/{number}.jpg", 0, "Archery"])
            zipped.writestr(f"UCF-101-midframes/Archery/{number}.jpg", b"x" * 2000)
    splits = {"train": [], "val": [], "test": rows}
    (archives / "split_zhou_UCF101.json").write_text(json.dumps(splits))
    command = [sys.executable, TOOL, "ucf101", "--root", root, "--mirror", archives]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    second = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for process in (first, second):
        _, messages = process.communicate(timeout=120)
        assert process.returncode == 0, messages
        assert "1,500 test images of 1 class" in messages
    assert len(names(root / "ucf101" / "UCF-101-midframes" / "Archery")) == 1500
    assert names(root) == ["ucf101"]


def test_an_interrupted_installation_is_finished(tmp_path, monkeypatch):
    cls, archives = hosted("FGVCAircraft", tmp_path, monkeypatch)
    root = tmp_path / "root"
    install(cls.archives[0], root, root / cls.folder, str(archives))
    (root / cls.folder / "images_variant_test.txt").unlink()
    (root / cls.folder / "variants.txt").write_text("the user's own\n")
    install(cls.archives[0], root, root / cls.folder, str(archives))
    assert (root / cls.folder / "images_variant_test.txt").is_file()
    assert (root / cls.folder / "variants.txt").read_text() == "the user's own\n"


def test_coop_prompts(tmp_path, caplog):
    prompt = "to_gdrive/vit_b16_ep50_16shots/nctx4_cscFalse_ctpend/seed1/prompt_learner/model.pth.tar-50"
    with zipfile.ZipFile(tmp_path / COOP_PROMPTS.name, "w") as zipped:
        zipped.writestr(prompt, b"weights")
    root = tmp_path / "root"
    assert not download_coop(root)
    assert "https://drive.google.com/file/d/18ypxfd82RR0pizc5MM1ZWDYDk4j0BtPF/view" in caplog.text
    assert not root.exists()
    assert download_coop(root, str(tmp_path))
    assert (root / "coop" / prompt).read_bytes() == b"weights"
    assert f"coop: ready in {root / 'coop'}: give a prompt" in caplog.text
    assert download_coop(root)
    assert f"coop: already there in {root / 'coop'}" in caplog.text


@pytest.mark.parametrize("cls", file_datasets(), ids=lambda cls: cls.key())
def test_manual_steps_name_files_and_folders(cls, tmp_path):
    steps = manual_steps(cls, tmp_path)
    for source in cls.archives:
        for words in (source.name, source.link, source.checksum.partition(":")[2]):
            assert words in steps
        if not source.drive_id:
            assert re.fullmatch("md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", source.checksum)
    for source in cls.metadata:
        assert source.drive_id in steps
    if cls.parquet_copy:
        assert f"hf download {cls.parquet_copy} --repo-type dataset --local-dir FOLDER" in steps
    assert str(tmp_path / cls.folder / cls.images) in steps and "{" not in steps


def test_command_line(tmp_path, monkeypatch):
    """Sets that can be downloaded, that cannot, that are there, and one that cannot be read."""
    _, archives = hosted("UCF101", tmp_path, monkeypatch)
    root = tmp_path / "root"
    build("EuroSAT", root)
    build("DescribableTextures", root)
    folder = root / "dtd" / "images" / "banded"
    shutil.rmtree(folder)
    folder.symlink_to(folder)
    with serving() as server:
        server.files = contents(archives)
        result = run_download(
            "UCF101", "dtd", "eurosat", "imagenet", "stanford_cars", "sun397", "imagenet_a", "coop",
            "--root", root, "--mirror", server.address)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    for expected in (
        "ucf101: ready, 6 test images of 3 classes", "eurosat: already there, 20 test images",
        f"error: dtd: cannot read {folder}", "Too many levels of symbolic links",
        "image-net.org", "ILSVRC2012_img_val.tar", "cars_train.tgz", "SUN397.tar.gz",
        "1ObCFbaAgVu0I-k_Au-gIUcefirdAuizT", "18ypxfd82RR0pizc5MM1ZWDYDk4j0BtPF",
        f"{root}/imagenet/images/val/n01440764", "imagenet-a.tar",
    ):
        assert expected in result.stderr
    assert names(root) == ["dtd", "eurosat", "ucf101"]
