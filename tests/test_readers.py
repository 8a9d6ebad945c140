"""Every reader on a miniature root in its true layout, and on the real split files where they are
available."""
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml
from promptcal.datasets import DATASET_REGISTRY, build_dataset

from data_roots import IMAGE_DIRS, SHARED, WNIDS, build, labels_of, picture, refused

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "datasets"
SHIFTS = {"ImageNetV2", "ImageNetSketch", "ImageNetA", "ImageNetR"}


@pytest.mark.parametrize("name", IMAGE_DIRS)
def test_reads_its_true_layout(name, tmp_path):
    classnames = build(name, tmp_path)
    dataset = build_dataset(name, tmp_path)
    assert dataset.classnames == classnames
    labels = labels_of(dataset.test)
    assert labels == sorted([*range(len(classnames))] * 2)
    for item in dataset.test:
        assert item.classname == classnames[item.label]
        assert item.impath.startswith(str(tmp_path / IMAGE_DIRS[name]))
        assert item.domain == 0
        image = dataset.read_image(item)
        assert image.mode == "RGB"
        if item.label == 0:  # whose pictures were painted without red
            assert image.getpixel((5, 5))[0] < 8
        if name == "ImageNetV2":  # whose folders are numbers, not strings
            assert item.label == int(Path(item.impath).parent.name)


SHIFT_SETTINGS = {  # regularisers are weaker under shift
    "CTPT": {"LAMBDA": 20.0}, "OTPT": {"LAMBDA": 2.0}, "SOC": {"LAMBDA": 14.0}, "ATPT": {"LAMBDA": 10.0},
    "TDA": {"VIEWS": "confident"},
}


@pytest.mark.parametrize("name", IMAGE_DIRS)
def test_yaml_of_each_set(name):
    reader = DATASET_REGISTRY.get(name)
    config = yaml.safe_load((CONFIGS / f"{reader.key()}.yaml").read_text())
    assert config["DATASET"]["NAME"] == name
    assert reader.augmix == (name != "ImageNet")
    settings = config.get("TRAINER", {})
    if name in SHIFTS:
        assert SHIFT_SETTINGS.items() <= settings.items()
    else:
        assert settings == ({"DPE": {"VIEWS": "confident"}} if name == "ImageNet" else {})


def test_imagenets_class_names(tmp_path, caplog):
    """Sorted by WordNet id, complete even if class folders are missing, shared by the variants."""
    build("ImageNet", tmp_path)
    build("ImageNetA", tmp_path)
    path = tmp_path / "imagenet" / "classnames.txt"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    shutil.rmtree(tmp_path / IMAGE_DIRS["ImageNet"] / "n01440764")
    dataset = build_dataset("ImageNet", tmp_path)
    assert dataset.classnames == list(WNIDS.values())
    assert min(labels_of(dataset.test)) == 1
    assert f"ImageNet: {path}, with 12 classes, is not CoOp's list of class names" in caplog.text
    (tmp_path / "imagenet-adversarial" / "classnames.txt").unlink()
    assert len(build_dataset("ImageNetA", tmp_path).classnames) == 4
    path.write_text(path.read_text().replace("thing 7", "missile").replace("thing 2", "missile"))
    build_dataset("ImageNet", tmp_path)
    assert "'missile' (2, 7)" in caplog.text


@pytest.mark.parametrize("text", [
    "", "n01440764\n", "tench n01440764\n", "n01440764 tench\nn01440764 goldfish\n",
    "n01440764 caf\xe9\n",
])
def test_bad_class_names_file(text, tmp_path):
    build("ImageNet", tmp_path)
    (tmp_path / "imagenet" / "classnames.txt").write_text(text, encoding="latin-1")
    refused(r"classnames.txt (must have|as UTF-8 text)", "ImageNet", tmp_path)


@pytest.mark.parametrize("name", ["ImageNet", *sorted(SHIFTS)])
def test_wrong_class_folders_get_a_remedy(name, tmp_path):
    build(name, tmp_path)
    images = tmp_path / IMAGE_DIRS[name]
    first, pattern = ("0", "0 to 11") if name == "ImageNetV2" else ("n01440764", "n[0-9]+ to n[0-9]+")
    remedy = "; .*run: python tools/download.py imagenet"
    shutil.rmtree(images)
    picture(images / "ILSVRC2012_val_00000001.JPEG")  # not sorted into class folders
    refused(f"named {pattern}, not none at all{remedy}", name, tmp_path)
    (images / first).mkdir()
    refused(f"{name} has no test images{remedy}", name, tmp_path)
    picture(images / "n99999999" / "x.JPEG")
    refused(f"per class of classnames.txt, .* not n99999999{remedy}", name, tmp_path)


def test_imagenets_training_images_are_listed_on_first_use(tmp_path, monkeypatch):
    build("ImageNet", tmp_path)
    assert len(build_dataset("ImageNet", tmp_path).train) == 0
    message = "no training images for DATASET.NUM_SHOTS 1; .*download.py imagenet"
    refused(message, "ImageNet", tmp_path, num_shots=1)
    for wnid in WNIDS:
        for n in range(3):
            picture(tmp_path / "imagenet" / "images" / "train" / wnid / f"{n}.JPEG")
    listed = []
    listdir = os.listdir

    def recording_listdir(path):
        listed.append(str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", recording_listdir)
    every = build_dataset("ImageNet", tmp_path)
    base = build_dataset("ImageNet", tmp_path, subsample_classes="base")
    new = build_dataset("ImageNet", tmp_path, subsample_classes="new")
    assert "images/train" not in " ".join(listed)
    assert (len(every.train), len(base.train), len(new.train)) == (36, 18, 18)
    assert set(labels_of(new.train)) == set(range(6)) and new.train[0].label == 0
    dataset = build_dataset("ImageNet", tmp_path, num_shots=2)
    assert Counter(labels_of(dataset.train)) == dict.fromkeys(range(12), 2)
    assert dataset.val == dataset.test  # as in CoOp


REAL = SHARED / "splits"


@pytest.mark.skipif(not REAL.is_dir(), reason="the real split files are not available")
@pytest.mark.parametrize("name", [
    "Caltech101", "OxfordPets", "OxfordFlowers", "DescribableTextures", "EuroSAT", "UCF101",
    "StanfordCars", "FGVCAircraft",
])
def test_the_real_split_files(name, tmp_path, caplog):
    cls = DATASET_REGISTRY.get(name)
    if name == "FGVCAircraft":
        shutil.copytree(REAL / "fgvc_aircraft", tmp_path / "fgvc_aircraft")
    else:
        (tmp_path / cls.folder).mkdir()
        shutil.copy(REAL / cls.metadata[0].name, tmp_path / cls.folder)
    cls.test_dir(tmp_path).mkdir(parents=True)
    dataset = build_dataset(name, tmp_path)
    assert len(dataset.classnames) == cls.expected_classes
    assert len(dataset.test) == cls.expected_test
    assert set(labels_of(dataset.test)) == set(range(len(dataset.classnames)))
    assert dataset.test_hash == cls.published_test
    assert "WARNING" not in caplog.text
