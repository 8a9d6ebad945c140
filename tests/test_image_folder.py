"""A user's own images in class folders."""
import logging
import shutil
from dataclasses import replace

import pytest
from promptcal.datasets import build_dataset
from promptcal.datasets.selection import select_images
from promptcal.datasets.utils.errors import DataError

from data_roots import groups_of, labels_of, paths_of, picture, refused


@pytest.fixture
def zoo(tmp_path):
    for shade, name in enumerate(("zebra", "polar_bear", "ant")):
        for n in range(3):
            picture(tmp_path / name / f"{n}.png", shade, n)
    (tmp_path / "ant" / "notes.txt").write_text("no picture")
    (tmp_path / "ant" / "._0.png").write_bytes(b"macOS leaves these")
    (tmp_path / ".git").mkdir()
    (tmp_path / "__MACOSX" / "ant").mkdir(parents=True)
    return tmp_path


def test_flat_folders_are_the_test_split(zoo):
    dataset = build_dataset("ImageFolder", zoo)
    assert dataset.classnames == ["ant", "polar_bear", "zebra"]
    assert labels_of(dataset.test) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert dataset.test[0].impath == str(zoo / "ant" / "0.png")
    assert dataset.train == dataset.val == []


def test_names_file(zoo):
    (zoo / "zebra").rename(zoo / "plains zebra")
    (zoo / "classnames.txt").write_text("\ufeffpolar_bear white bear\n\nplains zebra\tGrévy's zebra\n")
    dataset = build_dataset("ImageFolder", zoo)
    assert dataset.classnames == ["ant", "Grévy's zebra", "white bear"]
    assert dataset.test[-1].classname == "white bear"


@pytest.mark.parametrize("line", ["lion king of beasts", "zebra", "plains zebra striped horse"])
def test_bad_names_file(line, zoo):
    (zoo / "classnames.txt").write_text(f"{line}\n")
    with pytest.raises(DataError, match=f"a tab between the two if the folder's name has spaces.*: "
                                        f"'{line.split()[0]}"):
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
    test = zoo / "halves" / "test"
    refused(f"beside train the folder {test} is missing", "ImageFolder", zoo / "halves")
    shutil.rmtree(zoo / "halves")
    message = "no training images for DATASET.NUM_SHOTS 1; images must be at .*train"
    refused(message, "ImageFolder", zoo, num_shots=1)
    (zoo / "own").mkdir()
    refused("has no class folders; images must be at", "ImageFolder", zoo / "own")
    (zoo / "own" / "cat").mkdir()
    refused("has no test images", "ImageFolder", zoo / "own")
    refused("/nowhere is not a folder: give the one that holds your ", "ImageFolder", "/nowhere")
    above = zoo.parent / "above"
    shutil.copytree(zoo, above / "animals")
    refused(f"has one folder only, 'animals'; .* use --root {above}/animals", "ImageFolder", above)


@pytest.fixture
def nested(tmp_path):
    """Images below the root, and images of the same names in folders further below."""
    for n in range(3):
        picture(tmp_path / "ant" / f"{n}.png", n)
        picture(tmp_path / "zebra" / f"{n}.png", n)
    dataset = build_dataset("ImageFolder", tmp_path)
    items = list(dataset.test)
    for folder in ("more", "less"):
        for item in items:
            path = item.impath.replace(f"{tmp_path}/", f"{tmp_path}/{folder}/in/")
            dataset.test.append(replace(item, impath=path))
    return dataset


@pytest.mark.parametrize(("line", "candidates"), [
    ("1.png", "ant/1.png, zebra/1.png, more/in/ant/1.png, more/in/zebra/1.png, less/in/ant/1.png and 1 more"),
    ("in/ant/1.png", "more/in/ant/1.png, less/in/ant/1.png"),
])
def test_a_line_of_a_list_that_fits_several_images_is_refused_with_the_candidates(line, candidates, nested, tmp_path):
    (tmp_path / "list.txt").write_text(f"zebra/0.png\n{line}\n./ant/2.png\n")
    message = f"list.txt has lines that fit several test images.*: '{line}' may be {candidates}$"
    with pytest.raises(DataError, match=message):
        select_images(nested, "list.txt")


def test_lines_of_a_list_may_have_different_lengths(nested, tmp_path):
    """The whole path of an image is preferred to the end of others."""
    (tmp_path / "list.txt").write_text(f"zebra/0.png\n{tmp_path}/ant/1.png\n./ant/2.png\n{tmp_path.name}/ant/0.png\n")
    select_images(nested, "list.txt")
    names = ("ant/0.png", "ant/1.png", "ant/2.png", "zebra/0.png")
    assert paths_of(nested.test) == [str(tmp_path / name) for name in names]


def test_one_class_is_refused_and_a_table_nearby_is_named(tmp_path, caplog):
    for n in range(3):
        picture(tmp_path / "images" / f"{n}.png", n)
    refused("one class only, 'images': every prediction would be right", "ImageFolder", tmp_path)
    (tmp_path / "labels.csv").write_text("path,diagnosis\n")
    advice = f"{tmp_path}/labels.csv is a table: .* use --dataset-config-file table --root {tmp_path}$"
    refused(advice, "ImageFolder", tmp_path)
    refused(f"has no class folders; .*{advice}", "ImageFolder", tmp_path / "images")
    picture(tmp_path / "more images" / "3.png", 3)
    build_dataset("ImageFolder", tmp_path)
    assert f"folders are taken for classes; {tmp_path}/labels.csv is a table" in caplog.text


@pytest.mark.parametrize("folders", [
    ("Training", "Testing"), ("seg_train/seg_train", "seg_test/seg_test"), ("TRAIN", "test_set"),
    ("train", "test"),
])
def test_names_of_splits(folders, tmp_path):
    for shade, folder in enumerate(folders):
        for number, name in enumerate(("glioma", "no_tumor")):
            picture(tmp_path / folder / name / "0.jpg", shade, number)
    dataset = build_dataset("ImageFolder", tmp_path)
    assert dataset.classnames == ["glioma", "no_tumor"]
    assert (len(dataset.train), len(dataset.test)) == (2, 2)
    assert folders[1] in dataset.test[0].impath
    picture(tmp_path / "testing" / "glioma" / "9.jpg", 9)
    if folders[1] != "Testing":
        refused("are both folders of the test split", "ImageFolder", tmp_path)


def test_folders_of_patients_are_groups(tmp_path, caplog):
    for shade, patient in enumerate(("benign/p1", "benign/p2", "malignant/p1")):
        for n in range(2):
            picture(tmp_path / "test" / patient / "slide" / f"{n}.png", shade, n)
    picture(tmp_path / "train" / "benign" / "p2" / "0.png", 7)
    dataset = build_dataset("ImageFolder", tmp_path)
    assert dataset.classnames == ["benign", "malignant"]
    assert groups_of(dataset.test) == ["p1", "p1", "p2", "p2", "p1", "p1"]
    assert "1 group is in two splits" in caplog.text and "'p2' (test, train)" in caplog.text


def test_pictures_beside_masks(tmp_path):
    for shade, kind in enumerate(("covid", "normal")):
        picture(tmp_path / kind / "images" / "0.png", shade)
        picture(tmp_path / kind / "masks" / "0.png", shade, 5)
    dataset = build_dataset("ImageFolder", tmp_path)
    covid, normal = dataset.test
    assert covid.impath == str(tmp_path / "covid" / "images" / "0.png")
    assert normal.impath == str(tmp_path / "normal" / "images" / "0.png")
    assert covid.group == normal.group == ""


def test_files_of_unknown_kind_are_counted(zoo, caplog):
    for n in range(3):
        (zoo / "zebra" / f"{n}.dcm").write_bytes(b"DICM")
    (zoo / "ant" / "x.heic").write_bytes(b"heic")
    build_dataset("ImageFolder", zoo)
    assert f"3 .dcm (such as {zoo}/zebra/0.dcm), 1 .heic" in caplog.text
    for path in zoo.glob("*/*.png"):
        path.unlink()
    refused("no test images; files of a kind that is not read: 3 .dcm", "ImageFolder", zoo)


def test_words_of_folders(zoo):
    words = "ant=Lasius niger; zebra=plains zebra; polar_bear=white bear"
    assert build_dataset("ImageFolder", zoo, classnames=words).classnames == [
        "Lasius niger", "white bear", "plains zebra"]
    refused("no words for the folders 'polar_bear', 'zebra'", "ImageFolder", zoo, classnames="ant=Lasius niger")
