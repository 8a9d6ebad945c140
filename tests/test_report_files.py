"""Run files as the report reads them: complete, edited, damaged or hostile. It names a bad file and goes on."""
import csv
import io
import json
import os
import re
import resource
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run
from promptcal.datasets.utils.errors import DataError, UserError
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.report import render
from promptcal.trainers.report.load import find_runs, read_run
from promptcal.trainers.report.measure import measure
from promptcal.trainers.report.schema import OPTIONAL, REQUIRED
from promptcal.trainers.report.table_model import Entry, RowBlock, Table, TableRow
from promptcal.trainers.report.write import write_report

SCRIPT = "<script>alert(1)</script>"
DEEP = "[" * 3000 + "]" * 3000
# As JSON text: no JSON writer would write some of these.
VALUES = [
    "null", "true", "-1", "0", "1e308", "1" + "0" * 30, "1" + "0" * 5000, "NaN", "Infinity", '""', '"x"', '"\\ud800"',
    json.dumps(SCRIPT), '"$x^{$"', '"=cmd|1"', '"\\u0000\\u001b[2J"', "[]", "[1, [2]]", "{}", '{"a": {"b": []}}', DEEP,
]


@pytest.fixture
def runs(tmp_path):
    """A good run and one to be damaged."""
    return make_run(tmp_path, "SoC", n=12, classes=3), make_run(tmp_path, "OTPT", n=12, classes=3)


def report_of(runs):
    """The report on both, which must be finished and contain the good run."""
    root = runs[0].parents[4]
    report = write_report([root], root / "report", repeats=0, with_figures=False)
    assert SCRIPT not in report.page.read_text(encoding="utf-8")
    rows = [row.label for row in report.tables[0].blocks[0].rows]
    assert "SoC" in rows
    return report, rows


def with_field(folder, field, value):
    """results.json with another value, given as JSON text."""
    path = folder / "results.json"
    sound = json.loads(path.read_text())
    plain = json.dumps({key: item for key, item in sound.items() if key != field})
    path.write_text(f"{plain[:-1]}, {json.dumps(field)}: {value}}}", encoding="utf-8")
    return sound


def test_only_complete_runs_are_found(tmp_path):
    make_run(tmp_path, folder="done")
    make_run(tmp_path, folder="half").joinpath("results.json").write_text('{"trainer": "So', encoding="utf-8")
    with_field(make_run(tmp_path, folder="incomplete"), "complete", "false")
    make_run(tmp_path, folder="lacking").joinpath("results.json").write_text('{"trainer": "SoC", "n": 3}')
    for name in ("a", "b"):
        (make_run(tmp_path, folder=name) / "results.json").unlink()
    found, notes = find_runs([tmp_path, tmp_path / "done"])
    assert [run.folder.name for run in found] == ["done"]
    assert len(notes) == 4 and notes[-1].startswith("2 unfinished runs left out")
    assert any("not valid JSON" in note for note in notes) and any("lacks dataset" in note for note in notes)
    with pytest.raises(DataError, match="does not exist"):
        find_runs([tmp_path / "nowhere"])


def test_metrics_are_recomputed_from_predictions_with_any_bins(tmp_path):
    run = read_run(make_run(tmp_path, "OTPT", bins=20))
    measured = measure(run, bins=20)
    assert 100 * measured.value("ece") == pytest.approx(run.results["ece"])
    assert 100 * measured.zero_shot_metrics["accuracy"].value == pytest.approx(run.results["zero_shot_accuracy"])
    data = run.load_predictions()
    assert measure(run, bins=7).value("ece") == cal.ece(*cal.top_class(data.logits, data.label), bins=7)
    scaled = cal.sals(data.logits, data.zero_shot_logits)
    assert measured.value("ece_sals") == cal.ece(*cal.top_class(scaled, data.label))
    assert measured.value("ece_temperature") < measured.value("ece")
    assert np.isnan(measured.metrics["ece"].low)
    with_intervals = measure(read_run(make_run(tmp_path, n=100)), repeats=20)
    assert all(m.low <= m.value <= m.high for m in with_intervals.metrics.values() if not np.isnan(m.low))
    assert not np.isnan(with_intervals.metrics["brier"].low) and np.isnan(with_intervals.metrics["ece"].low)


def test_the_report_says_where_temperature_scaling_raises_ece(tmp_path):
    """A temperature from validation logits that are eight times as sharp makes test logits under-confident."""
    for trainer, sharpness in (("SoC", 1.0), ("OTPT", 2.5)):
        make_run(tmp_path / "test", trainer, sharpness=sharpness)
    make_run(tmp_path / "val", "SoC", split="val", sharpness=8.0, data_hash="v0")
    write_report([tmp_path], tmp_path / "out", repeats=0, with_figures=False)
    text = (tmp_path / "out" / "tables.md").read_text()
    assert re.search(r"minimises NLL, not ECE, and raises the ECE here of SoC on UCF101 \([\d.]+ → [\d.]+\)", text)
    assert "O-TPT on UCF101 (" not in text


def test_classes_and_mistakes_by_hand(tmp_path):
    folder = make_run(tmp_path, n=4, classes=2, classnames=["cat", "dog"])
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    np.savez(folder / "predictions.npz", index=[3, 5, 7, 9], label=np.array([1, 1, 0, 0]), logits=np.log(p),
             zero_shot_logits=np.log([[0.6, 0.4]] * 4), flagged=np.zeros(4, bool))
    measured = measure(read_run(folder))
    first, second = measured.mistakes
    assert (first.index, first.truth, first.after[0]) == (3, "dog", ("cat", pytest.approx(0.9)))
    assert first.before == (("cat", pytest.approx(0.6)), ("dog", pytest.approx(0.4)))
    assert (second.index, second.truth) == (9, "cat")
    dog = next(row for row in measured.classes if row.name == "dog")
    assert (dog.n, dog.accuracy, dog.zero_shot_accuracy, dog.confused_with) == (2, 0.5, 0.0, "cat")
    assert dog.gap == pytest.approx(0.85 - 0.5)


def test_temperature_is_fitted_on_the_validation_run(tmp_path):
    run = make_run(tmp_path, trainer="TPT")
    held_out = make_run(tmp_path, trainer="TPT", split="val", n=100, folder="validation", sharpness=5.0)
    make_run(tmp_path, trainer="TPT", split="val", n=100, folder="other", seed=1)
    report = write_report([tmp_path], tmp_path / "out", repeats=0, with_figures=False)
    alone, fitted = measure(read_run(run)), measure(read_run(run), validation=read_run(held_out))
    assert fitted.value("ece_temperature") > alone.value("ece_temperature")  # the validation logits are sharper
    shown = next(table for table in report.tables if "posthoc" in table.name)
    assert f"{100 * fitted.value('ece_temperature'):.1f}" in render.markdown(shown)
    assert report.tables[0].columns == ["UCF101"]  # validation runs have no column of their own
    (held_out / "predictions.npz").write_bytes(b"PK")
    report = write_report([tmp_path], tmp_path / "out", repeats=0, with_figures=False)
    assert any("fitted without it" in note for note in report.notes)


def test_images_are_sorted_whatever_order_a_method_used(tmp_path):
    folder = make_run(tmp_path, "SoC", n=40)
    before = read_run(folder).load_predictions()
    order = np.random.default_rng(0).permutation(40)
    rewritten(folder / "predictions.npz", lambda a: a.update({name: array[order] for name, array in a.items()}))
    after = read_run(folder).load_predictions()
    for name in ("index", "label", "logits", "zero_shot_logits"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))


def test_every_field_of_results_in_every_wrong_type(runs):
    """All fields that the report reads, and every kind of value in each: about 400 edits."""
    outcomes = {"left out": 0, "taken": 0}
    sound = (runs[1] / "results.json").read_text()
    for field in (*REQUIRED, *OPTIONAL, "zero_shot_accuracy", "fingerprint", "unknown"):
        for value in VALUES:
            with_field(runs[1], field, value)
            try:
                read_run(runs[1]).load_predictions()
                outcomes["taken"] += 1
            except DataError as error:
                assert str(runs[1]) in str(error) and "\n" not in str(error)
                outcomes["left out"] += 1
            (runs[1] / "results.json").write_text(sound)
    assert outcomes["left out"] > 150 and outcomes["taken"] > 50


@pytest.mark.parametrize(("field", "value"), [
    ("seed", json.dumps(SCRIPT)), ("trainer", json.dumps(SCRIPT)), ("trainer", '"=cmd|1"'), ("dataset", '"\\ud800"'),
    ("dataset", json.dumps(SCRIPT)), ("n", "100000000"), ("n", DEEP), ("versions", json.dumps({SCRIPT: SCRIPT})),
    ("data_hash", json.dumps(SCRIPT)), ("classnames", json.dumps([SCRIPT, "$x^{$", "_\\{}"])),
    ("finished", '"\\u001b[2J"'), ("split", json.dumps(SCRIPT)), ("adapt_seconds_per_image", "1" + "0" * 400),
])
def test_the_report_is_finished_whatever_a_field_holds(runs, field, value):
    with_field(runs[1], field, value)
    report, rows = report_of(runs)
    if "O-TPT" not in rows and field not in ("trainer", "dataset", "data_hash", "split"):
        assert any(str(runs[1]) in note for note in report.notes)


@pytest.mark.parametrize("content", [
    "- a list", "2024-01-01", "SEED: [1", "TTA: {STEPS: two}", "TTA: {STEPS: 2024-01-01}", "X: [[1], {a: 2}]",
    "TRAINER: {OTPT: {LAMBDA: x}}", "DATASET: {NUM_SHOTS: {}}", "a: &a [*a]", "TTA: &t {STEPS: 1, X: *t}",
    "TTA: !!python/object:os.system {}", "TTA: {STEPS: !!binary aGVsbG8=}", "X: !!set {a, b}", "\ufeffSEED: 0",
    "SEED: 0\nTAG: \"\\uD800\"", "{" * 1000, "x: " + "[" * 1000, "9" * 5000 + ": 1",
    "TTA: {STEPS: " + "9" * 400 + "}", "\x00", "",
    "\n".join(["a0: &a0 {x: 1}", *(f"a{k}: &a{k} {{l: *a{k - 1}, r: *a{k - 1}}}" for k in range(1, 30))]),
])
def test_config_files_with_anything_in_them(runs, content):
    (runs[1] / "config.yaml").write_text(content, encoding="utf-8", errors="surrogatepass")
    report, rows = report_of(runs)
    named = [note for note in report.notes if str(runs[1]) in note]
    assert ("O-TPT" in rows) != bool(named)


def rewritten(path, change):
    """The archive with other arrays."""
    arrays = dict(np.load(path))
    change(arrays)
    np.savez(path, **arrays)


CHANGES = {
    "no logits": lambda a: a.pop("logits"),
    "text for logits": lambda a: a.update(logits=np.full((12, 3), "x")),
    "complex logits": lambda a: a.update(logits=a["logits"] * 1j),
    "objects": lambda a: a.update(label=np.array([None] * 12)),
    "labels too high": lambda a: a.update(label=a["label"] + 2),
    "labels below zero": lambda a: a.update(label=a["label"] - 5),
    "labels with a fraction": lambda a: a.update(label=a["label"] + 0.5),
    "one axis more": lambda a: a.update(logits=a["logits"][None]),
    "NaN": lambda a: a.update(logits=a["logits"] * np.nan),
    "infinite": lambda a: a.update(zero_shot_logits=a["logits"] + np.inf),
    "other text": lambda a: a.update(text=np.zeros((5, 2))),
    "shorter index": lambda a: a.update(index=np.arange(3)),
    "a record": lambda a: a.update(flagged=np.zeros(12, dtype=[("a", int)])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_predictions_that_do_not_fit(runs, change):
    rewritten(runs[1] / "predictions.npz", CHANGES[change])
    report, rows = report_of(runs)
    assert "O-TPT" not in rows
    assert any(str(runs[1] / "predictions.npz") in note for note in report.notes)


@pytest.mark.parametrize("content", [None, b"PK half of it"])
def test_damaged_predictions_are_named(runs, content):
    path = runs[1] / "predictions.npz"
    path.unlink()
    if content:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"predictions\.npz (is missing|cannot be read)"):
        read_run(runs[1]).load_predictions()


def test_a_header_that_claims_a_hundred_million_rows_gets_no_memory(runs):
    """With results.json to match, so that only the length of the file contradicts it."""
    with_field(runs[1], "n", "100000000")
    arrays = dict(np.load(runs[1] / "predictions.npz"))
    with zipfile.ZipFile(runs[1] / "predictions.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            out = io.BytesIO()
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": (10**8, *array.shape[1:])}
            np.lib.format.write_array_header_1_0(out, header)
            archive.writestr(f"{name}.npy", out.getvalue() + bytes(100))
    with pytest.raises(DataError, match="cannot be read"):
        read_run(runs[1]).load_predictions()


def test_flipped_bytes_anywhere(runs):
    """Either the run is left out or the numbers are the same: zip's checksums cover every number."""
    path = runs[1] / "predictions.npz"
    sound, generator = path.read_bytes(), np.random.default_rng(0)
    logits = dict(np.load(path))["logits"]
    refused = 0
    for place in generator.choice(len(sound), 150, replace=False):
        content = bytearray(sound)
        content[place] ^= int(generator.integers(1, 256))
        path.write_bytes(content)
        try:
            np.testing.assert_array_equal(read_run(runs[1]).load_predictions().logits, logits)
        except DataError:
            refused += 1
    assert refused > 50


def test_no_formula_in_the_csv_and_no_command_in_the_latex():
    names = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\\input{/etc/passwd}", "a\n\nb", "\x1b[2J%"]
    rows = [TableRow(name, "SoC", [Entry(-1.0)]) for name in names]
    table = Table("t", "\\write18{id}", ["=1+1"], [RowBlock("=2", rows)], ["\\end{document}"])
    for line in list(csv.reader(render.to_csv([table]).splitlines()))[1:]:
        assert not any(cell.startswith(("=", "+", "@")) for cell in line)
        assert [cell for cell in line if cell.startswith("-")] == ["-1.0"]
    latex = render.latex(table)
    assert not re.search(r"\\(input|write18|end\{document)", latex)
    assert "\n\n" not in latex and "\x1b" not in latex


@pytest.mark.slow
def test_odd_names_end_in_figures_all_the_same(tmp_path, real_pictures):
    names = ["$x^{$", "\\frac{", "_under", "a^b", "{}", "漢字 🐈", "שלום", "x" * 300]
    for trainer in ("OTPT", "SoC", "My$^{method"):
        folder = make_run(tmp_path, trainer, "Set_$^{ 漢字 🐈", classes=8, n=40, classnames=names, data_hash="$")
        rewritten(folder / "predictions.npz", lambda a: a.update(text=np.eye(8)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="Glyph")  # the font has no such letters
        report = write_report([tmp_path], tmp_path / "report", repeats=0)
    assert not [note for note in report.notes if "left out" in note]
    assert "$x^{$" in report.page.read_text(encoding="utf-8")
    assert (tmp_path / "report" / "figures" / "reliability_grid.png").stat().st_size > 1000


def test_a_figure_that_fails_costs_nothing_else(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no such glyph")

    make_run(tmp_path, n=20)
    monkeypatch.setattr("promptcal.trainers.report.gallery.draw_selective", fail)
    report = write_report([tmp_path], tmp_path / "report", repeats=0)
    found = {path.stem for path in (tmp_path / "report" / "figures").glob("*.png")}
    assert "reliability_grid" in found and "selective_ucf101" not in found
    assert report.page.is_file()


@pytest.mark.parametrize("index", [np.zeros(12, int), np.arange(12) - 3, [*range(11), 3]])
def test_positions_that_cannot_be_are_refused(runs, index):
    path = runs[1] / "predictions.npz"
    with np.load(path) as columns:
        np.savez(path, **{**columns, "index": np.asarray(index)})
    report, rows = report_of(runs)
    assert "O-TPT" not in rows and any("'index' must hold each position once" in note for note in report.notes)


def test_a_long_data_set_name_and_a_full_disk(tmp_path):
    """A name of 250 letters has its figures; a disk that is full while figures are written ends with one line."""
    make_run(tmp_path, "SoC", "D" * 250, folder="long", n=12, classes=3)
    report = write_report([tmp_path], tmp_path / "report", repeats=0)
    assert report.page.is_file() and list((tmp_path / "report/figures").glob("selective_ddd*.pdf"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40000, before[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*figures/.*png.* free some space"):
            write_report([tmp_path], tmp_path / "report", repeats=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_folders_that_vanish_are_skipped(tmp_path, monkeypatch):
    """As below /proc, or where another process removes runs."""
    make_run(tmp_path, folder="kept", n=12, classes=3)
    (tmp_path / "gone").mkdir()
    real = os.scandir

    def scandir(path="."):
        if Path(path).name == "gone":
            Path(path).rmdir()
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    runs, notes = find_runs([tmp_path])
    assert [run.folder.name for run in runs] == ["kept"] and notes == []
