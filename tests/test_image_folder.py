"""A user's own images in class folders."""
import pytest
from data_roots import picture
from promptcal.datasets import build_dataset
from promptcal.datasets.errors import DataError


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


def test_folders_by_split(tmp_path):
    for split, names in {"train": ("a", "b"), "val": ("a",), "test": ("a", "b", "c")}.items():
        for name in names:
            for n in range(3):
                picture(tmp_path / split / name / f"{n}.jpg")
    dataset = build_dataset("ImageFolder", tmp_path)
    assert dataset.classnames == ["a", "b", "c"]
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (6, 3, 9)
    assert len(build_dataset("ImageFolder", tmp_path, num_shots=1).train) == 2


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
    with pytest.raises(DataError, match="data root /nowhere is not a folder"):
        build_dataset("ImageFolder", "/nowhere")
