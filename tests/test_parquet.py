"""Sets of the Hugging Face hub, downloaded as parquet files that the library `datasets` wrote."""
import json
import logging
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from promptcal.datasets import DATASET_REGISTRY, benchmarks, build_dataset
from promptcal.datasets.identity import identify
from promptcal.datasets.image_index import ImageIndex
from promptcal.datasets.views.images import BadImageError

from common import run_tool
from data_roots import SHARED, groups_of, labels_of, picture, refused
from folders import results_of
from made_parquet import cells, label_feature, write_columns

pytestmark = pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")

# Run where `datasets` is the library: the tests' own folder may have a folder of that name nearby.
WRITER = """
import json, sys
import datasets

folder, names, splits = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
made = {}
for split, rows in splits.items():
    columns = {"image": [{"bytes": open(path, "rb").read(), "path": None} for path, _ in rows],
               "label": [label for _, label in rows]}
    made[split] = datasets.Dataset.from_dict(columns, features=features, split=split)
for split, rows in made.items():
    count = 2 if split == "train" else 1
    for number in range(count):
        part = rows.shard(count, number, contiguous=True)
        part.to_parquet(f"{folder}/data/{split}-{number:05d}-of-{count:05d}.parquet", batch_size=2)
"""
NAMES = ["AnnualCrop", "River", "SeaLake"]


def write_with_library(folder: Path, names: list[str], splits: dict) -> None:
    (folder / "data").mkdir(parents=True)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder.parent / "hf")}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", WRITER, str(folder), json.dumps(names), json.dumps(splits)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Path:
    """A set with train, validation and test, of which train has two files."""
    top = tmp_path_factory.mktemp("hub")
    splits = {}
    for shade, (split, count) in enumerate((("train", 7), ("validation", 3), ("test", 6))):
        splits[split] = []
        for n in range(count):
            path = picture(top / "pictures" / split / f"{n}.png", shade, n)
            splits[split].append((str(path), n % 3))
    try:
        write_with_library(top / "land", NAMES, splits)
    except AssertionError as error:
        if "No module named 'datasets'" in str(error):
            pytest.skip("the library `datasets` is not installed")
        raise
    (top / "land" / ".cache" / "huggingface").mkdir(parents=True)
    (top / "land" / ".cache" / "huggingface" / "test.parquet").write_bytes(b"the hub's own notes")
    (top / "land" / "README.md").write_text("---\nlicense: mit\n---\n")
    return top


def test_names_labels_and_bytes(hub, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        dataset = build_dataset("Parquet", hub / "land")
    assert dataset.classnames == NAMES
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (7, 3, 6)
    assert labels_of(dataset.test) == [0, 1, 2, 0, 1, 2]
    for n, item in enumerate(dataset.test):
        content = (hub / "pictures" / "test" / f"{n}.png").read_bytes()
        assert dataset.stored_bytes(item) == content
        assert dataset.read_image(item).size == (12, 10)
    last = dataset.train[6]  # in the second file
    assert dataset.stored_bytes(last) == (hub / "pictures" / "train" / "6.png").read_bytes()
    few = build_dataset("Parquet", hub / "land", num_shots=2, seed=1, fewshot_dir=tmp_path)
    assert sorted(labels_of(few.train)) == [0, 0, 1, 1, 2, 2]
    assert "AnnualCrop, SeaLake" in caplog.text


def test_an_image_is_known_by_its_stored_bytes(hub, tmp_path, monkeypatch):
    """A second run reads no image to know which images these are."""
    monkeypatch.setattr("promptcal.datasets.parquet.SETTLED_NS", 0)
    dataset = build_dataset("Parquet", hub / "land")
    shutil.copytree(hub / "pictures" / "test", tmp_path / "f" / "x")
    picture(tmp_path / "f" / "y" / "other.png", 99)
    folder = build_dataset("ImageFolder", tmp_path / "f")
    of_parquet = identify(dataset, dataset.test, range(6), ImageIndex(tmp_path / "index"))
    of_files = identify(folder, folder.test, range(6), ImageIndex(None))
    assert (of_parquet.digests == of_files.digests).all()
    monkeypatch.setattr(dataset, "stored_bytes", None)
    again = identify(dataset, dataset.test, range(6), ImageIndex(tmp_path / "index"))
    assert (again.digests == of_files.digests).all()


def test_a_run(hub, tmp_path):
    names = "AnnualCrop=annual crop; River=river; SeaLake=sea or lake"
    done = run_tool(
        "train.py", "--trainer", "TPT", "--dataset-config-file", "parquet", "--root", hub / "land",
        "--backbone", "small", "--output-dir", tmp_path / "run",
        "TTA.VIEWS", 8, "TTA.SELECT", 0.5, "DATASET.CLASSNAMES", names)
    assert done.returncode == 0, done.stderr
    results = results_of(tmp_path / "run")
    assert results["n"] == 6 and results["record"]["data"]["dataset"] == "Parquet"
    with np.load(tmp_path / "run" / "predictions.npz") as file:
        assert len(np.unique(file["image"], axis=0)) == 6


@pytest.fixture
def land(hub, tmp_path) -> Path:
    return Path(shutil.copytree(hub / "land", tmp_path / "land"))


def test_splits(land, caplog):
    data = land / "data"
    (data / "train-00001-of-00002.parquet").unlink()
    refused("has 1 of the 2 files of the split 'train': download the others", "Parquet", land)
    (data / "train-00000-of-00002.parquet").unlink()
    test = data / "test-00000-of-00001.parquet"
    test.rename(data / "heldout-00000-of-00001.parquet")
    refused("no split 'test' but heldout, validation; .* \"test=validation\"", "Parquet", land)
    refused("has no split 'testing'.*; it has: heldout, validation", "Parquet", land, columns="test=testing")
    assert len(build_dataset("Parquet", land, columns="test=heldout val=validation").test) == 6
    (data / "heldout-00000-of-00001.parquet").unlink()
    assert len(build_dataset("Parquet", land).test) == 3
    assert "the only split, 'validation', is used for testing" in caplog.text


def test_the_layout_of_the_hubs_own_conversion(land):
    data = land / "data"
    for split in ("test", "validation"):
        (land / "default" / split).mkdir(parents=True)
        (data / f"{split}-00000-of-00001.parquet").rename(land / "default" / split / "0000.parquet")
    shutil.rmtree(data)
    dataset = build_dataset("Parquet", land)
    assert (len(dataset.test), len(dataset.val)) == (6, 3)
    shutil.copytree(land / "default", land / "other")
    refused("'test' is in several folders, .*/default and .*/other: give one", "Parquet", land)
    assert len(build_dataset("Parquet", land / "other").test) == 6


def test_several_columns_of_labels(hub, tmp_path):
    columns = {"img": cells(hub), "fine_label": [0, 1, 2, 3], "coarse_label": [0, 0, 1, 1]}
    features = {
        "img": {"_type": "Image"},
        "fine_label": label_feature(["oak", "elm", "cod", "eel"]),
        "coarse_label": label_feature(["trees", "fish"]),
    }
    write_columns(tmp_path / "set", columns, features)
    message = "several columns of labels: choose one of fine_label, coarse_label, .* label=fine_label"
    refused(message, "Parquet", tmp_path / "set")
    dataset = build_dataset("Parquet", tmp_path / "set", columns="label=coarse_label")
    assert dataset.classnames == ["trees", "fish"]


def test_labels_without_names_and_groups(hub, tmp_path, caplog):
    words = {"image": cells(hub), "label": ["elm", "oak", "elm", "oak"], "patient_id": [7, 7, 8, None]}
    write_columns(tmp_path / "words", words)
    dataset = build_dataset("Parquet", tmp_path / "words")
    assert dataset.classnames == ["elm", "oak"]
    assert groups_of(dataset.test) == ["7", "7", "8", ""]
    numbers = tmp_path / "numbers"
    write_columns(numbers, {"image": cells(hub), "label": [10, 9, 10, 9]})
    assert build_dataset("Parquet", numbers).classnames == ["9", "10"]
    assert "look like identifiers" in caplog.text
    dataset = build_dataset("Parquet", numbers, classnames="9=elm; 10=oak")
    assert dataset.classnames == ["elm", "oak"]


def test_what_is_refused(hub, tmp_path):
    folder = tmp_path / "set"
    features = {"label": label_feature(["elm", "oak"])}
    write_columns(folder, {"image": cells(hub), "label": [0, 1, -1, 0]}, features)
    refused("test.parquet, row 3: label -1, of 2 classes .hubs hide the labels", "Parquet", folder)
    write_columns(folder, {"image": ["a.png", "b.png"], "label": [0, 1]})
    refused(r"no images in its columns \(image, label\); .*--dataset-config-file table", "Parquet", folder)
    write_columns(folder, {"image": cells(hub), "label": [0, 1, 1, 0]})
    refused("holds the images themselves, .* use --dataset-config-file parquet", "Table", folder)
    write_columns(folder, {"image": cells(hub), "sort": [0, 1, 1, 0]})
    refused("no column of the labels is recognised among its columns: image, sort", "Parquet", folder)
    message = "has no column 'srt' .*; its columns are: image, sort. Did you mean 'sort'"
    refused(message, "Parquet", folder, columns="label=srt")
    path = folder / "test.parquet"
    path.write_bytes(path.read_bytes()[:200])
    refused("is not a complete parquet file", "Parquet", folder)
    path.unlink()
    refused("there is no parquet file in .*; give the folder of `hf download", "Parquet", folder)


def test_an_image_without_bytes_is_named(hub, tmp_path):
    rows = [*cells(hub, 3), {"bytes": None, "path": "/home/user/d.png"}]
    rows[1]["bytes"] = b"no picture"
    write_columns(tmp_path / "set", {"image": rows, "label": ["a", "b", "a", "b"]})
    dataset = build_dataset("Parquet", tmp_path / "set")
    for row, reason in ((1, "it is empty or damaged"), (3, "the file has no bytes for it")):
        with pytest.raises(BadImageError, match=f"cannot read image .*test.parquet::{row}: {reason}"):
            dataset.read_image(dataset.test[row])
    assert len(identify(dataset, dataset.test, range(4), ImageIndex(None)).digests) == 4


def test_without_pyarrow(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    refused(r"needs pyarrow: pip install 'promptcal\[parquet\]'", "Parquet", hub / "land")


def test_other_splits_of_benchmarks_are_named(hub, tmp_path, caplog):
    """DTD's test split on the hub has 1,880 images, CoOp's 1,692."""
    image = cells(hub, 1)[0]["bytes"]
    rows = []
    labels = []
    for n in range(1880):
        rows.append({"bytes": image + bytes([n % 256, n // 256]), "path": None})
        labels.append(n % 3)
    features = {"label": label_feature(["banded", "polka-dotted", "zigzagged"])}
    write_columns(tmp_path / "textures", {"image": rows, "label": labels}, features)
    build_dataset("Parquet", tmp_path / "textures")
    assert ("this is the hub's split 'test' of DTD, 1,880 images of 3 classes; published figures "
            "are of CoOp's split with 1,692 images of 47 classes and CoOp's class names: they do "
            "not compare") in caplog.text


def test_equal_counts_and_names_are_said_to_agree(hub, tmp_path, caplog, monkeypatch):
    pets = DATASET_REGISTRY.get("OxfordPets")
    monkeypatch.setattr(pets, "expected_test", 4)
    monkeypatch.setattr(pets, "expected_classes", 3)
    names = benchmarks.hash_names(["abyssinian", "american_bulldog", "wheaten_terrier"])
    record = benchmarks.Benchmark(("pets",), (), names)
    monkeypatch.setitem(benchmarks.BENCHMARKS, "OxfordPets", record)
    features = {"label": label_feature(["Abyssinian", "American Bulldog", "Wheaten Terrier"])}
    columns = {"image": cells(hub), "label": [0, 1, 2, 0]}
    write_columns(tmp_path / "pets" / "data", columns, features)
    with caplog.at_level(logging.INFO):
        build_dataset("Parquet", tmp_path / "pets")
    assert "counts and class names are those of the published test split" in caplog.text
    assert "do not compare" not in caplog.text


def test_a_file_of_real_class_names_agrees_with_the_published_hash():
    files = sorted((SHARED / "splits").glob("split_zhou_*.json"))
    if not files:
        pytest.skip("needs the published split files")
    for file in files:
        names = {}
        for rows in json.loads(file.read_text()).values():
            for _, label, name in rows:
                names[label] = name
        published = benchmarks.BENCHMARKS[file.stem.removeprefix("split_zhou_")]
        assert benchmarks.hash_names(list(names.values())) == published.names_hash
