"""Miniature data roots in the true layout of each data set."""
import json
import pickle
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from promptcal.datasets import build_dataset
from promptcal.datasets.base import Datum
from promptcal.datasets.imagenet_c import CorruptedDataset
from promptcal.datasets.utils.errors import DataError

SHARED = Path(__file__).resolve().parents[2] / "shared"

# Class folders as the archives have them, and the class names of the published splits, by label.
FOLDERS = {
    "Caltech101": {
        "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike",
        "accordion": "accordion", "airplanes": "airplane", "anchor": "anchor",
        "crocodile_head": "crocodile_head",
    },
    "Food101": {"apple_pie": "apple_pie", "baby_back_ribs": "baby_back_ribs", "baklava": "baklava"},
    "SUN397": {
        "a/abbey": "abbey",
        "a/apartment_building/outdoor": "outdoor apartment_building",
        "b/basketball_court/indoor": "indoor basketball_court",
    },
    "DescribableTextures": {"banded": "banded", "blotchy": "blotchy", "polka-dotted": "polka-dotted"},
    "EuroSAT": {
        "AnnualCrop": "Annual Crop Land",
        "Forest": "Forest",
        "HerbaceousVegetation": "Herbaceous Vegetation Land",
        "Highway": "Highway or Road",
        "Industrial": "Industrial Buildings",
        "Pasture": "Pasture Land",
        "PermanentCrop": "Permanent Crop Land",
        "Residential": "Residential Buildings",
        "River": "River",
        "SeaLake": "Sea or Lake",
    },
    "UCF101": {"Apply_Eye_Makeup": "Apply_Eye_Makeup", "Archery": "Archery", "Yo_Yo": "Yo_Yo"},
}
IMAGE_DIRS = {
    "Caltech101": "caltech-101/101_ObjectCategories",
    "OxfordPets": "oxford_pets/images",
    "StanfordCars": "stanford_cars",
    "OxfordFlowers": "oxford_flowers/jpg",
    "Food101": "food-101/images",
    "FGVCAircraft": "fgvc_aircraft/images",
    "SUN397": "sun397/SUN397",
    "DescribableTextures": "dtd/images",
    "EuroSAT": "eurosat/2750",
    "UCF101": "ucf101/UCF-101-midframes",
    "ImageNet": "imagenet/images/val",
    "ImageNetV2": "imagenetv2/imagenetv2-matched-frequency-format-val",
    "ImageNetSketch": "imagenet-sketch/images",
    "ImageNetA": "imagenet-adversarial/imagenet-a",
    "ImageNetR": "imagenet-rendition/imagenet-r",
}
CORRUPTIONS = CorruptedDataset.corruptions
CORRUPTED_AND_CIFAR = {"CIFAR10", "CIFAR100", "CIFAR10C", "CIFAR100C", "ImageNetC"}
# Sets whose images all lie in one folder: their class names by label.
BREEDS = ("Abyssinian", "american_bulldog", "Bengal")
FLOWERS = ("pink primrose", "colt's foot")
CARS = ("2000 AM General Hummer SUV", "2012 Ram C/V Cargo Van Minivan")
# The numbers of a class's images in each split.
NUMBERS = {"train": range(4, 10), "val": (3,), "test": (1, 2)}
WNIDS = {f"n{1440764 + 1000 * i:08d}": f"thing {i}" for i in range(12)}
VARIANTS = ["707-320", "A340-300", "F/A-18", "Model B200"]


def labels_of(items: Iterable[Datum]) -> list[int]:
    return [item.label for item in items]


def paths_of(items: Iterable[Datum]) -> list[str]:
    return [item.impath for item in items]


def file_names_of(items: Iterable[Datum]) -> list[str]:
    return [Path(item.impath).name for item in items]


def classnames_of(items: Iterable[Datum]) -> list[str]:
    return [item.classname for item in items]


def groups_of(items: Iterable[Datum]) -> list[str]:
    return [item.group for item in items]


def refused(message: str, *arguments: object, **options: object) -> None:
    """`build_dataset` with these arguments raises a DataError whose message matches."""
    with pytest.raises(DataError, match=message):
        build_dataset(*arguments, **options)


def picture(path: Path, shade: int = 0, number: int = 102) -> Path:
    """A plain picture: red is `shade`, and green and blue tell the pictures of a set apart."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = (shade % 256, 15 * (number % 16), 15 * (number // 16) + 70)
    Image.new("RGB", (12, 10), colour).save(path)
    return path


def write_split(root: Path, name: str, splits: dict) -> Path:
    path = root / IMAGE_DIRS[name].split("/")[0] / f"split_zhou_{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(splits))
    return path


def entries(name: str) -> dict:
    """Two test, one val and six train images per class, with the paths of the real set."""
    splits = {}
    for split, numbers in NUMBERS.items():
        rows = []
        if name == "OxfordPets":
            for label, breed in enumerate(BREEDS):
                rows += [[f"{breed}_{n}.jpg", label, breed.lower()] for n in numbers]
        elif name == "OxfordFlowers":
            for label, flower in enumerate(FLOWERS):
                rows += [[f"image_{10 * label + n:05d}.jpg", label, flower] for n in numbers]
        elif name == "StanfordCars":
            folder = "cars_test" if split == "test" else "cars_train"
            for label, car in enumerate(CARS):
                rows += [[f"{folder}/{10 * label + n:05d}.jpg", label, car] for n in numbers]
        else:
            for label, (folder, classname) in enumerate(FOLDERS[name].items()):
                rows += [[f"{folder}/image_{n:04d}.jpg", label, classname] for n in numbers]
        splits[split] = rows
    return splits


def build(name: str, root: Path) -> list[str]:
    """Makes the set `name` under `root` and returns its class names; [] for CIFAR and corrupted sets."""
    if name in CORRUPTED_AND_CIFAR:
        build_corrupted_or_cifar(name, root)
        return []
    images = root / IMAGE_DIRS[name]
    if name.startswith("ImageNet"):
        return build_imagenet(name, images)
    if name == "FGVCAircraft":
        return build_aircraft(images)
    splits = entries(name)
    write_split(root, name, splits)
    rows = [*splits["train"], *splits["val"], *splits["test"]]
    for number, (path, label, _) in enumerate(rows):
        picture(images / path, label, number)
    return [classname for _, _, classname in splits["val"]]


def build_corrupted_or_cifar(name: str, root: Path) -> None:
    """With all corruptions at all severities; of ImageNet-C those between 1 and 5 are empty folders."""
    classes = 100 if "100" in name else 10
    if name == "ImageNetC":
        build_imagenet_c(root, list(CORRUPTIONS), (1, 5))
        for corruption in CORRUPTIONS:
            for severity in ("2", "3", "4"):
                (root / "ImageNet-C" / corruption / severity).mkdir()
    elif name.endswith("C"):
        build_cifar_c(root, list(CORRUPTIONS), classes)
    else:
        build_cifar(root, classes)


def build_aircraft(images: Path) -> list[str]:
    (images.parent).mkdir(parents=True, exist_ok=True)
    (images.parent / "variants.txt").write_text("\n".join(VARIANTS) + "\n")
    for start, split in enumerate(("train", "val", "test")):
        lines = []
        for label, variant in enumerate(VARIANTS):
            for n in range(2):
                number = f"{1000 * start + 10 * label + n:07d}"
                picture(images / f"{number}.jpg", label, 8 * start + 2 * label + n)
                lines.append(f"{number} {variant}")
        (images.parent / f"images_variant_{split}.txt").write_text("\n".join(lines) + "\n")
    return VARIANTS


def write_classnames(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{wnid} {classname}\n" for wnid, classname in WNIDS.items()]
    (folder / "classnames.txt").write_text("".join(lines))


def build_imagenet(name: str, images: Path) -> list[str]:
    """Every class for ImageNet, V2 (numbered folders) and Sketch; every third for A and R."""
    folder = images.parents[1] if name == "ImageNet" else images.parent
    write_classnames(folder)
    wnids = list(WNIDS)
    if name in ("ImageNetA", "ImageNetR"):
        wnids = wnids[::3]
    for number, wnid in enumerate(wnids):
        class_folder = str(number) if name == "ImageNetV2" else wnid
        for n in range(2):
            picture(images / class_folder / f"{wnid}_{n}.JPEG", number, 2 * number + n)
    (images / "README.txt").write_text("not a class")
    first = images / ("0" if name == "ImageNetV2" else wnids[0])
    (first / "._0.JPEG").write_bytes(b"macOS leaves these")
    return [WNIDS[wnid] for wnid in wnids]


def build_imagenet_c(
    root: Path, corruptions: list[str], severities: tuple = (1, 2, 3, 4, 5),
    name: str = "ImageNet-C",
) -> None:
    """Two images of each of twelve classes under each corruption."""
    for corruption in corruptions:
        for severity in severities:
            for wnid in WNIDS:
                folder = root / name / corruption / str(severity) / wnid
                for n in range(2):
                    picture(folder / f"ILSVRC2012_val_{n:08d}.JPEG", severity)
    write_classnames(root / name)


def build_cifar(root: Path, classes: int = 10, rows: int = 20, protocol: int = 2) -> np.ndarray:
    """The files of CIFAR-10 or CIFAR-100 that torchvision reads, with few images. Returns the test
    images."""
    rng = np.random.default_rng(classes)
    if classes == 10:
        folder = root / "cifar-10-batches-py"
        files = ["test_batch", *(f"data_batch_{n}" for n in range(1, 6))]
        label_key = "labels"
    else:
        folder = root / "cifar-100-python"
        files = ["test", "train"]
        label_key = "fine_labels"
    folder.mkdir(parents=True)
    images = {}
    for file in files:
        pixels = rng.integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
        content = {
            "data": pixels.transpose(0, 3, 1, 2).reshape(rows, -1),
            label_key: [n % classes for n in range(rows)],
            "filenames": ["x.png"] * rows,
        }
        (folder / file).write_bytes(pickle.dumps(content, protocol=protocol))
        images[file] = pixels
    return images[files[0]]


def build_cifar_c(root: Path, corruptions: list[str], classes: int = 10, rows: int = 20) -> dict[str, np.ndarray]:
    """`rows` images at five severities under each corruption."""
    rng = np.random.default_rng(classes)
    folder = root / f"CIFAR-{classes}-C"
    folder.mkdir(parents=True)
    arrays = {}
    for name in corruptions:
        arrays[name] = rng.integers(0, 256, (5 * rows, 32, 32, 3), dtype=np.uint8)
    arrays["labels"] = np.tile(np.arange(rows) % classes, 5).astype(np.uint8)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return arrays
