"""Every reader on a miniature root in its true layout, and on the real split files where they are available."""
import logging
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml
from data_roots import FOLDERS, IMAGE_DIRS, SHARED, WNIDS, build, entries, picture, write_split
from promptcal.datasets import DATASET_REGISTRY, build_dataset
from promptcal.datasets.utils.errors import DataError

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
    assert config["TTA"]["AUGMIX"] == ("off" if name == "ImageNet" else "on")
    assert DATASET_REGISTRY.get(name).augmix == (name != "ImageNet")
    weaker = {"CTPT": {"LAMBDA": 20.0}, "OTPT": {"LAMBDA": 2.0}, "SOC": {"LAMBDA": 14.0}, "ATPT": {"LAMBDA": 10.0},
              "TDA": {"VIEWS": "confident"}, "FPP": {"WEIGHT": 1.25}}
    assert config.get("TRAINER") == (weaker if name in SHIFTS else None)


def test_v2_folders_are_numbers_not_strings(tmp_path):
    build("ImageNetV2", tmp_path)
    for item in build_dataset("ImageNetV2", tmp_path).test:
        folder = Path(item.impath).parent.name
        assert item.label == int(folder) and item.classname == f"thing {folder}"
    picture(tmp_path / IMAGE_DIRS["ImageNetV2"] / "n01440764" / "x.jpeg")
    with pytest.raises(DataError, match="named 0 to 11, not n01440764"):
        build_dataset("ImageNetV2", tmp_path)


@pytest.mark.parametrize("name", ["ImageNetA", "ImageNetR"])
def test_subsets_have_labels_from_0(name, tmp_path):
    build(name, tmp_path)
    dataset = build_dataset(name, tmp_path)
    assert dataset.classnames == ["thing 0", "thing 3", "thing 6", "thing 9"]
    assert {Path(item.impath).parent.name: item.label for item in dataset.test} == {
        wnid: label for label, wnid in enumerate(list(WNIDS)[::3])
    }
    assert dataset.train == dataset.val == []


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
    with pytest.raises(DataError, match=f"(no class folders such as n01440764|folders named 0 to 11).*{remedy}"):
        build_dataset(name, tmp_path)
    (images / ("0" if name == "ImageNetV2" else "n01440764")).mkdir()
    with pytest.raises(DataError, match=f"{name} has no test images; .*{remedy}"):
        build_dataset(name, tmp_path)
    if name != "ImageNetV2":
        picture(images / "n99999999" / "x.JPEG")
        with pytest.raises(DataError, match=f"not in classnames.txt: n99999999; .*{remedy}"):
            build_dataset(name, tmp_path)


def test_imagenets_training_images_are_listed_on_first_use(tmp_path, monkeypatch):
    build("ImageNet", tmp_path)
    assert len(build_dataset("ImageNet", tmp_path).train) == 0
    with pytest.raises(DataError, match=r"no training images for DATASET.NUM_SHOTS 1; .*download.py imagenet"):
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


RAW_NAMES = {
    "Caltech101": {"Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike", "airplanes": "airplane"},
    "EuroSAT": FOLDERS["EuroSAT"],
    "SUN397": {f"/{folder}": name for folder, name in FOLDERS["SUN397"].items()},
    "StanfordCars": {"AM General Hummer SUV 2000": "2000 AM General Hummer SUV",
                     "Ram C/V Cargo Van Minivan 2012": "2012 Ram C/V Cargo Van Minivan"},
    "UCF101": {"ApplyEyeMakeup": "Apply_Eye_Makeup", "YoYo": "Yo_Yo"},
    "OxfordPets": {"Abyssinian": "abyssinian", "Bengal": "bengal"},
}


@pytest.mark.parametrize("name", RAW_NAMES)
def test_the_archives_names_become_the_published_ones(name, tmp_path, caplog):
    classnames = build(name, tmp_path)
    raw = {published: folder for folder, published in RAW_NAMES[name].items()}
    splits = {
        split: [[path, label, raw.get(classname, classname)] for path, label, classname in rows]
        for split, rows in entries(name).items()
    }
    write_split(tmp_path, name, splits)
    assert build_dataset(name, tmp_path).classnames == classnames
    assert "using the published ones" in caplog.text


@pytest.mark.parametrize("folder", ["BACKGROUND_Google", "Faces_easy"])
def test_a_caltech_split_with_dropped_classes_is_not_the_published_one(folder, tmp_path):
    build("Caltech101", tmp_path)
    splits = entries("Caltech101")
    splits["test"].append([f"{folder}/image_0001.jpg", 7, folder])
    write_split(tmp_path, "Caltech101", splits)
    with pytest.raises(DataError, match=f"{folder}/image_0001.jpg"):
        build_dataset("Caltech101", tmp_path)


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


def test_another_order_of_labels_is_not_the_published_split(tmp_path, monkeypatch):
    build("FGVCAircraft", tmp_path)
    cls = DATASET_REGISTRY.get("FGVCAircraft")
    published = {"expected_test": 8, "expected_classes": 4, "published_test": cls(tmp_path).test_hash}
    for name, value in published.items():
        monkeypatch.setattr(cls, name, value)
    for split in ("train", "val"):  # which a copy for testing does not need
        (tmp_path / "fgvc_aircraft" / f"images_variant_{split}.txt").unlink()
        assert not build_dataset("FGVCAircraft", tmp_path).difference
    path = tmp_path / "fgvc_aircraft" / "images_variant_test.txt"
    path.write_text(path.read_text().replace("0002000 707-320", "0002000 A340-300"))
    assert "is not the published one" in build_dataset("FGVCAircraft", tmp_path).difference


@pytest.mark.skipif(not (SHARED / "samples").is_dir(), reason="the real samples are not available")
@pytest.mark.parametrize(("name", "count", "classes"), [
    ("Caltech101", 200, 100), ("OxfordPets", 148, 37), ("OxfordFlowers", 204, 102), ("DescribableTextures", 60, 10),
    ("FGVCAircraft", 200, 100), ("ImageNet", 334, 1000),
])
def test_the_real_samples(name, count, classes, caplog):
    dataset = build_dataset(name, SHARED / "samples")
    assert (len(dataset.test), len(dataset.classnames)) == (count, classes)
    assert min(dataset.read_image(dataset.test[-1]).size) == 256
    assert f"{count} test images of {classes} classes here, {type(dataset).expected_test} of" in caplog.text
