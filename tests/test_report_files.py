"""Run files as the report reads them: complete, edited, damaged, hostile or of 1.0.

The report names a bad file and goes on.
"""
import csv
import hashlib
import io
import json
import os
import re
import resource
import shutil
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import yaml
from promptcal.datasets.utils.errors import DataError, UserError
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.report.load import OPTIONAL, REQUIRED, find_runs, read_run
from promptcal.trainers.report.measure import MeasureOptions, measure_run
from promptcal.trainers.report.table import Entry, RowBlock, Table, TableRow, latex, terminal, to_csv
from promptcal.trainers.runs.record import results_hash

from common import run_tool
from folders import results_of
from made_runs import make_run, report_on, rewrite_predictions, row_labels

SCRIPT = "<script>alert(1)</script>"
DEEP = "[" * 3000 + "]" * 3000
# As JSON text: no JSON writer would write some of these.
VALUES = [
    "null", "true", "-1", "0", "1e308", "1" + "0" * 30, "1" + "0" * 5000, "NaN", "Infinity",
    '""', '"x"', '"\\ud800"', json.dumps(SCRIPT), '"$x^{$"', '"=cmd|1"', '"\\u0000\\u001b[2J"',
    "[]", "[1, [2]]", "{}", '{"a": {"b": []}}', DEEP,
]


@pytest.fixture
def good(tmp_path):
    return make_run(tmp_path, "SoC", n=12, classes=3, folder="good")


@pytest.fixture
def bad(tmp_path, good):
    """A run beside the good one, to be damaged."""
    return make_run(tmp_path, "OTPT", n=12, classes=3, folder="bad")


def report_of(root):
    """The report on all runs, which must be finished and contain the good one; and its rows."""
    report = report_on(root)
    assert SCRIPT not in report.page.read_text(encoding="utf-8")
    rows = row_labels(report.tables[0])
    assert "SoC" in rows
    return report, rows


def notes_begin_with(notes, words: str) -> bool:
    return any(note.startswith(words) for note in notes)


def signed(results: dict) -> dict:
    """Results as a program writes them: with the hash of their content."""
    files = results.get("files")
    if not isinstance(files, dict):
        return results
    return {**results, "files": {**files, "results.json": results_hash(results)}}


def write_signed(folder: Path, results: dict) -> None:
    (folder / "results.json").write_text(json.dumps(signed(results)))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sign_predictions(folder: Path) -> None:
    """Makes results.json say that the predictions that lie there belong to it."""
    results = results_of(folder)
    results["files"]["predictions.npz"] = sha256(folder / "predictions.npz")
    write_signed(folder, results)


def with_field(folder: Path, field: str, value: str) -> None:
    """results.json with another value, given as JSON text."""
    path = folder / "results.json"
    results = json.loads(path.read_text())
    with suppress(ValueError, RecursionError):  # what no program could have signed
        results = signed({**results, field: json.loads(value)})
    results.pop(field, None)
    rest = json.dumps(results)[:-1]
    path.write_text(f"{rest}, {json.dumps(field)}: {value}}}", encoding="utf-8")


def test_only_complete_runs_are_found(tmp_path):
    make_run(tmp_path, folder="done")
    (make_run(tmp_path, folder="half") / "results.json").write_text('{"trainer": "So')
    with_field(make_run(tmp_path, folder="incomplete"), "complete", "false")
    (make_run(tmp_path, folder="lacking") / "results.json").write_text('{"trainer": "SoC", "n": 3}')
    for name in ("a", "b"):
        (make_run(tmp_path, folder=name) / "results.json").unlink()
    runs, notes = find_runs([tmp_path, tmp_path / "done"])
    assert [run.name for run in runs] == ["done"]
    assert len(notes) == 4 and notes[-1].startswith("2 unfinished runs left out (a, b)")
    text = "\n".join(notes)
    assert "half is left out: results.json is not valid JSON" in text
    assert "lacks dataset" in text and str(tmp_path) not in text
    with pytest.raises(DataError, match="does not exist"):
        find_runs([tmp_path / "nowhere"])


def test_a_linked_folder_that_is_not_searched_is_named(tmp_path):
    make_run(tmp_path / "here", "TPT", folder="TPT")
    make_run(tmp_path / "elsewhere", "SoC", folder="SoC")
    (tmp_path / "here" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "here" / "again").symlink_to(tmp_path / "here" / "TPT")  # is searched anyway
    runs, notes = find_runs([tmp_path / "here"])
    assert [run.name for run in runs] == ["TPT"]
    (note,) = notes
    assert note.startswith("linked: a link to a folder outside")
    runs, notes = find_runs([tmp_path / "here", tmp_path / "here" / "linked"])
    assert [run.name for run in runs] == ["TPT", "SoC"] and notes == []


def predictions_of_another_run(folder, other):
    shutil.copy(other / "predictions.npz", folder / "predictions.npz")


def signed_predictions_of_another_run(folder, other):
    predictions_of_another_run(folder, other)
    sign_predictions(folder)


def edited_config(folder, other):
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("LAMBDA: 30", "LAMBDA: 60"))


def edited_record(folder, other):
    results = results_of(folder)
    results["record"]["changed"] = {"TRAINER.OTPT.LAMBDA": [18.0, 1.0]}
    write_signed(folder, results)


def edited_records(folder, other):
    edited_record(folder, other)
    (folder / "record.json").write_text(json.dumps(results_of(folder)["record"]))


def another_trainer(folder, other):
    write_signed(folder, {**results_of(folder), "trainer": "SoC"})


def edited_results(folder, other):
    results = {**results_of(folder), "accuracy": 99.9}
    (folder / "results.json").write_text(json.dumps(results))


def without_hashes(folder, other):
    results = results_of(folder)
    del results["files"]
    (folder / "results.json").write_text(json.dumps(results))


@pytest.mark.parametrize("damage", [
    predictions_of_another_run, signed_predictions_of_another_run, edited_config, edited_record,
    edited_records, edited_results, another_trainer, without_hashes,
])
def test_files_that_do_not_belong_together_are_named_and_left_out(tmp_path, good, bad, damage):
    damage(bad, good)
    before = {path.name: sha256(path) for path in bad.glob("*.*")}
    report, rows = report_of(tmp_path)
    assert "O-TPT" not in rows and notes_begin_with(report.notes, "bad is left out: ")
    # Nothing is written into it.
    assert {path.name: sha256(path) for path in bad.glob("*.*")} == before


def test_metrics_are_recomputed_from_predictions_with_any_bins(tmp_path):
    run = read_run(make_run(tmp_path, "OTPT", bins=20))
    data = run.load_predictions()
    measured = measure_run(run, data, MeasureOptions(bins=20))
    zero_shot_accuracy = measured.zero_shot_metrics["accuracy"].value
    assert 100 * measured.value("ece") == pytest.approx(run.results["ece"])
    assert 100 * zero_shot_accuracy == pytest.approx(run.results["zero_shot_accuracy"])
    seven = measure_run(run, data, MeasureOptions(bins=7))
    assert seven.value("ece") == cal.ece(*cal.top_class(data.logits, data.label), bins=7)
    scaled = cal.sals(data.logits, data.zero_shot_logits)
    assert measured.value("ece_sals") == cal.ece(*cal.top_class(scaled, data.label))
    assert measured.value("ece_temperature") < measured.value("ece")
    assert np.isnan(measured.metrics["ece"].low)
    for name in ("accuracy", "rms_calibration_error", "signed_error", "brier", "nll", "auroc", "risk"):
        interval = measured.metrics[name]
        assert interval.low <= interval.value <= interval.high, name


def test_the_report_says_where_temperature_scaling_raises_ece(tmp_path):
    """A temperature from validation logits that are eight times as sharp is far too high."""
    make_run(tmp_path, "SoC", sharpness=1.0)
    make_run(tmp_path, "OTPT", sharpness=2.5)
    make_run(tmp_path, "SoC", split="val", sharpness=8.0, folder="val")
    report_on(tmp_path)
    text = (tmp_path / "report" / "tables.md").read_text()
    words = r"minimises NLL, not ECE, and raises the ECE here of SoC on UCF101 \([\d.]+ → [\d.]+\)"
    assert re.search(words, text)
    assert "O-TPT on UCF101 (" not in text


def test_classes_and_mistakes_by_hand(tmp_path):
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    folder = make_run(
        tmp_path, n=4, classes=2, classnames=["cat", "dog"], index=[3, 5, 7, 9], label=[1, 1, 0, 0],
        logits=np.log(p))
    zero_shot_logits = np.log([[0.6, 0.4]] * 4)
    rewrite_predictions(folder, lambda arrays: arrays.update(zero_shot_logits=zero_shot_logits))
    run = read_run(folder)
    measured = measure_run(run, run.load_predictions(), MeasureOptions())
    first, second = measured.mistakes
    assert (first.index, first.truth) == (3, "dog")
    assert first.after[0] == ("cat", pytest.approx(0.9))
    assert first.before == (("cat", pytest.approx(0.6)), ("dog", pytest.approx(0.4)))
    assert (second.index, second.truth, second.filename) == (9, "cat", "UCF101 test 3")
    dog = next(row for row in measured.classes if row.name == "dog")
    assert (dog.n, dog.accuracy, dog.zero_shot_accuracy) == (2, 0.5, 0.0)
    assert dog.confused_with == "cat"
    assert dog.gap == pytest.approx(0.85 - 0.5)


def test_images_are_sorted_whatever_order_a_method_used(tmp_path):
    folder = make_run(tmp_path, "SoC", n=40)
    before = read_run(folder).load_predictions()
    order = np.random.default_rng(0).permutation(40)

    def shuffle(arrays):
        for name in arrays:
            if name not in ("text", "record"):
                arrays[name] = arrays[name][order]

    rewrite_predictions(folder, shuffle)
    after = read_run(folder).load_predictions()
    for name in ("index", "label", "logits", "zero_shot_logits", "image"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))


def test_every_field_of_results_in_every_wrong_type(bad):
    """All fields that the report reads, and every kind of value in each: about 400 edits."""
    accepted = 0
    refused = 0
    original = (bad / "results.json").read_text()
    for field in (*REQUIRED, *OPTIONAL, "zero_shot_accuracy", "unknown"):
        for value in VALUES:
            with_field(bad, field, value)
            try:
                read_run(bad).load_predictions()
                accepted += 1
            except DataError as error:
                assert "\n" not in str(error)
                refused += 1
            (bad / "results.json").write_text(original)
    assert refused > 150 and accepted > 50


@pytest.mark.parametrize(
    "section", ["data", "views", "model", "method", "numerics", "names", "changed", "seed"])
def test_every_section_of_a_record_in_every_wrong_type(tmp_path, bad, section):
    """Written into all files of the folder, so that only the value is wrong."""
    original = results_of(bad)
    with np.load(bad / "predictions.npz") as stored:
        arrays = dict(stored)
    for value in (None, True, -1, "x", SCRIPT, [], {}, {"a": 1}, {"trainer": []}):
        record = {**original["record"], section: value}
        (bad / "record.json").write_text(json.dumps(record))
        arrays["record"] = np.array(json.dumps(record))
        np.savez(bad / "predictions.npz", **arrays)
        write_signed(bad, {**original, "record": record})
        sign_predictions(bad)
        report_of(tmp_path)


@pytest.mark.parametrize(("field", "value"), [
    ("seed", json.dumps(SCRIPT)), ("trainer", json.dumps(SCRIPT)), ("trainer", '"=cmd|1"'),
    ("dataset", '"\\ud800"'), ("dataset", json.dumps(SCRIPT)), ("n", "100000000"), ("n", DEEP),
    ("versions", json.dumps({SCRIPT: SCRIPT})),
    ("classnames", json.dumps([SCRIPT, "$x^{$", "_\\{}"])),
    ("plugins", json.dumps({"$(x)": "a; rm -rf ~"})), ("finished", '"\\u001b[2J"'),
    ("split", json.dumps(SCRIPT)), ("adapt_seconds_per_image", "1" + "0" * 400),
])
def test_the_report_is_finished_whatever_a_field_holds(tmp_path, bad, field, value):
    with_field(bad, field, value)
    report, rows = report_of(tmp_path)
    # No command is suggested that comes from a file.
    assert "rm -rf" not in "\n".join(report.notes)
    assert "O-TPT" in rows or notes_begin_with(report.notes, "bad is left out")


@pytest.mark.parametrize(("name", "array"), [
    ("logits", None),
    ("logits", np.full((12, 3), "x")),
    ("logits", np.full((12, 3), 1j)),
    ("logits", np.zeros((1, 12, 3))),
    ("logits", np.full((12, 3), np.nan)),
    ("zero_shot_logits", np.full((12, 3), np.inf)),
    ("label", np.full(12, 3)),
    ("label", np.full(12, -1)),
    ("label", np.full(12, 0.5)),
    ("text", np.zeros((5, 2))),
    ("flagged", np.zeros(12, dtype=[("a", int)])),
    ("index", np.arange(3)),
    ("index", np.zeros(12, dtype=int)),
    ("index", np.arange(12) - 3),
    ("image", None),
    ("image", np.zeros((12, 16), dtype=np.uint8)),
    ("image", np.zeros((12, 8), dtype=np.uint8)),
])
def test_predictions_that_do_not_fit(tmp_path, bad, name, array):
    """Arrays that are missing, or of a wrong type, shape or range, or that name an image twice."""
    def exchange(arrays):
        del arrays[name]
        if array is not None:
            arrays[name] = array

    rewrite_predictions(bad, exchange)
    report, rows = report_of(tmp_path)
    assert "O-TPT" not in rows
    assert notes_begin_with(report.notes, "bad is left out: predictions.npz")


def test_a_header_that_claims_a_hundred_million_rows_gets_no_memory(bad):
    """With results.json to match, so that only the length of the file contradicts it."""
    with np.load(bad / "predictions.npz") as stored:
        arrays = dict(stored)
    with zipfile.ZipFile(bad / "predictions.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            out = io.BytesIO()
            shape = (10**8, *array.shape[1:])
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(out, header)
            archive.writestr(f"{name}.npy", out.getvalue() + bytes(100))
    sign_predictions(bad)
    with pytest.raises(DataError, match="cannot be read"):
        read_run(bad).load_predictions()


def test_a_flipped_byte_anywhere_is_noticed(bad):
    path = bad / "predictions.npz"
    original = path.read_bytes()
    generator = np.random.default_rng(0)
    for position in generator.choice(len(original), 40, replace=False):
        content = bytearray(original)
        content[position] ^= int(generator.integers(1, 256))
        path.write_bytes(content)
        with pytest.raises(DataError, match="is not the file that results.json belongs to"):
            read_run(bad).load_predictions()


def test_no_formula_in_the_csv_no_command_in_the_latex_and_no_escape_in_the_terminal():
    names = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\\input{/etc/passwd}", "a\n\nb", "\x1b[2J%"]
    rows = [TableRow(name, "SoC", [Entry(-1.0)]) for name in names]
    blocks = [RowBlock("=2", rows)]
    table = Table("t", "\\write18{id}\x1b]0;x\x07", ["=1+1"], blocks, ["\\end{document}\x9b2J"])
    lines = list(csv.reader(to_csv([table]).splitlines()))
    for line in lines[1:]:
        for cell in line:
            assert not cell.startswith(("=", "+", "@"))
        assert [cell for cell in line if cell.startswith("-")] == ["-1.0"]
    tex = latex(table)
    assert not re.search(r"\\(input|write18|end\{document)", tex)
    assert "\n\n" not in tex and "\x1b" not in tex
    assert not set(terminal(table)) & {"\x1b", "\x07", "\x9b"}


def test_names_of_a_foreign_run_are_no_commands_in_labels_of_latex(tmp_path):
    name = "x}\\input{secret}"
    for value in (10.0, 40.0):
        make_run(tmp_path, "SoC", settings={"TRAINER.SOC.LAMBDA": value}, changes={"names.backbone": name})
    report_on(tmp_path, choose=["LAMBDA"])
    for file in ("tables.tex", "tables_notes.tex"):
        text = (tmp_path / "report" / file).read_text(encoding="utf-8")
        assert "tab:choice_x_input_secret__1}" in text
        assert "\\input{secret}" not in text


def test_escapes_of_a_foreign_run_do_not_reach_the_terminal(tmp_path):
    names = {
        "names.dataset": "set\x1b[2J", "names.method": "\x1b]0;owned\x07TPT",
        "names.backbone": "b\x9b1m",
    }
    make_run(tmp_path, "TPT", n=12, classes=3, changes=names, folder="a")
    other_split = {"names.dataset": "set\x1b[2J", "data.split": "validation"}
    make_run(tmp_path, "SoC", n=12, classes=3, changes=other_split, folder="b")
    done = run_tool("report.py", tmp_path, "--no-figures")
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout + done.stderr) & {"\x1b", "\x07", "\x9b"}
    assert "neither test nor val" in done.stdout


@pytest.mark.slow
def test_odd_names_end_in_figures_all_the_same(tmp_path, real_pictures):
    names = ["\x1b[2J", "$x^{$", "\\frac{", "_under", "a^b", "{}", "漢字 🐈", "שלום", "x" * 300]
    for trainer in ("SoC", "My$^{method"):
        make_run(tmp_path, trainer, "Set_$^{ 漢字 🐈", classes=9, n=40, classnames=names,
                 changes={"names.method": f"{trainer} \x1b[2J"})
    with warnings.catch_warnings():
        # Also of letters that the font lacks: such a warning holds the letter, a control letter too
        warnings.simplefilter("error")
        report = report_on(tmp_path, with_figures=True)
    assert "left out" not in "\n".join(report.notes)
    assert "$x^{$" in report.page.read_text(encoding="utf-8")
    assert (tmp_path / "report" / "figures" / "reliability_grid.png").stat().st_size > 1000


def test_a_figure_that_fails_costs_nothing_else(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no such glyph")

    make_run(tmp_path, n=20)
    monkeypatch.setattr("promptcal.trainers.report.figures.select.draw_selective", fail)
    report = report_on(tmp_path, with_figures=True)
    drawn = {path.stem for path in (tmp_path / "report" / "figures").glob("*.png")}
    assert "reliability_grid" in drawn and "selective_ucf101" not in drawn
    assert report.page.is_file()


def test_a_long_data_set_name_and_a_full_disk(tmp_path):
    """A name of 250 letters has its figures; a full disk ends with one line."""
    make_run(tmp_path, "SoC", "D" * 250, folder="long", n=12, classes=3)
    report = report_on(tmp_path, with_figures=True)
    assert report.page.is_file() and list((tmp_path / "report/figures").glob("selective_ddd*.pdf"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write .*figures/.*png.* free some space"):
            report_on(tmp_path, with_figures=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_runs_of_one_name_below_several_folders_are_told_apart(tmp_path):
    make_run(tmp_path / "laptop", "SoC", folder="run")
    make_run(tmp_path / "cluster", "SoC", folder="run")
    runs, _ = find_runs([tmp_path / "laptop", tmp_path / "cluster"])
    assert [run.name for run in runs] == ["laptop/run", "cluster/run"]
    done = run_tool("report.py", tmp_path / "laptop", tmp_path / "cluster", "--no-figures")
    assert re.search("run is the same run as .*run and counts once", done.stdout)
    assert "cluster/run" in done.stdout


def test_folders_that_vanish_are_skipped(tmp_path, monkeypatch):
    """As below /proc, or where another process removes runs."""
    make_run(tmp_path, folder="stays", n=12, classes=3)
    (tmp_path / "gone").mkdir()
    real = os.scandir

    def scandir(path="."):
        if Path(path).name == "gone":
            Path(path).rmdir()
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    runs, notes = find_runs([tmp_path])
    assert [run.folder.name for run in runs] == ["stays"] and notes == []


# Runs of version 1.0

def make_1_0(
    root: Path, trainer: str = "SoC", data_hash: str = "d0", soc_lambda: float = 30.0,
    dataset: str = "UCF101", reader: str = "UCF101",
) -> Path:
    """A run folder as version 1.0 wrote it: no record, no identities, no hashes of files.

    Args:
        root: Where to write.
        trainer: Name of the method.
        data_hash: Of the list of images.
        soc_lambda: Weight of the penalty.
        dataset: As results.json names it; of a folder of images its name and a hash of its path.
        reader: The registered data set.
    """
    source = make_run(root.parent / "source", trainer, n=60, classes=4)
    folder = root / f"{trainer}-{data_hash}-{soc_lambda}"
    folder.mkdir(parents=True)
    columns = {}
    with np.load(source / "predictions.npz") as stored:
        for name in ("index", "label", "logits", "zero_shot_logits", "flagged"):
            columns[name] = stored[name]
    np.savez(folder / "predictions.npz", **columns)
    results = results_of(source)
    del results["record"], results["files"]
    results |= {
        "dataset": dataset, "data_hash": data_hash, "weights_hash": "w0", "precision": "fp32",
        "device": "cpu (x)",
        "fingerprint": {"engine": 1, "views": "views-1"},
    }
    (folder / "results.json").write_text(json.dumps(results))
    config = {
        "TRAINER": {"NAME": trainer, "SOC": {"LAMBDA": soc_lambda}},
        "DATASET": {"NAME": reader, "ROOT": "/x/y"},
        "TTA": {"STEPS": 1},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_runs_of_1_0_are_read_compared_by_position_and_labelled_by_their_settings(tmp_path):
    runs = tmp_path / "runs"
    make_1_0(runs, "TPT")
    make_1_0(runs, "SoC")
    make_1_0(runs, "SoC", soc_lambda=5.0)
    make_1_0(runs, "SoC", data_hash="d1")
    report = report_on(runs)
    text = (runs / "report/tables.md").read_text()
    assert report.tables[0].columns == ["UCF101, 60 images (d0)", "UCF101, 60 images (d1)"]
    assert "SoC, λ 5" in text and "| TPT → SoC |" in text
    assert "60 images that both methods" in text or "numbers differ" in text
    assert "/x/y" not in report.page.read_text()


def test_images_that_1_0_may_have_had_count_once(tmp_path):
    """A folder of images has another name in 1.0, and nothing says which images these were."""
    runs = tmp_path / "runs"
    for trainer in ("TPT", "SoC"):
        make_run(runs, trainer, "ImageFolder", n=60, classes=4, weights="w0")
        make_1_0(runs, trainer, dataset="imgs-ffbc3a", reader="ImageFolder")
    report = report_on(runs)
    assert len(report.tables[0].columns) == 2  # without an average
    assert notes_begin_with(report.tables[0].notes, "imgs-ffbc3a and ImageFolder may be the same")
    text = (runs / "report/tables.md").read_text()
    (pair,) = [line for line in text.splitlines() if line.startswith("| TPT → SoC |")][:1]
    assert pair.endswith("| 60 | 60 |")


def test_images_of_1_0_may_overlap(tmp_path):
    runs = tmp_path / "runs"
    for trainer in ("TPT", "SoC"):
        make_run(runs, trainer, n=60, classes=4, weights="w0")
        make_1_0(runs, trainer)
    make_run(runs, "CTPT", n=60, classes=4, weights="w0")  # shares no image with the next one
    make_1_0(runs, "OTPT")
    notes = "\n".join(report_on(runs).tables[0].notes)
    assert "several sets of test images (60, 60), which may overlap" in notes
    assert "→ O-TPT" in (runs / "report/tables.md").read_text()


# Each anchor refers to the one before it twice: 2**30 values.
YAML_BOMB = "a0: &a0 {x: 1}\n" + "".join(
    f"a{k}: &a{k} {{l: *a{k - 1}, r: *a{k - 1}}}\n" for k in range(1, 30))


@pytest.mark.parametrize("content", [
    "- a list", "2024-01-01", "SEED: [1", "TTA: {STEPS: two}", "TTA: {STEPS: 2024-01-01}",
    "X: [[1], {a: 2}]", "TRAINER: {OTPT: {LAMBDA: x}}", "DATASET: {NUM_SHOTS: {}}", "a: &a [*a]",
    "TTA: &t {STEPS: 1, X: *t}", "TTA: !!python/object:os.system {}",
    "TTA: {STEPS: !!binary aGVsbG8=}", "X: !!set {a, b}", "\ufeffSEED: 0",
    "SEED: 0\nTAG: \"\\uD800\"", "{" * 1000, "x: " + "[" * 1000, "9" * 5000 + ": 1",
    "TTA: {STEPS: " + "9" * 400 + "}", "\x00", "", YAML_BOMB,
])
def test_config_files_of_1_0_with_anything_in_them(tmp_path, content):
    make_1_0(tmp_path / "runs", "SoC")
    bad = make_1_0(tmp_path / "runs", "OTPT")
    (bad / "config.yaml").write_text(content, encoding="utf-8", errors="surrogatepass")
    report, rows = report_of(tmp_path / "runs")
    assert ("O-TPT" in rows) != notes_begin_with(report.notes, bad.name)
