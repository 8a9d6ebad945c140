"""Every reader on a miniature root in its true layout, and on the real split files where they are
available."""
import logging
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml
from promptcal.datasets import DATASET_REGISTRY, build_dataset
from promptcal.datasets.utils.errors import DataError

from data_roots import IMAGE_DIRS, SHARED, WNIDS, build, picture

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "datasets"
SHIFTS = {"ImageNetV2", "ImageNetSketch", "ImageNetA", "ImageNetR"}


@pytest.mark.parametrize("name", IMAGE_DIRS)
def test_reads_its_true_layout(name, tmp_path):
    classnames = build(name, tmp_path)
    dataset = build_dataset(name, tmp_path)
    assert dataset.classnames == classnames
    assert [item.label for item in dataset.test] == [label for label in range(len(classnames)) for _ in range(2)]
    for item in dataset.test:
        assert item.classname == classnames[item.label]
        assert item.impath.startswith(str(tmp_path / IMAGE_DIRS[name]))
        assert item.domain == 0
        assert dataset.read_image(item).mode == "RGB"
    red = {dataset.read_image(item).getpixel((5, 5))[0] // 8 for item in dataset.test if item.label == 0}
    assert red == {0}  # the pictures of label 0 were painted without red


@pytest.mark.parametrize("name", IMAGE_DIRS)
def test_yaml_of_each_set(name):
    key = DATASET_REGISTRY.get(name).key()
    config = yaml.safe_load((CONFIGS / f"{key}.yaml").read_text())
    assert config["DATASET"]["NAME"] == name
    assert DATASET_REGISTRY.get(name).augmix == (name != "ImageNet")
    weaker = {"CTPT": {"LAMBDA": 20.0}, "OTPT": {"LAMBDA": 2.0}, "SOC": {"LAMBDA": 14.0}, "ATPT": {"LAMBDA": 10.0},
              **{online: {"VIEWS": "confident"} for online in ("TDA", "BOOSTADAPTER", "DPE", "DOTA")},
              "FPP": {"WEIGHT": 1.25}}
    if name == "ImageNetA":
        weaker["DPE"] = {"VIEWS": "confident", "PREDICT": "confident"}
    other = {"DPE": {"VIEWS": "confident"}} if name == "ImageNet" else None
    assert config.get("TRAINER") == (weaker if name in SHIFTS else other)


def test_v2_folders_are_numbers_not_strings(tmp_path):
    build("ImageNetV2", tmp_path)
    for item in build_dataset("ImageNetV2", tmp_path).test:
        folder = Path(item.impath).parent.name
        assert item.label == int(folder) and item.classname == f"thing {folder}"
    picture(tmp_path / IMAGE_DIRS["ImageNetV2"] / "n01440764" / "x.jpeg")
    with pytest.raises(DataError, match="named 0 to 11, not n01440764"):
        build_dataset("ImageNetV2", tmp_path)


def test_imagenets_class_names(tmp_path, caplog):
    """Sorted by WordNet id, complete even if class folders are missing, shared by the variants."""
    build("ImageNet", tmp_path)
    build("ImageNetA", tmp_path)
    path = tmp_path / "imagenet" / "classnames.txt"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    shutil.rmtree(tmp_path / IMAGE_DIRS["ImageNet"] / "n01440764")
    dataset = build_dataset("ImageNet", tmp_path)
    assert dataset.classnames == list(WNIDS.values()) and min(item.label for item in dataset.test) == 1
    assert f"ImageNet: {path}, with 12 classes, is not CoOp's list of class names" in caplog.text
    (tmp_path / "imagenet-adversarial" / "classnames.txt").unlink()
    assert len(build_dataset("ImageNetA", tmp_path).classnames) == 4
    path.write_text(path.read_text().replace("thing 7", "missile").replace("thing 2", "missile"))
    build_dataset("ImageNet", tmp_path)
    assert "'missile' (2, 7)" in caplog.text


@pytest.mark.parametrize(
    "text", ["", "n01440764\n", "tench n01440764\n", "n01440764 tench\nn01440764 goldfish\n", "n01440764 caf\xe9\n"],
)
def test_bad_class_names_file(text, tmp_path):
    build("ImageNet", tmp_path)
    (tmp_path / "imagenet" / "classnames.txt").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"classnames.txt (must have|as UTF-8 text)"):
        build_dataset("ImageNet", tmp_path)


@pytest.mark.parametrize("name", ["ImageNet", *sorted(SHIFTS)])
def test_wrong_class_folders_get_a_remedy(name, tmp_path):
    build(name, tmp_path)
    images = tmp_path / IMAGE_DIRS[name]
    remedy = "run: python tools/download.py imagenet"
    shutil.rmtree(images)
    picture(images / "ILSVRC2012_val_00000001.JPEG")  # not sorted into class folders
    with pytest.raises(DataError, match=f"named (n01440764|0) to (n[0-9]+|11), not none at all; "
                                        f".*{remedy}"):
        build_dataset(name, tmp_path)
    (images / ("0" if name == "ImageNetV2" else "n01440764")).mkdir()
    with pytest.raises(DataError, match=f"{name} has no test images; .*{remedy}"):
        build_dataset(name, tmp_path)
    if name != "ImageNetV2":
        picture(images / "n99999999" / "x.JPEG")
        with pytest.raises(DataError, match=f"per class of classnames.txt, .* not n99999999; "
                                            f".*{remedy}"):
            build_dataset(name, tmp_path)


def test_imagenets_training_images_are_listed_on_first_use(tmp_path, monkeypatch):
    build("ImageNet", tmp_path)
    assert len(build_dataset("ImageNet", tmp_path).train) == 0
    with pytest.raises(DataError, match=r"no training images for DATASET.NUM_SHOTS 1; "
                                        r".*download.py imagenet"):
        build_dataset("ImageNet", tmp_path, num_shots=1)
    for wnid in WNIDS:
        for n in range(3):
            picture(tmp_path / "imagenet" / "images" / "train" / wnid / f"{n}.JPEG")
    listed = []
    monkeypatch.setattr(os, "listdir", lambda path, list_=os.listdir: listed.append(str(path)) or list_(path))
    halves = {half: build_dataset("ImageNet", tmp_path, subsample_classes=half) for half in ("all", "base", "new")}
    assert not any("images/train" in path for path in listed)
    assert {half: len(dataset.train) for half, dataset in halves.items()} == {"all": 36, "base": 18, "new": 18}
    assert {item.label for item in halves["new"].train} == set(range(6)) and halves["new"].train[0].label == 0
    dataset = build_dataset("ImageNet", tmp_path, num_shots=2)
    assert Counter(item.label for item in dataset.train) == dict.fromkeys(range(12), 2)
    assert dataset.val == dataset.test  # as in CoOp


REAL = SHARED / "splits"


@pytest.mark.skipif(not REAL.is_dir(), reason="the real split files are not available")
@pytest.mark.parametrize("name", ["Caltech101", "OxfordPets", "OxfordFlowers", "DescribableTextures", "EuroSAT",
                                  "UCF101", "StanfordCars", "FGVCAircraft"])
def test_the_real_split_files(name, tmp_path, caplog):
    cls = DATASET_REGISTRY.get(name)
    if name == "FGVCAircraft":
        shutil.copytree(REAL / "fgvc_aircraft", tmp_path / "fgvc_aircraft")
    else:
        (tmp_path / cls.folder).mkdir()
        shutil.copy(REAL / cls.metadata[0].name, tmp_path / cls.folder)
    cls.test_dir(tmp_path).mkdir(parents=True)
    dataset = build_dataset(name, tmp_path)
    assert (len(dataset.classnames), len(dataset.test)) == (cls.expected_classes, cls.expected_test)
    assert {item.label for item in dataset.test} == set(range(len(dataset.classnames)))
    assert dataset.test_hash == cls.published_test
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
