"""Split files, lists, folders and names that are odd on purpose: a data set, or one short line;
never a long wait."""
from __future__ import annotations

import os
import resource
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from promptcal.datasets import build_dataset
from promptcal.datasets.base import run_name
from promptcal.datasets.identity import fingerprint
from promptcal.datasets.imagenet import is_coops, read_classnames
from promptcal.datasets.utils.errors import DataError, UserError, first_five, one_line
from promptcal.datasets.utils.files import leads_out
from promptcal.trainers.config import build_cfg
from promptcal.trainers.config.settings import run_path

from common import make_image_folder
from data_roots import SHARED, build, entries, write_split

SPLIT = "split_zhou_EuroSAT.json"


@contextmanager
def refused(message: str = ""):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(UserError, match=message) as caught:
        yield
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= 2000
    str(caught.value).encode()  # any terminal can show it
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.fixture
def satellite(tmp_path: Path) -> Path:
    build("EuroSAT", tmp_path)
    return tmp_path


def with_entry(root: Path, entry: object) -> Path:
    splits = entries("EuroSAT")
    splits["test"].append(entry)
    write_split(root, "EuroSAT", splits)
    return root


def rename_class_0(root: Path, new_name: str) -> None:
    splits = entries("EuroSAT")
    for rows in splits.values():
        for row in rows:
            if row[1] == 0:
                row[2] = new_name
    write_split(root, "EuroSAT", splits)


@pytest.mark.parametrize("label", [10 ** 6, 10 ** 9, 10 ** 30, 10 ** 4000])
def test_a_label_beyond_all_bounds(label, satellite):
    with refused("has gaps in its labels: no image of label 10$"):
        build_dataset("EuroSAT", with_entry(satellite, ["x.jpg", label, "x"]))


@pytest.mark.parametrize("text", [
    '{"test": [', "", "\x00\x01", "[]", '{"train": []}', '{"test": {}}', '{"test": []}',
    "[" * 100_000,
    '{"test": ' + "[" * 100_000 + "]" * 100_000 + "}",
    '{"a":' * 100_000,
    "9" * 10_000,
    '{"test": [["x.jpg", ' + "9" * 10_000 + ', "x"]]}',
    '{"test": [' + "[" * 900 + "]" * 900 + "]}",
    "\ufeff{}",
    '{"test": [["x.jpg", 1e999, "x"]]}',
    '{"test": [["x.jpg", NaN, "x"]]}',
    '{"test": "' + "x" * 5_000_000 + '"}',
    '{"test": [["' + "x" * 5_000_000 + '", 0, ""]]}',
    '{"test": ["' + "line\\n" * 100_000 + '"]}',
], ids=range(19))
def test_json_that_is_no_split(text, satellite):
    (satellite / "eurosat" / SPLIT).write_text(text)
    with refused(SPLIT):
        build_dataset("EuroSAT", satellite)


@pytest.mark.parametrize("path", [
    "/etc/passwd", "../../../etc/passwd", "Forest/../../../x.jpg", "..", "C:\\x.jpg",
    "\\\\host\\x.jpg", "a\\..\\..\\x.jpg",
])
def test_paths_out_of_the_folder(path, satellite):
    with refused("lists images outside of the data set's folder"):
        build_dataset("EuroSAT", with_entry(satellite, [path, 0, "Annual Crop Land"]))
    build("FGVCAircraft", satellite)
    with (satellite / "fgvc_aircraft" / "images_variant_test.txt").open("a") as file:
        file.write(f"{path} 707-320\n")
    with refused("lines that are not"):
        build_dataset("FGVCAircraft", satellite)
    for inside in ("a.jpg", "a/b c.jpg", "a..b/c.jpg", "…/x.jpg"):
        assert not leads_out(inside)


@pytest.mark.parametrize("name", ["a\nb", "a\tb", "\x1b[31mred", "bad \ud800 half", "nul\0"])
def test_names_that_cannot_be_written(name, satellite):
    rename_class_0(satellite, name)
    with refused("class names with control characters or letters that are not UTF-8"):
        build_dataset("EuroSAT", satellite)
    with refused("file names with control characters or letters that are not UTF-8"):
        build_dataset("EuroSAT", with_entry(satellite, [f"{name}.jpg", 0, "Annual Crop Land"]))


def test_file_names_that_are_no_utf_8(tmp_path):
    root = make_image_folder(tmp_path / "photos")
    bad = os.fsencode(root / "kind_a") + b"/\xff\xfe.png"
    Path(os.fsdecode(bad)).write_bytes((root / "kind_a" / "0.png").read_bytes())
    with refused("file names with .* not UTF-8: .*udcff"):
        build_dataset("ImageFolder", root)
    Path(os.fsdecode(bad)).unlink()
    Path(os.fsdecode(os.fsencode(root) + b"/kind_\xff")).mkdir()
    with refused("class names with .* not UTF-8"):
        build_dataset("ImageFolder", root)


@pytest.mark.parametrize("name", [
    "猫 🐈‍⬛", "قطة", "<script>alert(1)</script>", "=cmd|'/c calc'!A1", "$x^{$", "a" * 250,
])
def test_names_of_every_kind_are_kept_as_they_are(name, satellite):
    rename_class_0(satellite, name)
    assert build_dataset("EuroSAT", satellite).classnames[0] == name


def test_21_000_classes(satellite):
    rows = [[f"{k}.jpg", k, f"class {k}"] for k in range(21_000)]
    write_split(satellite, "EuroSAT", {"test": rows})
    start = time.process_time()
    assert len(build_dataset("EuroSAT", satellite).classnames) == 21_000
    assert time.process_time() - start < 5


def test_messages_are_one_short_line():
    error = DataError("cannot read\nit: " + "x" * 5_000_000 + "\x1b[31m\ud800 end")
    assert "\n" not in str(error) and len(str(error)) <= 2000 and str(error).endswith("end")
    str(error).encode()
    assert len(first_five(["y" * 10_000_000] * 1000)) < 2000
    assert one_line("  a\t\nb  ") == "a b" and one_line("x" * 50, 20).count("x") <= 18


BOMB = "a0: &a0 [1, 1]\n"  # each list holds the one before it twice
for number in range(60):
    BOMB += f"a{number + 1}: &a{number + 1} [*a{number}, *a{number}]\n"


@pytest.mark.parametrize("text", [
    f"{BOMB}SEED: *a60\n", "SEED: &a [*a]\n", "TTA: &a {VIEWS: *a}\n", BOMB, "x: " + "[" * 5000,
    "TRAINER: {NAME: &a {*a : 1}}",
    "SEED: " + "1" * 2_000_000,
], ids=range(7))
def test_yaml_bombs(text, tmp_path):
    (tmp_path / "x.yaml").write_text(text)
    with refused("x.yaml|SEED|TTA"):
        build_cfg("SoC", config_file=str(tmp_path / "x.yaml"))


@pytest.mark.skipif(not SHARED.is_dir(), reason="CoOp's list is not available")
def test_coops_list_is_known():
    names = read_classnames(SHARED / "splits" / "imagenet_classnames.txt")
    assert is_coops(names) and not is_coops(names | {next(iter(names)): "Tinca tinca"})


def test_two_folders_of_images_are_two_data_sets(tmp_path):
    first = make_image_folder(tmp_path / "a" / "photos")
    second = make_image_folder(tmp_path / "b" / "photos")
    folders = []
    for root in (first, second):
        cfg = build_cfg("ZeroShot", "image_folder", flags=["DATASET.ROOT", str(root)])
        folders.append(run_path(cfg).parts[1])
    assert folders[0] != folders[1]
    for folder in folders:
        assert folder.startswith("photos-") and len(folder) == len("photos-") + 6
    assert run_name("ImageFolder", tmp_path / "a" / ".." / "a" / "photos") == folders[0]
    assert run_name("UCF101", first) == "UCF101"
    assert run_name("NotRegistered", first) == "NotRegistered"
    assert run_name("ImageFolder", "/").startswith("ImageFolder-")
    assert "/" not in run_name("ImageFolder", tmp_path / "a b\n<i>..$")


def test_a_root_of_another_alphabet(tmp_path):
    """Only names below the root are checked; the root itself may have any name."""
    root = make_image_folder(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xe9t\xe9")))
    dataset = build_dataset("ImageFolder", root)
    assert len(dataset.test) == 12 and fingerprint(dataset, dataset.test)
    plain = build_dataset("ImageFolder", make_image_folder(tmp_path / "plain"))
    assert dataset.test_hash == plain.test_hash
