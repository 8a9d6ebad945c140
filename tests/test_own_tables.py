"""A user's own images, listed in a csv, tsv or parquet file."""
import json
import logging
from pathlib import Path

import numpy as np
import pytest
from promptcal.datasets import build_dataset
from promptcal.datasets.utils.errors import ConfigError, DataError
from promptcal.trainers.report.load import read_run
from promptcal.trainers.report.words import column_words

from common import run_tool
from data_roots import classnames_of, file_names_of, groups_of, labels_of, picture, refused
from made_parquet import write_columns

ROWS = (
    ("images/a.png", "NV", "train", "p1"),
    ("images/b.png", "MEL", "train", "p2"),
    ("images/c.png", "NV", "test", "p3"),
    ("images/d.png", "MEL", "test", "p3"),
    ("images/e.png", "BKL", "test", "p4"),
)
COLUMNS = "image=path label=diagnosis split=fold"


def write_csv(folder: Path, header: str, rows=ROWS, name: str = "labels.csv", separator: str = ",") -> Path:
    lines = [header, *(separator.join(row) for row in rows)]
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def skin(tmp_path: Path) -> Path:
    """A folder of images with a table beside it."""
    folder = tmp_path / "skin"
    for number, (image, *_) in enumerate(ROWS):
        picture(folder / image, number, number)
    write_csv(folder, "path,diagnosis,fold,patient_id")
    return folder


def test_a_table_with_usual_headers_needs_no_settings(skin):
    dataset = build_dataset("Table", skin)
    assert dataset.classnames == ["BKL", "MEL", "NV"]
    assert file_names_of(dataset.test) == ["c.png", "d.png", "e.png"]
    assert labels_of(dataset.test) == [2, 1, 0]
    assert groups_of(dataset.test) == ["p3", "p3", "p4"]
    assert file_names_of(dataset.train) == ["a.png", "b.png"]


@pytest.mark.parametrize(("name", "separator"), [("labels.csv", ";"), ("labels.tsv", "\t")])
def test_real_headers_are_named_with_a_setting(skin, name, separator):
    (skin / "labels.csv").unlink()
    header = separator.join(("where is it", "what", "fold no", "who"))
    write_csv(skin, header, name=name, separator=separator)
    columns = "image=where is it, label=what split=fold no group=WHO"
    dataset = build_dataset("Table", skin, columns=columns)
    assert classnames_of(dataset.test) == ["NV", "MEL", "BKL"]
    assert dataset.test[0].group == "p3"


def with_index(text: str) -> str:
    """As pandas writes a table with its index, whose column has no name."""
    header, *rows = text.splitlines()
    numbered = [f"{number},{row}" for number, row in enumerate(rows)]
    return "\n".join([f",{header}", *numbered])


QUIRKS = {
    "byte order mark": lambda text: text.encode("utf-8-sig"),
    "Unicode text": lambda text: text.replace(",", "\t").encode("utf-16"),
    "line with the delimiter": lambda text: b"sep=;\r\n" + text.replace(",", ";").encode(),
    "line ends": lambda text: text.replace("\n", "\r\n").encode(),
    "empty columns": lambda text: text.replace("\n", ",,\n").encode(),
    "empty cells": lambda text: text.replace("p4", "p4,,").encode(),
    "index of pandas": lambda text: with_index(text).encode(),
    "quotes and blank lines": lambda text: text.replace("NV", '"NV"').replace("\n", "\n\n").encode(),
    "capitals in paths": lambda text: text.replace("images/c.png", "Images/C.PNG").encode(),
    "backslashes in paths": lambda text: text.replace("images/", "images\\").encode(),
    "absolute paths": lambda text: text.replace("images/", "FOLDER/images/").encode(),
}


@pytest.mark.parametrize("quirk", QUIRKS)
def test_tables_as_spreadsheets_write_them(skin, quirk):
    path = skin / "labels.csv"
    path.write_bytes(QUIRKS[quirk](path.read_text()).replace(b"FOLDER", bytes(skin)))
    dataset = build_dataset("Table", skin)
    assert classnames_of(dataset.test) == ["NV", "MEL", "BKL"]
    assert groups_of(dataset.test) == ["p3", "p3", "p4"]


def test_tables_that_cannot_be_read_get_a_remedy(skin):
    path = skin / "labels.csv"
    content = path.read_text()
    path.write_bytes(content.replace("NV", "N\xe6vus").encode("latin-1"))
    refused('as UTF-8 text: .*save it as UTF-8', "Table", skin)
    rows = [(image, *("10" if code == "NV" else "01")) for image, code, *_ in ROWS]
    write_csv(skin, "image,NV,other", rows)
    refused(r"one column per class \(NV, other\): write one column with the label", "Table", skin)


def test_numbered_folds(skin, caplog):
    rows = []
    for number, (image, code, _, group) in enumerate(ROWS):
        rows.append((image, code, str(number % 3), group))
    write_csv(skin, "path,diagnosis,fold,patient", rows)
    assert len(build_dataset("Table", skin).test) == 5  # numbers are no splits by themselves
    words = "the column 'fold' is not used: its values (0, 1, 2) do not say what is for testing"
    assert words in caplog.text
    message = (
        r"^Table: labels.csv, row 1 \(line 2\): the values '0', '1', '2' in the column 'fold' are none of "
        r'train, val, test; say .* test=0" \(and in 4 more rows\)$'
    )
    refused(message, "Table", skin, columns=COLUMNS)
    dataset = build_dataset("Table", skin, columns=f"{COLUMNS} test=2")
    assert file_names_of(dataset.test) == ["c.png"]
    assert len(dataset.train) == 4
    dataset = build_dataset("Table", skin, columns=f"{COLUMNS} test=0,1 val=2")
    assert (len(dataset.test), len(dataset.val), len(dataset.train)) == (4, 1, 0)


def test_a_wrong_or_missing_column_lists_those_there_are(skin):
    message = (r"labels.csv has no column 'pth' \(DATASET.COLUMNS image=pth\); its columns are: path, diagnosis, "
               r"fold, patient_id. Did you mean 'path'\?")
    refused(message, "Table", skin, columns="image=pth")
    with pytest.raises(ConfigError, match="it must be pairs such as image=path label=diagnosis"):
        build_dataset("Table", skin, columns="path")
    for header, missing in (("path,verdict", "labels"), ("where,diagnosis", "images' paths")):
        write_csv(skin, f"{header},fold,patient_id")
        message = f"no column of the {missing} is recognised among its columns: {header.replace(',', ', ')}, fold"
        refused(message, "Table", skin)


BAD_ROWS = {
    "outside of the folder": ("../e.png", "NV", "test", "p"),
    "is outside": ("/etc/hosts", "NV", "test", "p"),
    "there is no image 'images/z.png'": ("images/z.png", "NV", "test", "p"),
    "no label in the column 'diagnosis'": ("images/e.png", "", "test", "p"),
    "no image in the column 'path'": ("", "NV", "test", "p"),
    "the value 'later' in the column 'fold' is none of": ("images/e.png", "NV", "later", "p"),
    "has 3 cells for 4 columns: path, diagnosis": ("images/e.png", "NV", "test"),
    "is of class 'MEL', in labels.csv, row 3": ("images/c.png", "MEL", "test", "p"),
    "is listed twice, also in labels.csv, row 4": ("images/d.png", "MEL", "test", "p"),
    "the class 'SCC' is not in DATASET.CLASSNAMES": ("images/e.png", "SCC", "test", "p"),
}


@pytest.mark.parametrize("reason", BAD_ROWS)
def test_a_bad_row_is_refused_with_its_number(skin, reason):
    write_csv(skin, "path,diagnosis,fold,patient_id", [*ROWS[:4], BAD_ROWS[reason]])
    classnames = "NV=mole; MEL=melanoma" if "SCC" in reason else ""
    with pytest.raises(DataError) as error:
        build_dataset("Table", skin, columns=COLUMNS, classnames=classnames)
    message = str(error.value)
    assert reason in message and "row 5 (line 6)" in message and "\n" not in message


def test_missing_training_images_are_left_out(skin, caplog):
    (skin / "images" / "a.png").unlink()
    with caplog.at_level(logging.WARNING):
        dataset = build_dataset("Table", skin)
    assert len(dataset.train) == 1
    assert "images for training that are missing are left out: 1, such as images/a.png" in caplog.text


WORDS = {"NV": "melanocytic nevus", "MEL": "melanoma", "BKL": "benign keratosis"}


WORD_FILES = {
    "words.json": json.dumps(WORDS),
    "words.csv": "code,name\n" + "\n".join(map(",".join, WORDS.items())),
    "words.txt": "\n".join(map(" ".join, WORDS.items())),
    "words.tsv": "\n".join(map("\t".join, WORDS.items())),
}
MAPPING = "; ".join(map("=".join, WORDS.items()))


@pytest.mark.parametrize("setting", [*WORD_FILES, MAPPING, json.dumps(WORDS)])
def test_words_for_codes(skin, setting):
    if setting in WORD_FILES:
        (skin.parent / setting).write_text(WORD_FILES[setting])
        setting = str(skin.parent / setting)
    dataset = build_dataset("Table", skin, classnames=setting)
    assert dataset.classnames == ["benign keratosis", "melanoma", "melanocytic nevus"]
    assert dataset.test[0].classname == "melanocytic nevus"


def test_numbers_and_a_list_of_names_by_label(skin):
    def write_codes(codes: dict[str, str]) -> None:
        rows = [(image, codes[code], split, group) for image, code, split, group in ROWS]
        write_csv(skin, "path,label,split,patient", rows)

    write_codes({"NV": "10", "MEL": "2", "BKL": "0"})
    assert build_dataset("Table", skin).classnames == ["0", "2", "10"]
    write_codes({"NV": "1", "MEL": "2", "BKL": "0"})
    (skin / "names.txt").write_text("benign keratosis\nmelanocytic nevus\nmelanoma\n")
    dataset = build_dataset("Table", skin, classnames="names.txt")
    assert dataset.classnames == ["benign keratosis", "melanocytic nevus", "melanoma"]


def test_a_column_of_class_names_beside_labels(skin):
    codes = {"NV": "1", "MEL": "2", "BKL": "0"}
    rows = [(image, codes[code], f"the {code} kind", split) for image, code, split, _ in ROWS]
    write_csv(skin, "path,label,class_name,split", rows)
    assert build_dataset("Table", skin).classnames == ["the BKL kind", "the NV kind", "the MEL kind"]
    rows[3] = ("images/d.png", "2", "another kind", "test")
    write_csv(skin, "path,label,class_name,split", rows)
    message = r"row 4 \(line 5\): class 2 is called 'another kind', but .* in labels.csv, row 2"
    refused(message, "Table", skin)


def test_warnings_come_once_each(skin, caplog):
    rows = [*ROWS[:4], ("images/e.png", "BKL", "test", "p1")]
    write_csv(skin, "path,diagnosis,fold,patient_id", rows)
    (skin / "images" / "c.png").write_bytes((skin / "images" / "b.png").read_bytes())
    with caplog.at_level(logging.WARNING):
        build_dataset("Table", skin)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert "1 group is in two splits" in messages[0] and "'p1' (test, train)" in messages[0]
    assert "look like identifiers" in messages[1]
    assert "NV" in messages[1]
    assert "DATASET.CLASSNAMES" in messages[1]
    assert "pictures in several splits, by content: 1" in messages[2]
    assert "pictures in several classes, by content: 1" in messages[2]


def test_images_are_found_by_name_in_folders_below(skin):
    """As in HAM10000, whose table has image_id without an ending and whose images are in two
    folders."""
    rows = [(Path(image).stem, code, split, group) for image, code, split, group in ROWS]
    write_csv(skin, "image_id,dx,split,lesion_id", rows)
    (skin / "part_2").mkdir()
    (skin / "images" / "e.png").rename(skin / "part_2" / "e.png")
    dataset = build_dataset("Table", skin)
    assert dataset.test[-1].impath == str(skin / "part_2" / "e.png")
    picture(skin / "part_2" / "c.png")
    refused(r"row 3 \(line 4\): 'c' may be .*images/c.png, .*part_2/c.png", "Table", skin)


def test_several_tables(skin):
    rows = [row[:2] for row in ROWS]
    write_csv(skin, "path,diagnosis", rows[:2], "train.csv")
    write_csv(skin, "path,diagnosis", rows[2:], "test.csv")
    refused("several tables, labels.csv, test.csv, train.csv: choose one", "Table", skin)
    assert len(build_dataset("Table", skin, columns="table=labels.csv").test) == 3
    (skin / "labels.csv").unlink()
    dataset = build_dataset("Table", skin)
    assert (len(dataset.train), len(dataset.test)) == (2, 3)
    refused(f"there is no csv, tsv or parquet file in {skin / 'images'}", "Table", skin / "images")


def test_a_parquet_file_beside_a_csv_does_not_stop_it(skin):
    (skin / "images.parquet").write_bytes(b"PAR1 cut")
    assert len(build_dataset("Table", skin).test) == 3
    (skin / "images.parquet").unlink()
    (skin / "test.csv").write_text("path,diagnosis\nimages/a.png,NV,more\n")  # never left out
    refused(r"test.csv, row 1 \(line 2\) has 3 cells for 2 columns", "Table", skin)


def test_a_parquet_table_of_paths(skin):
    pytest.importorskip("pyarrow")
    (skin / "labels.csv").unlink()
    columns = dict(zip(("path", "diagnosis", "fold", "patient_id"), map(list, zip(*ROWS, strict=True)), strict=True))
    write_columns(skin, columns)
    assert classnames_of(build_dataset("Table", skin).test) == ["NV", "MEL", "BKL"]
    columns["path"][4] = "images/z.png"
    write_columns(skin, columns)
    refused("test.parquet, row 5: there is no image 'images/z.png'", "Table", skin)


EXPERIMENT = """
title: Own images beside others
layout: results
backbones: [small]
datasets:
  - landcover
  - {table: SKIN, columns: "image=path label=diagnosis split=fold", classnames: "NV=mole; MEL=melanoma; BKL=wart"}
  - {image_folder: ZOO, label: Our zoo}
  - {image_folder: CIRCUS}
runs:
  - methods: [ZeroShot, TPT]
"""


@pytest.fixture
def experiment(skin, tmp_path) -> Path:
    """Two of its data sets are read by one reader: their settings differ in the folder alone."""
    text = EXPERIMENT.replace("SKIN", str(skin))
    for count, place in enumerate(("zoo", "circus"), start=2):
        for shade, name in enumerate(("ant", "zebra")):
            for n in range(count):
                picture(tmp_path / place / name / f"{n}.png", shade, n)
        text = text.replace(place.upper(), str(tmp_path / place))
    path = tmp_path / "mixed.yaml"
    path.write_text(text)
    return path


def test_an_experiment_with_benchmarks_and_own_sets(experiment, tmp_path):
    command = ("reproduce.py", experiment, "--output-dir", tmp_path / "out", "--limit", 6, "--set", "TTA.VIEWS", 10)
    done = run_tool(*command)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "8 runs done now" in done.stdout
    table = (tmp_path / "out" / "experiments" / "mixed" / "tables.md").read_text()
    for name in ("skin", "Our zoo", "circus"):
        assert name in table
    results = sorted((tmp_path / "out").glob("*/TPT/small/*/seed0/results.json"))
    assert sorted(json.loads(path.read_text())["n"] for path in results) == [3, 4, 6, 6]
    done = run_tool(*command, "--only", "skin", "TPT")
    assert done.returncode == 0 and "1 run" in done.stdout


def test_a_finished_run_with_other_groups_is_not_shown_as_it_is(skin, tmp_path):
    command = (
        "train.py", "--trainer", "ZeroShot", "--dataset-config-file", "table", "--root", skin,
        "--backbone", "small", "--output-dir", tmp_path / "run", "DATASET.COLUMNS", f"{COLUMNS} test=test",
        "DATASET.LABEL", "Skin", "DATASET.CLASSNAMES", MAPPING,
    )
    done = run_tool(*command)
    assert done.returncode == 0 and "Skin: 3 of 3 test images, 3 classes" in done.stdout, done.stderr
    with np.load(tmp_path / "run" / "predictions.npz") as file:
        cluster = file["cluster"]
    assert (cluster[0] == cluster[1]).all() and (cluster[1] != cluster[2]).any()
    assert column_words(read_run(tmp_path / "run").record) == "Skin (test=test)"
    again = run_tool(*command)
    assert "finished before" in again.stdout + again.stderr
    write_csv(skin, "path,diagnosis,fold,patient_id", [(*row[:3], f"patient {n}") for n, row in enumerate(ROWS)])
    done = run_tool(*command)
    assert done.returncode == 2
    assert "was made with other data: groups of the images differ" in done.stderr
    picture(skin / "images" / "c.png", 77, 7)
    done = run_tool(*command)
    assert "was made with other data: 1 image changed. Use" in done.stderr, done.stderr


@pytest.mark.parametrize(("before", "after", "message"), [
    ("label: Our zoo", "label: skin", "has two that are called skin: give one a label"),
    ("image_folder: ", "image_foldr: ", "no data set 'image_foldr'. Did you mean 'image_folder'"),
    (", label: Our zoo", ", dtd: /data", "it must be a data set with its folder, such as {table: /lab/ham}"),
])
def test_sets_of_an_experiment_that_cannot_be(experiment, before, after, message):
    experiment.write_text(experiment.read_text().replace(before, after))
    done = run_tool("reproduce.py", experiment, "--dry-run")
    assert done.returncode == 2 and message in done.stderr
