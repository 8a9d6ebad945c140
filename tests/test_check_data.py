"""The table of what a data root holds."""
import subprocess
import sys
from pathlib import Path

import pytest
from data_roots import IMAGE_DIRS, SHARED, build
from promptcal.datasets import DATASET_REGISTRY
from promptcal.datasets.benchmark import benchmarks
from promptcal.datasets.inventory import inspect, table

TOOL = Path(__file__).resolve().parents[1] / "tools" / "check_data.py"


@pytest.fixture
def textures(tmp_path, monkeypatch):
    cls = DATASET_REGISTRY.get("DescribableTextures")
    monkeypatch.setattr(cls, "expected_test", 6)
    monkeypatch.setattr(cls, "expected_classes", 3)
    monkeypatch.setattr(cls, "published_split", "")
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
    monkeypatch.setattr(cls, "published_split", "0123456789ab")
    assert inspect(cls, root).advice == "not the published split, which is 0123456789ab"
    monkeypatch.setattr(cls, "expected_test", 7)
    finding = inspect(cls, root)
    assert (finding.state, finding.advice) == ("partial", "figures will not compare with published ones")


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
    assert finding.advice.startswith("1 of 21 training images absent")
    (root / IMAGE_DIRS["DescribableTextures"] / "banded" / "image_0001.jpg").unlink()
    finding = inspect(cls, root)
    assert finding.state == "faulty"
    assert "1 of 6 images are not there" in finding.advice


def test_deep_opens_every_image(textures):
    cls, root = textures
    broken = root / IMAGE_DIRS["DescribableTextures"] / "banded" / "image_0005.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    assert inspect(cls, root).state == "ok"
    finding = inspect(cls, root, deep=True)
    assert (finding.state, finding.advice) == ("faulty", f"1 unreadable images: {broken}")


def test_a_row_for_each_of_the_fifteen(tmp_path):
    lines = table(inspect(cls, tmp_path) for cls in benchmarks()).splitlines()
    assert {line.split()[0] for line in lines} >= {DATASET_REGISTRY.get(name).key() for name in IMAGE_DIRS}
    assert sum("absent" in line for line in lines) >= 15


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, arguments)], capture_output=True, text=True, timeout=120,
    )


def test_command_line(tmp_path):
    build("EuroSAT", tmp_path)
    build("ImageNetV2", tmp_path)
    (tmp_path / IMAGE_DIRS["EuroSAT"] / "River" / "image_0001.jpg").unlink()
    result = run("--root", tmp_path)
    assert result.returncode == 1
    states = {line.split()[0]: line.split()[1] for line in result.stdout.splitlines() if len(line.split()) > 1}
    assert (states["eurosat"], states["imagenetv2"], states["sun397"]) == ("faulty", "partial", "absent")
    assert result.stderr == ""


@pytest.mark.parametrize("arguments", [("--root", "/nowhere"), ("nothing", "--root", "/")])
def test_command_line_errors(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1


def test_the_real_samples():
    if not (SHARED / "samples").is_dir():
        pytest.skip("the real samples are not at hand")
    for name in ("Caltech101", "OxfordPets", "OxfordFlowers", "DescribableTextures", "FGVCAircraft", "ImageNet"):
        finding = inspect(DATASET_REGISTRY.get(name), SHARED / "samples", deep=name == "DescribableTextures")
        assert finding.state == "partial"
