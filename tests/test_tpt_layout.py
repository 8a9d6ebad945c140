"""Data in the folders that TPT's scripts use, with CoOp's split files."""
import logging
import shutil
from pathlib import Path

import pytest
from promptcal.datasets import DATASET_REGISTRY, build_dataset
from promptcal.datasets.download.install import missing_archives
from promptcal.datasets.download.verify import inspect
from promptcal.datasets.utils.errors import DataError

from data_roots import IMAGE_DIRS, build

# CoOp's folder of the images -> TPT's.
TPT = {
    "UCF101": "UCF101", "DescribableTextures": "DTD/images", "OxfordFlowers": "Flower102/jpg",
    "Caltech101": "Caltech101", "StanfordCars": "StanfordCars", "SUN397": "SUN397",
    "OxfordPets": "OxfordPets", "FGVCAircraft": "fgvc_aircraft/images",
    "Food101": "Food101/images", "EuroSAT": "eurosat", "ImageNet": "ImageNet/val",
    "ImageNetA": "imagenet-a", "ImageNetR": "imagenet-r", "ImageNetSketch": "ImageNet-Sketch",
    "ImageNetV2": "imagenetv2-matched-frequency-format-val",
}


def build_as_tpt(name: str, root: Path, lists: str = "") -> list[str]:
    """Makes a set in TPT's layout; its lists go to the folder `lists` of the root, or with the
    images."""
    coop_root = root.parent / "made"
    names = build(name, coop_root)
    images = root / TPT[name]
    shutil.copytree(coop_root / IMAGE_DIRS[name], images, dirs_exist_ok=True)
    list_folder = root / (lists or TPT[name].split("/")[0])
    list_folder.mkdir(parents=True, exist_ok=True)
    for pattern in ("*.json", "*.txt"):
        for path in (coop_root / IMAGE_DIRS[name].split("/")[0]).glob(pattern):
            shutil.copy(path, list_folder)
    shutil.rmtree(coop_root)
    return names


@pytest.mark.parametrize("name", TPT)
def test_images_are_found(name, tmp_path, caplog):
    root = tmp_path / "data"
    names = build_as_tpt(name, root)
    with caplog.at_level(logging.INFO):
        dataset = build_dataset(name, root)
    assert dataset.classnames == names
    dataset.check_files(dataset.test)
    assert dataset.test[0].impath.startswith(str(root / TPT[name]))
    if name != "FGVCAircraft":  # the same in both
        words = f"lies in TPT's layout: images are read from {root / TPT[name].split('/')[0]}"
        assert words in caplog.text
    cls = DATASET_REGISTRY.get(name)
    assert inspect(cls, root).state == "partial"
    assert name == "StanfordCars" or missing_archives(cls, root) == []


@pytest.mark.parametrize("lists", ["ucf101", "data_splits"])
def test_split_files_in_the_usual_place(lists, tmp_path):
    names = build_as_tpt("UCF101", tmp_path / "data", lists)
    dataset = build_dataset("UCF101", tmp_path / "data")
    assert dataset.classnames == names
    dataset.check_files(dataset.test)
    build("UCF101", tmp_path / "coop")
    assert dataset.test_hash == build_dataset("UCF101", tmp_path / "coop").test_hash
    assert inspect(DATASET_REGISTRY.get("UCF101"), tmp_path / "data").state == "partial"


def test_what_is_there_instead_is_named(tmp_path, no_internet):
    root = tmp_path / "data"
    build_as_tpt("UCF101", root)
    split = root / "UCF101" / "split_zhou_UCF101.json"
    (root / "UCF101" / "Archery").rename(root / "UCF101" / "archery")
    (root / "UCF101" / "Yo_Yo").rename(root / "UCF101" / "yoyo")
    (root / "UCF101" / "Apply_Eye_Makeup").rename(root / "UCF101" / "makeup")
    dataset = build_dataset("UCF101", root)
    answer = ("UCF101 lies in TPT's layout: .*/UCF101 holds archery, makeup, split_zhou.*, but not "
              "Apply_Eye_Makeup/image_0001.jpg and the other images")
    with pytest.raises(DataError, match=answer):
        dataset.check_files(dataset.test)
    split.unlink()
    answer = ("lies in TPT's layout, with images in .*/UCF101; its list split_zhou_UCF101.json "
              "could not be downloaded .* from data/data_splits of your TPT checkout")
    with pytest.raises(DataError, match=answer):
        build_dataset("UCF101", root)
    finding = inspect(DATASET_REGISTRY.get("UCF101"), root)
    assert finding.state == "faulty" and "in TPT's layout; needed in" in finding.advice
    for name in ("archery", "makeup", "yoyo"):
        shutil.rmtree(root / "UCF101" / name)
    (root / "UCF101" / "v_Archery_g01.avi").write_bytes(b"RIFF")
    answer = "TPT's layout, but .*/UCF101 has no images: it holds v_Archery_g01.avi"
    with pytest.raises(DataError, match=answer):
        build_dataset("UCF101", root)
    answer = f"{root / 'UCF101'} is not the data root: give the folder above"
    with pytest.raises(DataError, match=answer):
        build_dataset("UCF101", root / "UCF101")
