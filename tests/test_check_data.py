"""The table of what a data root contains."""
import shutil

import pytest
from promptcal.datasets import DATASET_REGISTRY, build_dataset
from promptcal.datasets.download.verify import inspect
from promptcal.trainers import build_cfg, build_trainer

from common import run_tool
from data_roots import IMAGE_DIRS, build, entries, write_split

DTD = DATASET_REGISTRY.get("DescribableTextures")
IMAGES = IMAGE_DIRS["DescribableTextures"]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """With a miniature DTD that passes for the published one."""
    monkeypatch.setattr(DTD, "expected_test", 6)
    monkeypatch.setattr(DTD, "expected_classes", 3)
    monkeypatch.setattr(DTD, "published_test", "")
    build("DescribableTextures", tmp_path)
    return tmp_path


def test_states_and_advice(root, monkeypatch):
    finding = inspect(DTD, root, deep=True)
    assert (finding.state, finding.test, finding.classes, finding.advice) == ("ok", 6, 3, "")
    assert inspect(DATASET_REGISTRY.get("UCF101"), root).row()[1:] == (
        "absent", "–", "3,783", "–", "101", "", f"python tools/download.py ucf101 --root {root}",
    )
    monkeypatch.setattr(DTD, "published_test", "0123456789ab")
    different = f"the test split ({finding.split}) is not the published one (0123456789ab)"
    finding = inspect(DTD, root)
    assert (finding.state, finding.advice) == ("partial", different)
    monkeypatch.setattr(DTD, "expected_test", 7)
    finding = inspect(DTD, root)
    assert (finding.state, finding.advice) == (
        "partial", "6 test images of 3 classes here, 7 of 3 in the published set")
    (root / "dtd" / "split_zhou_DescribableTextures.json").unlink()  # it is not downloaded here
    finding = inspect(DTD, root)
    assert finding.state == "faulty"
    assert "https://drive.google.com/file/d/1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x/view" in finding.advice


def test_what_differs_from_the_published_set_is_logged_where_the_set_is_used(
    root, monkeypatch, caplog
):
    monkeypatch.setattr(DTD, "expected_test", 7)
    inspect(DTD, root)
    assert not caplog.text
    build_dataset("DescribableTextures", root)
    assert "7 of 3 in the published set; results will not be comparable" in caplog.text
    cfg = build_cfg("ZeroShot", "dtd", opts=["DATASET.ROOT", root, "MODEL.BACKBONE.NAME", "small"])
    assert build_trainer(cfg).record.data["difference"].endswith("7 of 3 in the published set")


def test_warnings_of_readers_are_shown(root, caplog):
    splits = entries("DescribableTextures")
    splits["train"].append(splits["test"][0])
    splits["val"].append(splits["test"][0])
    for rows in splits.values():
        for row in rows:
            if row[1] == 2:
                row[2] = "banded"
    write_split(root, "DescribableTextures", splits)
    finding = inspect(DTD, root)
    assert finding.state == "ok" and "pictures in several splits, by content: 1" in finding.advice
    assert "1 class names are shared by several labels: 'banded' (0, 2)" in caplog.text
    image = root / IMAGES / "banded" / "image_0001.jpg"
    assert f"1 test images are also training images: {image}" in caplog.text
    assert "1 test images are also validation images" in caplog.text


@pytest.mark.parametrize("name", IMAGE_DIRS)
def test_missing_image_folders(name, tmp_path, caplog):
    """A split file without images is an absent set; an empty folder is faulty."""
    build(name, tmp_path)
    cls = DATASET_REGISTRY.get(name)
    # ImageNet's validation images are its test images, which is known.
    assert "by content" not in inspect(cls, tmp_path).advice and "validation images" not in caplog.text
    shutil.rmtree(cls.test_dir(tmp_path))
    finding = inspect(cls, tmp_path)
    assert finding.state == "absent"
    assert f"there is no folder {cls.test_dir(tmp_path)}; " in finding.advice
    cls.test_dir(tmp_path).mkdir()
    finding = inspect(cls, tmp_path)
    assert finding.state == "faulty"
    assert "tools/download.py" in finding.advice and "check_data" not in finding.advice


def test_missing_and_unreadable_images(root):
    (root / IMAGES / "banded" / "image_0004.jpg").unlink()
    finding = inspect(DTD, root, deep=True)
    assert finding.state == "ok" and finding.advice.startswith("1 of 21 training images missing")
    broken = root / IMAGES / "banded" / "image_0005.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    assert inspect(DTD, root).state == "ok"
    finding = inspect(DTD, root, deep=True)
    assert (finding.state, finding.advice) == ("faulty", f"1 unreadable image: {broken}")
    (root / IMAGES / "banded" / "image_0001.jpg").unlink()
    finding = inspect(DTD, root)
    assert finding.state == "faulty" and "1 of 6 images are missing" in finding.advice


@pytest.mark.posix
def test_command_line(tmp_path):
    """A row for each set; one that cannot be read does not stop the others."""
    for name in ("DescribableTextures", "EuroSAT", "ImageNetV2"):
        build(name, tmp_path)
    (tmp_path / IMAGE_DIRS["EuroSAT"] / "River" / "image_0001.jpg").unlink()
    folder = tmp_path / IMAGES / "banded"
    shutil.rmtree(folder)
    folder.symlink_to(folder)
    result = run_tool("check_data.py", "--root", tmp_path)
    assert result.returncode == 1
    assert not result.stderr  # the table says it all
    states = {}
    for line in result.stdout.splitlines():
        key, _, rest = line.partition(" ")
        states[key] = rest.split()[:1]
    expected = {DATASET_REGISTRY.get(name).key(): ["absent"] for name in IMAGE_DIRS}
    expected |= {"dtd": ["faulty"], "eurosat": ["faulty"], "imagenetv2": ["partial"]}
    assert expected.items() <= states.items()
    assert "Too many levels of symbolic links" in " ".join(result.stdout.split())


@pytest.mark.parametrize("arguments", [
    ("--root", "/nowhere"), ("nothing", "--root", "/"), ("--root", "/" + "x" * 300),
])
def test_command_line_errors(arguments):
    result = run_tool("check_data.py", *arguments)
    assert result.returncode == 2 and result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1


def test_copies_in_other_splits_and_classes_are_named(root):
    """By content: the copies have names of their own, and nothing is decoded."""
    images = root / IMAGES
    # Test to val.
    shutil.copy(images / "banded" / "image_0001.jpg", images / "banded" / "image_0003.jpg")
    # Both test.
    shutil.copy(images / "blotchy" / "image_0002.jpg", images / "polka-dotted" / "image_0002.jpg")
    finding = inspect(DTD, root)
    assert finding.state == "ok" and finding.advice == (
        "pictures in several splits, by content: 1, such as dtd/images/banded/image_0001.jpg "
        "(test) = dtd/images/banded/image_0003.jpg (val); pictures in several classes, by content: "
        "1, such as dtd/images/blotchy/image_0002.jpg (test) = dtd/images/polka-dotted/image_0002.jpg (test)")
    done = run_tool("check_data.py", "dtd", "--root", root)
    assert done.returncode == 0 and "pictures in several splits, by content: 1" in done.stdout
