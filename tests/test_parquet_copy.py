"""Stanford Cars and SUN397 from copies in parquet files; second hosts of other sets; failed
downloads."""
import dataclasses
import json
import logging
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from promptcal.datasets import DATASET_REGISTRY, build_dataset
from promptcal.datasets.download.fetch import FetchError, Source, fetch_once
from promptcal.datasets.download.install import download_dataset, manual_steps
from promptcal.datasets.download.verify import inspect
from promptcal.datasets.file_dataset import SplitFileDataset
from promptcal.datasets.utils.errors import DataError
from promptcal.tools import download

from data_roots import IMAGE_DIRS, build, entries, write_split
from file_server import serving
from folders import contents, names
from hosted_sets import hosted
from made_parquet import label_feature, write_columns

needs_pyarrow = pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
pytestmark = pytest.mark.usefixtures("no_internet")
# The year is last, as on the hub.
CARS = ["AM General Hummer SUV 2000", "Ram C-V Cargo Van Minivan 2012"]


@pytest.fixture(autouse=True)
def all_messages(caplog):
    caplog.set_level(logging.INFO)


def make_copy(name: str, tmp_path: Path, hub_names: list[str], with_paths: bool = False, leave_out: int = -1) -> Path:
    """A hub's copy of a miniature set, with the split file beside it.

    `leave_out` is the number of a test image that is not in it.
    """
    build(name, tmp_path / "made")
    images = tmp_path / "made" / IMAGE_DIRS[name]
    splits = entries(name)
    test_rows = list(splits["test"])
    if leave_out >= 0:
        del test_rows[leave_out]
    for split, rows in {"test": test_rows, "train": splits["train"] + splits["val"]}.items():
        columns = {"image": [], "label": []}
        for path, label, _ in reversed(rows):
            cell_path = Path(path).name if with_paths else None
            columns["image"].append({"bytes": (images / path).read_bytes(), "path": cell_path})
            columns["label"].append(label)
        features = {"label": label_feature(hub_names)}
        write_columns(tmp_path / "copy" / "data", columns, features, f"{split}-00000-of-00001.parquet")
    shutil.copy(write_split(tmp_path / "made", name, splits), tmp_path / "copy")
    return tmp_path / "copy"


def labelled_contents(items) -> list[tuple[int, bytes]]:
    return [(item.label, Path(item.impath).read_bytes()) for item in items]


@needs_pyarrow
@pytest.mark.parametrize("with_paths", [True, False])
def test_cars_from_a_copy(with_paths, tmp_path, caplog):
    copy = make_copy("StanfordCars", tmp_path, CARS, with_paths)
    root = tmp_path / "root"
    assert download.main(["stanford_cars", "--root", str(root), "--mirror", str(copy)]) == 0, (caplog.text)
    assert "stanford_cars: ready, 4 test images of 2 classes" in caplog.text
    dataset = build_dataset("StanfordCars", root)
    dataset.check_files([*dataset.train, *dataset.val, *dataset.test])
    original = build_dataset("StanfordCars", tmp_path / "made")
    assert dataset.test_hash == original.test_hash
    test_images = labelled_contents(dataset.test)
    original_images = labelled_contents(original.test)
    if with_paths:
        assert test_images == original_images
        assert labelled_contents(dataset.train) == labelled_contents(original.train)
    else:  # the images of a class may change places, and no others
        assert sorted(test_images) == sorted(original_images)
    assert names(root) == ["stanford_cars"]
    assert ("few-shot samples are not CoOp's" in caplog.text) is not with_paths


@needs_pyarrow
def test_another_set_is_refused_with_both_counts(tmp_path, caplog):
    cls = DATASET_REGISTRY.get("StanfordCars")
    copy = make_copy("StanfordCars", tmp_path, CARS, leave_out=2)
    assert not download_dataset(cls, tmp_path / "root", str(copy))
    assert ("it has 3 test images, the split file 4; images by class there and in the split file: "
            "'2012 Ram C/V Cargo Van Minivan' 1 and 2") in caplog.text
    assert not (tmp_path / "root" / "stanford_cars" / "cars_test").exists()
    assert names(tmp_path / "root") == ["stanford_cars"]
    caplog.clear()
    shutil.rmtree(tmp_path / "copy")
    copy = make_copy("StanfordCars", tmp_path, ["Hummer", CARS[1]])
    assert not download_dataset(cls, tmp_path / "root", str(copy))
    message = "only in the copy: 'Hummer'; only in the split file: 2000 AM General Hummer SUV"
    assert message in caplog.text


def test_another_archive_of_eurosat(tmp_path, monkeypatch, caplog):
    """Zenodo's has another name and another folder."""
    cls, archives = hosted("EuroSAT", tmp_path, monkeypatch)
    source = cls.archives[0]
    zenodo = dataclasses.replace(source.substitute, checksum="")
    monkeypatch.setattr(cls, "archives", (dataclasses.replace(source, substitute=zenodo),))
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(archives / source.name, unpacked)
    (unpacked / "2750").rename(unpacked / "EuroSAT_RGB")
    (archives / source.name).unlink()
    shutil.make_archive(str(archives / "EuroSAT_RGB"), "zip", unpacked)
    assert download_dataset(cls, tmp_path / "root", str(archives))
    assert len(build_dataset("EuroSAT", tmp_path / "root").test) == 20
    with serving() as server:
        server.files = contents(archives)
        assert download_dataset(cls, tmp_path / "other", server.address)
    assert (tmp_path / "other" / "eurosat" / "2750").is_dir()
    steps = manual_steps(cls, tmp_path / "third")
    assert "zenodo.org/records/7711810" in steps
    assert f"EuroSAT_RGB to {tmp_path / 'third' / 'eurosat' / '2750'}" in steps


def test_a_failed_download_leaves_no_empty_folder(tmp_path):
    root = tmp_path / "new" / "root"
    assert not download_dataset(DATASET_REGISTRY.get("DescribableTextures"), root)
    assert names(tmp_path) == []
    with pytest.raises(FetchError):
        fetch_once("http://127.0.0.1:9/ViT.pt", tmp_path / "cache" / "clip", "sha256:00")
    assert names(tmp_path) == []


def test_a_plugins_set_gets_advice_that_works(tmp_path, monkeypatch):
    """Its command names the plugin; a set that nothing can download is not suggested to be."""
    class GardenBirds(SplitFileDataset):
        folder = "birds"
        images = "photos"
        metadata = (Source("labels.json"),)

    GardenBirds.__module__ = "lab.birds"
    step = f"put its images into {tmp_path}/birds/photos"
    message = f"there is no folder .*birds; correct --root or DATASET.ROOT, or {step}"
    with pytest.raises(DataError, match=message):
        GardenBirds(tmp_path)
    assert inspect(GardenBirds, tmp_path).advice == step
    (tmp_path / "birds" / "photos").mkdir(parents=True)
    with pytest.raises(DataError, match=f"{tmp_path}/birds/labels.json is missing; put it there"):
        GardenBirds(tmp_path)
    content = {"test": [["a.jpg", 0, "robin"], ["b.jpg", 1, "wren"]]}
    (tmp_path / "birds" / "labels.json").write_text(json.dumps(content))
    dataset = GardenBirds(tmp_path)
    message = f"2 of 2 images are missing: .*; its images belong in {tmp_path}/birds/photos"
    with pytest.raises(DataError, match=message):
        dataset.check_files(dataset.test)
    archive = Source("photos.zip", urls=("https://lab.org/photos.zip",))
    monkeypatch.setattr(GardenBirds, "archives", (archive,))
    shutil.rmtree(tmp_path / "birds")
    with pytest.raises(DataError, match=f"download.py birds --root {tmp_path} --plugin lab.birds"):
        GardenBirds(tmp_path)
