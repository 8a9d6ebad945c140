"""The table of what a data root contains."""
import logging
import shutil

import pytest
from common import run_tool
from data_roots import IMAGE_DIRS, SHARED, build, entries, write_split
from promptcal.datasets import DATASET_REGISTRY
from promptcal.datasets.download.verify import inspect


@pytest.fixture
def textures(tmp_path, monkeypatch):
    cls = DATASET_REGISTRY.get("DescribableTextures")
    monkeypatch.setattr(cls, "expected_test", 6)
    monkeypatch.setattr(cls, "expected_classes", 3)
    monkeypatch.setattr(cls, "published_test", "")
    build("DescribableTextures", tmp_path)
    return cls, tmp_path


def test_a_whole_set(textures):
    cls, root = textures
    finding = inspect(cls, root, deep=True)
    assert (finding.state, finding.test, finding.classes, finding.advice) == ("ok", 6, 3, "")
    assert len(finding.split) == 12


def test_an_absent_set(tmp_path):
    finding = inspect(DATASET_REGISTRY.get("UCF101"), tmp_path)
    assert finding.row()[1:] == (
        "absent", "–", "3,783", "–", "101", "", f"python tools/download.py ucf101 --root {tmp_path}",
    )


def test_partial_sets(textures, monkeypatch):
    cls, root = textures
    monkeypatch.setattr(cls, "published_test", "0123456789ab")
    finding = inspect(cls, root)
    assert (finding.state, finding.advice) == (
        "partial", f"the test split ({finding.split}) is not the published one (0123456789ab); "
                   f"figures will not compare with published ones")
    monkeypatch.setattr(cls, "expected_test", 7)
    finding = inspect(cls, root)
    assert (finding.state, finding.advice) == (
        "partial", "6 test images of 3 classes here, 7 of 3 in the published set; "
                   "figures will not compare with published ones")


def test_warnings_of_readers_are_in_the_table(textures, caplog):
    cls, root = textures
    splits = entries("DescribableTextures")
    splits["train"].append(splits["test"][0])
    for rows in splits.values():
        rows[:] = [[path, label, "banded" if label == 2 else name] for path, label, name in rows]
    write_split(root, "DescribableTextures", splits)
    finding = inspect(cls, root)
    assert finding.state == "ok"
    assert finding.advice == (
        f"1 class names stand for several labels: 'banded' (0, 2); "
        f"1 test images are also training images: {root / 'dtd/images/banded/image_0001.jpg'}")
    assert not caplog.records  # in the table instead of above it
    logging.getLogger("promptcal.datasets").warning("shown again afterwards")
    assert "shown again afterwards" in caplog.text


def test_splits_without_images_are_absent_sets(tmp_path):
    """What `download.py splits` leaves."""
    for name in ("DescribableTextures", "StanfordCars", "ImageNetA"):
        build(name, tmp_path)
        images = DATASET_REGISTRY.get(name).test_dir(tmp_path)
        shutil.rmtree(images)
        finding = inspect(DATASET_REGISTRY.get(name), tmp_path)
        assert finding.state == "absent"
        assert f"there is no folder {images}; run: python tools/download.py" in finding.advice
    assert run("--root", tmp_path).returncode == 0


@pytest.mark.parametrize("name", IMAGE_DIRS)
def test_advice_for_an_empty_image_folder(name, tmp_path):
    build(name, tmp_path)
    cls = DATASET_REGISTRY.get(name)
    shutil.rmtree(cls.test_dir(tmp_path))
    cls.test_dir(tmp_path).mkdir()
    finding = inspect(cls, tmp_path)
    assert finding.state == "faulty"
    assert "tools/download.py" in finding.advice and "check_data" not in finding.advice


def test_a_missing_split_file_is_not_downloaded(textures):
    cls, root = textures
    (root / "dtd" / "split_zhou_DescribableTextures.json").unlink()
    finding = inspect(cls, root)
    assert finding.state == "faulty"
    assert "https://drive.google.com/file/d/1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x/view" in finding.advice


def test_absent_images(textures):
    cls, root = textures
    (root / IMAGE_DIRS["DescribableTextures"] / "banded" / "image_0004.jpg").unlink()
    finding = inspect(cls, root, deep=True)
    assert finding.state == "ok"
    assert finding.advice.startswith("1 of 21 training images missing")
    (root / IMAGE_DIRS["DescribableTextures"] / "banded" / "image_0001.jpg").unlink()
    finding = inspect(cls, root)
    assert finding.state == "faulty"
    assert "1 of 6 images are missing" in finding.advice


def test_deep_opens_every_image(textures):
    cls, root = textures
    broken = root / IMAGE_DIRS["DescribableTextures"] / "banded" / "image_0005.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    assert inspect(cls, root).state == "ok"
    finding = inspect(cls, root, deep=True)
    assert (finding.state, finding.advice) == ("faulty", f"1 unreadable images: {broken}")


def run(*arguments):
    return run_tool("check_data.py", *arguments)


def test_command_line(tmp_path):
    """A row for each set; one that cannot be read does not stop the others."""
    for name in ("DescribableTextures", "EuroSAT", "ImageNetV2"):
        build(name, tmp_path)
    (tmp_path / IMAGE_DIRS["EuroSAT"] / "River" / "image_0001.jpg").unlink()
    folder = tmp_path / "dtd" / "images" / "banded"
    shutil.rmtree(folder)
    folder.symlink_to(folder)
    result = run("--root", tmp_path)
    assert (result.returncode, result.stderr) == (1, "")
    states = {line.split()[0]: line.split()[1] for line in result.stdout.splitlines() if len(line.split()) > 1}
    wanted = dict.fromkeys((DATASET_REGISTRY.get(name).key() for name in IMAGE_DIRS), "absent")
    wanted |= {"dtd": "faulty", "eurosat": "faulty", "imagenetv2": "partial"}
    assert wanted.items() <= states.items()
    assert "Too many levels of symbolic links" in " ".join(result.stdout.split())


@pytest.mark.parametrize("arguments", [("--root", "/nowhere"), ("nothing", "--root", "/"), ("--root", "/" + "x" * 300)])
def test_command_line_errors(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1


def test_the_real_samples():
    if not (SHARED / "samples").is_dir():
        pytest.skip("the real samples are not available")
    for name in ("Caltech101", "OxfordPets", "OxfordFlowers", "DescribableTextures", "FGVCAircraft", "ImageNet"):
        finding = inspect(DATASET_REGISTRY.get(name), SHARED / "samples", deep=name == "DescribableTextures")
        assert finding.state == "partial"
