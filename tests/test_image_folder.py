"""A user's own images in class folders."""
import logging
import shutil
from dataclasses import replace

import pytest
from data_roots import picture
from promptcal.datasets import build_dataset
from promptcal.datasets.fewshot import select_images
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
    (zoo / "zebra").rename(zoo / "plains zebra")
    (zoo / "classnames.txt").write_text("polar_bear white bear\n\nplains zebra\tGrévy's zebra\n")
    dataset = build_dataset("ImageFolder", zoo)
    assert dataset.classnames == ["ant", "Grévy's zebra", "white bear"]
    assert dataset.test[-1].classname == "white bear"


@pytest.mark.parametrize("line", ["lion king of beasts", "zebra", "zebra\t", "plains zebra striped horse"])
def test_bad_names_file(line, zoo):
    (zoo / "classnames.txt").write_text(f"{line}\n")
    with pytest.raises(DataError, match=f"a tab between the two if the folder's name has spaces.*: '{line.split()[0]}"):
        build_dataset("ImageFolder", zoo)


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


def test_classes_called_test_and_train(tmp_path):
    picture(tmp_path / "test" / "0.jpg")
    picture(tmp_path / "train" / "0.jpg")
    assert build_dataset("ImageFolder", tmp_path).classnames == ["test", "train"]


def test_what_is_missing(zoo):
    shutil.copytree(zoo / "ant", zoo / "halves" / "train" / "ant")
    with pytest.raises(DataError, match=rf"beside train the folder {zoo / 'halves' / 'test'} is missing"):
        build_dataset("ImageFolder", zoo / "halves")
    shutil.rmtree(zoo / "halves")
    with pytest.raises(DataError, match="no training images for DATASET.NUM_SHOTS 1; images must be at .*train"):
        build_dataset("ImageFolder", zoo, num_shots=1)
    (zoo / "own").mkdir()
    with pytest.raises(DataError, match="has no class folders; images must be at"):
        build_dataset("ImageFolder", zoo / "own")
    (zoo / "own" / "cat").mkdir()
    with pytest.raises(DataError, match="has no test images"):
        build_dataset("ImageFolder", zoo / "own")
    with pytest.raises(DataError, match="/nowhere is not a folder: give the one that holds the class folders with --"):
        build_dataset("ImageFolder", "/nowhere")


@pytest.mark.parametrize("line", ["1.png", "ant/1.png", "in/ant/1.png"])
def test_a_line_of_a_list_that_fits_several_images_is_refused_with_the_candidates(line, tmp_path):
    for n in range(3):
        picture(tmp_path / "ant" / f"{n}.png", n)
        picture(tmp_path / "zebra" / f"{n}.png", n)
    dataset = build_dataset("ImageFolder", tmp_path)
    test = list(dataset.test)
    for folder in ("more", "less"):
        for item in test[:6]:
            path = item.impath.replace(f"{tmp_path}/", f"{tmp_path}/{folder}/in/")
            test.append(replace(item, impath=path))
    dataset.test = test
    (tmp_path / "list.txt").write_text(f"zebra/0.png\n{line}\n./ant/2.png\n")
    if line == "ant/1.png":  # the whole path of one, and the end of two others
        select_images(dataset, "list.txt")
        assert [item.impath.removeprefix(f"{tmp_path}/") for item in dataset.test] == [
            "ant/1.png", "ant/2.png", "zebra/0.png"]
        return
    candidates = {
        "1.png": "ant/1.png, zebra/1.png, more/in/ant/1.png, more/in/zebra/1.png, less/in/ant/1.png and 1 more",
        "in/ant/1.png": "more/in/ant/1.png, less/in/ant/1.png",
    }
    message = rf"list.txt has lines that fit several test images.*: '{line}' may be {candidates[line]}$"
    with pytest.raises(DataError, match=message):
        select_images(dataset, "list.txt")


def test_lines_of_a_list_may_have_different_lengths(zoo):
    (zoo / "list.txt").write_text(f"zebra/0.png\n{zoo}/ant/1.png\n{zoo.name}/ant/2.png\n")
    dataset = build_dataset("ImageFolder", zoo, image_list="list.txt")
    names = ("ant/1.png", "ant/2.png", "zebra/0.png")
    assert [item.impath for item in dataset.test] == [str(zoo / name) for name in names]
