"""A user's own images in class folders."""
import logging
import shutil

import pytest
from data_roots import picture
from promptcal.datasets import build_dataset
from promptcal.datasets.utils.errors import DataError


@pytest.fixture
def zoo(tmp_path):
    for name in ("zebra", "polar_bear", "ant"):
        for n in range(3):
            picture(tmp_path / name / f"{n}.png")
    (tmp_path / "ant" / "notes.txt").write_text("no picture")
    (tmp_path / "ant" / "._0.png").write_bytes(b"macOS leaves these")
    (tmp_path / ".git").mkdir()
    return tmp_path


def test_flat_folders_are_the_test_split(zoo):
    dataset = build_dataset("ImageFolder", zoo)
    assert dataset.classnames == ["ant", "polar_bear", "zebra"]
    assert [item.label for item in dataset.test] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert dataset.test[0].impath == str(zoo / "ant" / "0.png")
    assert dataset.train == dataset.val == []


def test_names_file(zoo):
    (zoo / "classnames.txt").write_text("polar_bear white bear\n\nzebra\tGrévy's zebra\n")
    dataset = build_dataset("ImageFolder", zoo)
    assert dataset.classnames == ["ant", "white bear", "Grévy's zebra"]
    assert dataset.test[-1].classname == "Grévy's zebra"


@pytest.mark.parametrize("line", ["lion king of beasts", "zebra", "zebra\t"])
def test_bad_names_file(line, zoo):
    (zoo / "classnames.txt").write_text(f"{line}\n")
    with pytest.raises(DataError, match=f"not: '{line.split()[0]}"):
        build_dataset("ImageFolder", zoo)


def test_folder_names_with_spaces(zoo):
    (zoo / "zebra").rename(zoo / "plains zebra")
    (zoo / "classnames.txt").write_text("plains zebra striped horse\n")
    with pytest.raises(DataError, match=r"with a tab between the two where a folder's name has spaces.*'plains zebra"):
        build_dataset("ImageFolder", zoo)
    (zoo / "classnames.txt").write_text("plains zebra\tstriped horse\n")
    assert build_dataset("ImageFolder", zoo).classnames == ["ant", "striped horse", "polar_bear"]


def test_classes_without_a_test_image(zoo, caplog):
    build_dataset("ImageFolder", zoo)
    assert not caplog.records
    for name in ("ant", "zebra"):
        for path in (zoo / name).glob("*.png"):
            path.unlink()
    with caplog.at_level(logging.WARNING):
        assert len(build_dataset("ImageFolder", zoo).test) == 3
    assert "ImageFolder: 2 classes have no test image: 'ant', 'zebra'" in caplog.text


def test_folders_by_split(tmp_path):
    for split, names in {"train": ("a", "b"), "val": ("a",), "test": ("a", "b", "c")}.items():
        for name in names:
            for n in range(3):
                picture(tmp_path / split / name / f"{n}.jpg")
    dataset = build_dataset("ImageFolder", tmp_path)
    assert dataset.classnames == ["a", "b", "c"]
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (6, 3, 9)
    assert len(build_dataset("ImageFolder", tmp_path, num_shots=1).train) == 2


@pytest.mark.parametrize("splits", [("train", "val"), ("train",), ("val",)])
def test_the_test_folder_is_missing(splits, zoo):
    for split in splits:
        shutil.copytree(zoo / "ant", zoo / "own" / split / "ant")
    with pytest.raises(DataError, match=rf"beside {' and '.join(splits)} the folder {zoo / 'own' / 'test'} is missing"):
        build_dataset("ImageFolder", zoo / "own")


def test_a_class_called_test(tmp_path):
    picture(tmp_path / "test" / "0.jpg")
    picture(tmp_path / "train" / "0.jpg")
    assert build_dataset("ImageFolder", tmp_path).classnames == ["test", "train"]


def test_shots_need_a_train_folder(zoo):
    with pytest.raises(DataError, match="no training images"):
        build_dataset("ImageFolder", zoo, num_shots=1)


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match="has no class folders; images must lie as"):
        build_dataset("ImageFolder", tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match="has no test images"):
        build_dataset("ImageFolder", tmp_path)
    with pytest.raises(DataError, match="/nowhere is not a folder: give the one that holds the class folders with --"):
        build_dataset("ImageFolder", "/nowhere")
