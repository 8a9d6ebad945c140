"""The download command: what it offers beside archives, what is left to do by hand, and what it says."""
import inspect
import logging
import shutil
import zipfile

import pytest
import torchvision.datasets
from data_roots import build
from file_server import serving
from hosted_sets import hosted, run_download
from promptcal.datasets import DATASET_REGISTRY
from promptcal.datasets.download.install import (
    COOP_PROMPTS,
    download_benchmark,
    download_coop,
    download_splits,
    manual_steps,
)
from promptcal.datasets.file_dataset import file_datasets

pytestmark = pytest.mark.usefixtures("no_internet")


def test_splits_alone(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    cls, archives = hosted("EuroSAT", tmp_path, monkeypatch)
    root = tmp_path / "root"
    assert download_splits(cls, root, str(archives))
    assert [str(path.relative_to(root)) for path in root.rglob("*.*")] == ["eurosat/split_zhou_EuroSAT.json"]
    assert download_splits(cls, root)
    assert "split_zhou_EuroSAT.json already there" in caplog.text
    assert download_splits(DATASET_REGISTRY.get("FGVCAircraft"), root)  # its lists come with the images


def test_coop_prompts(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    prompt = "to_gdrive/vit_b16_ep50_16shots/nctx4_cscFalse_ctpend/seed1/prompt_learner/model.pth.tar-50"
    with zipfile.ZipFile(tmp_path / COOP_PROMPTS.name, "w") as zipped:
        zipped.writestr(prompt, b"weights")
    root = tmp_path / "root"
    assert download_coop(root, str(tmp_path))
    assert (root / "coop" / prompt).read_bytes() == b"weights"
    assert f"1 prompts in {root / 'coop'}, to be given as MODEL.INIT_WEIGHTS, for example {root}" in caplog.text
    assert download_coop(root)
    assert f"coop: already there, 1 prompts in {root / 'coop'}" in caplog.text


@pytest.mark.parametrize("archive", [True, False], ids=["another archive", "an empty folder"])
def test_a_folder_without_prompts_is_not_done(archive, tmp_path, caplog):
    root = tmp_path / "root"
    if archive:
        with zipfile.ZipFile(tmp_path / COOP_PROMPTS.name, "w") as zipped:
            zipped.writestr("readme.txt", b"moved")
    else:
        (root / "coop").mkdir(parents=True)
    for _ in range(2):
        caplog.clear()
        assert not download_coop(root, str(tmp_path))
        assert f"error: coop: {root / 'coop'} holds no prompt such as model.pth.tar-50: move it away" in caplog.text


def test_coop_prompts_out_of_reach(tmp_path, caplog):
    assert not download_coop(tmp_path / "root")
    assert "https://drive.google.com/file/d/18ypxfd82RR0pizc5MM1ZWDYDk4j0BtPF/view" in caplog.text
    assert list((tmp_path / "root").iterdir()) == []


def test_imagenet_is_put_together_by_hand(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    build("ImageNet", tmp_path / "made")
    root = tmp_path / "root"
    (root / "imagenet" / "images").mkdir(parents=True)  # a place for the archives, nothing sorted yet
    mirror = str(tmp_path / "made" / "imagenet")
    cls = DATASET_REGISTRY.get("ImageNet")
    assert not download_benchmark(cls, root, mirror)
    assert (root / "imagenet" / "classnames.txt").is_file()
    assert "ILSVRC2012_img_val.tar" in caplog.text
    (tmp_path / "made" / "imagenet" / "images" / "val").rename(root / "imagenet" / "images" / "val")
    assert download_benchmark(cls, root)
    assert "imagenet: already there" in caplog.text


@pytest.mark.parametrize("cls", file_datasets(), ids=lambda cls: cls.key())
def test_manual_steps_name_files_and_folders(cls, tmp_path):
    steps = manual_steps(cls, tmp_path)
    for source in cls.archives:
        assert source.name in steps
        assert source.link in steps
        assert source.checksum.partition(":")[2] in steps
    for source in cls.metadata:
        assert source.drive_id in steps
    assert str(tmp_path / cls.folder / cls.images) in steps
    assert "{" not in steps


def test_addresses_and_checksums_are_torchvisions():
    """Where torchvision has an archive, its address and checksum are the ones used."""
    known = {"Caltech101": "Caltech101", "DescribableTextures": "DTD", "EuroSAT": "EuroSAT", "Food101": "Food101",
             "FGVCAircraft": "FGVCAircraft", "OxfordFlowers": "Flowers102", "OxfordPets": "OxfordIIITPet"}
    for name, theirs in known.items():
        source = DATASET_REGISTRY.get(name).archives[0]
        code = inspect.getsource(getattr(torchvision.datasets, theirs))
        assert source.name in code
        assert source.urls[0].removesuffix(source.name) in code
        if "md5" in code.lower():
            assert source.checksum.removeprefix("md5:") in code


def test_command_line(tmp_path, monkeypatch):
    """One run that meets a set to be had, sets that are manual, a file that is nowhere, and one already there."""
    _, archives = hosted("UCF101", tmp_path, monkeypatch)
    root = tmp_path / "root"
    build("EuroSAT", root)
    with serving() as server:
        server.files = {path.name: path.read_bytes() for path in archives.iterdir()}
        result = run_download("UCF101", "eurosat", "imagenet", "stanford_cars", "sun397", "imagenet_a", "coop",
                              "--root", root, "--mirror", server.address)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "ucf101: ready, 6 test images of 3 classes" in result.stderr
    assert "eurosat: already there" in result.stderr
    for expected in ("image-net.org", "ILSVRC2012_img_val.tar", "cars_train.tgz", "SUN397.tar.gz",
                     "1ObCFbaAgVu0I-k_Au-gIUcefirdAuizT", "18ypxfd82RR0pizc5MM1ZWDYDk4j0BtPF",
                     f"{root}/imagenet/images/val/n01440764", "imagenet-a.tar"):
        assert expected in result.stderr
    assert sorted(path.name for path in root.iterdir()) == ["eurosat", "ucf101"]


def test_one_unreadable_place_leaves_the_others(tmp_path):
    """A root that the system refuses is one line; a set in it that it refuses does not stop the next."""
    result = run_download("dtd", "coop", "--root", tmp_path / ("x" * 300))
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.endswith(": File name too long\n")
    build("DescribableTextures", tmp_path)
    build("EuroSAT", tmp_path)
    folder = tmp_path / "dtd" / "images" / "banded"
    shutil.rmtree(folder)
    folder.symlink_to(folder)
    result = run_download("dtd", "eurosat", "--root", tmp_path)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert f"error: dtd: cannot read {folder}: Too many levels of symbolic links" in result.stderr
    assert "eurosat: already there, 20 test images of 10 classes" in result.stderr


def test_command_line_with_an_unknown_name(tmp_path):
    result = run_download("ufc101", "--root", tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: unknown data set 'ufc101'. Did you mean 'ucf101'?")
    assert len(result.stderr.splitlines()) == 1
