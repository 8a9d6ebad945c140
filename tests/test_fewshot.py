"""Few-shot samples: seeded, balanced, stored as readable lists; and CoOp's halves of the
classes."""
import json
import os
import random

import pytest
from promptcal.datasets import Datum, build_dataset
from promptcal.datasets.selection import draw

from data_roots import IMAGE_DIRS, build, entries, paths_of, write_split
from folders import names

LABELS = (2, 0, 1)  # in the order in which they appear
TRAIN = []
for number in range(20):
    for label in LABELS:
        TRAIN.append(Datum(f"{label}/{number}.jpg", label, classname=str(label)))


@pytest.fixture
def satellite(tmp_path, caplog):
    caplog.set_level("INFO")
    build("EuroSAT", tmp_path)
    return tmp_path


def list_file(root, shots=2, seed=0):
    return root / "eurosat" / "split_fewshot" / f"shot_{shots}-seed_{seed}.json"


def test_the_draw_is_coops():
    random.seed(7)
    expected = {"train": [], "val": []}
    for split, shots in (("train", 8), ("val", 4)):
        for label in LABELS:
            of_class = [item for item in TRAIN if item.label == label]
            expected[split] += random.sample(of_class, shots)
    before = random.getstate()
    assert draw(TRAIN, TRAIN, 8, seed=7) == expected
    assert random.getstate() == before  # the global generator is not used


def test_classes_with_too_few_images_use_all_and_no_random_numbers(caplog):
    """As in Dassl: the classes after them get the images that they would get without them."""
    few = [Datum("few/0.jpg", 3, 0, "few"), Datum("few/1.jpg", 3, 0, "few")]
    alone = draw(TRAIN, [], 4, seed=3)["train"]
    after = draw([*few, *TRAIN], [], 4, seed=3)["train"]
    assert after == [*few, *alone]
    assert "1 classes have fewer than 4 train images, all of which are used: 'few' (2)" in caplog.text


def test_kept_elsewhere(satellite, tmp_path, caplog):
    before = sorted((satellite / "eurosat").rglob("*"))
    elsewhere = build_dataset("EuroSAT", satellite, num_shots=2, fewshot_dir=tmp_path / "lists")
    assert sorted((satellite / "eurosat").rglob("*")) == before  # nothing is written with the data
    file = tmp_path / "lists" / "EuroSAT" / "shot_2-seed_0.json"
    assert f"few-shot samples written to {file}" in caplog.text
    assert elsewhere.train == build_dataset("EuroSAT", satellite, num_shots=2).train
    assert f"few-shot samples written to {list_file(satellite)}" in caplog.text


def test_kept_as_readable_json(satellite):
    dataset = build_dataset("EuroSAT", satellite, num_shots=2)
    file = list_file(satellite)
    text = file.read_text()
    content = json.loads(text)
    assert content["sampled_from"] == "d58a1da68e53"  # unchanged, so that stored lists stay valid
    images = satellite / IMAGE_DIRS["EuroSAT"]
    assert [str(images / path) for path, _, _ in content["train"]] == paths_of(dataset.train)
    assert content["train"][0][1:] == [0, "Annual Crop Land"] and len(content["val"]) == 10
    assert len(text.splitlines()) == 20 + 10 + 7  # one entry per line
    assert file.stat().st_mode & 0o777 == 0o644
    assert names(file.parent) == [file.name]
    file.write_text(json.dumps(content | {"train": content["train"][:1]}))
    assert len(build_dataset("EuroSAT", satellite, num_shots=2).train) == 1  # a stored list is used


@pytest.mark.posix
@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"sampled_from": "x"}', "pipe", "device"])
def test_damaged_lists_are_drawn_again(text, satellite, caplog):
    train = build_dataset("EuroSAT", satellite, num_shots=2).train
    file = list_file(satellite)
    file.unlink()
    if text == "pipe":
        os.mkfifo(file)
    elif text == "device":
        file.symlink_to("/dev/zero")
    else:
        file.write_text(text)
    assert build_dataset("EuroSAT", satellite, num_shots=2).train == train
    assert "drawing again" in caplog.text and json.loads(file.read_text())["train"]


def test_lists_of_another_split_are_drawn_again(satellite, caplog):
    build_dataset("EuroSAT", satellite, num_shots=2)
    splits = entries("EuroSAT")
    splits["train"] = [row for row in splits["train"] if not row[0].endswith("_0009.jpg")]
    write_split(satellite, "EuroSAT", splits)
    dataset = build_dataset("EuroSAT", satellite, num_shots=2)
    assert "was drawn from another split" in caplog.text
    assert "_0009.jpg" not in "".join(paths_of(dataset.train))


def test_sets_without_training_images(satellite):
    build("ImageNetA", satellite)
    # A test set: shots are ignored.
    assert build_dataset("ImageNetA", satellite, num_shots=16).train == []


def test_base_and_new_halves(tmp_path):
    classnames = build("Caltech101", tmp_path)  # seven classes: four and three
    sampled = []
    for half, expected in (("base", classnames[:4]), ("new", classnames[4:])):
        dataset = build_dataset("Caltech101", tmp_path, num_shots=1, subsample_classes=half)
        assert dataset.classnames == expected
        for items in (dataset.train, dataset.val, dataset.test):
            labels = {(item.label, item.classname) for item in items}
            assert labels == set(enumerate(expected))
        sampled += paths_of(dataset.train)
    # Sampled before they are halved.
    everything = build_dataset("Caltech101", tmp_path, num_shots=1)
    assert sorted(sampled) == sorted(paths_of(everything.train))
