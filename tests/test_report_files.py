"""Run files as the report reads them: complete, edited, damaged, hostile or of 1.0. It names a bad file and goes on."""
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
from promptcal.trainers.report import render
from promptcal.trainers.report.load import find_runs, read_run
from promptcal.trainers.report.measure import MeasureOptions, measure_run
from promptcal.trainers.report.schema import OPTIONAL, REQUIRED
from promptcal.trainers.report.table_model import Entry, RowBlock, Table, TableRow
from promptcal.trainers.runs.record import results_hash

from common import run_tool
from made_runs import make_run, report_on, rewrite_predictions

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
    return (make_run(tmp_path, "SoC", n=12, classes=3, folder="good"),
            make_run(tmp_path, "OTPT", n=12, classes=3, folder="bad"))


def report_of(runs):
    """The report on both, which must be finished and contain the good run."""
    report = report_on(runs[0].parent)
    assert SCRIPT not in report.page.read_text(encoding="utf-8")
    rows = [row.label for row in report.tables[0].blocks[0].rows]
    assert "SoC" in rows
    return report, rows


def with_field(folder, field, value):
    """results.json with another value, given as JSON text."""
    path = folder / "results.json"
    sound = json.loads(path.read_text())
    with suppress(ValueError, RecursionError):  # what no program could have signed
        sound = signed({**sound, field: json.loads(value)})
    plain = json.dumps({key: item for key, item in sound.items() if key != field})
    path.write_text(f"{plain[:-1]}, {json.dumps(field)}: {value}}}", encoding="utf-8")


def signed(results):
    """Results as a program writes them: with the hash of their content."""
    files = results.get("files")
    if not isinstance(files, dict):
        return results
    return {**results, "files": {**files, "results.json": results_hash(results)}}


def content_of(folder: Path) -> dict[str, str]:
    """The hashes of all files of a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def test_only_complete_runs_are_found(tmp_path):
    make_run(tmp_path, folder="done")
    make_run(tmp_path, folder="half").joinpath("results.json").write_text('{"trainer": "So', encoding="utf-8")
    with_field(make_run(tmp_path, folder="incomplete"), "complete", "false")
    make_run(tmp_path, folder="lacking").joinpath("results.json").write_text('{"trainer": "SoC", "n": 3}')
    for name in ("a", "b"):
        (make_run(tmp_path, folder=name) / "results.json").unlink()
    found, notes = find_runs([tmp_path, tmp_path / "done"])
    assert [run.name for run in found] == ["done"]
    assert len(notes) == 4 and notes[-1].startswith("2 unfinished runs left out (a, b)")
    assert any("half is left out: results.json is not valid JSON" in note for note in notes)
    assert any("lacks dataset" in note for note in notes) and str(tmp_path) not in " ".join(notes)
    with pytest.raises(DataError, match="does not exist"):
        find_runs([tmp_path / "nowhere"])


def of_another_run(folder, other):
    shutil.copy(other / "predictions.npz", folder / "predictions.npz")


def with_hash(folder, other):
    """Another run's predictions, and results.json says that they belong here."""
    of_another_run(folder, other)
    results = json.loads((folder / "results.json").read_text())
    results["files"]["predictions.npz"] = hashlib.sha256((folder / "predictions.npz").read_bytes()).hexdigest()
    (folder / "results.json").write_text(json.dumps(signed(results)))


def edited_config(folder, other):
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("LAMBDA: 30", "LAMBDA: 60"))


def edited_record(folder, other):
    results = json.loads((folder / "results.json").read_text())
    results["record"]["changed"] = {"TRAINER.OTPT.LAMBDA": [18.0, 1.0]}
    (folder / "results.json").write_text(json.dumps(signed(results)))


def edited_both_records(folder, other):
    edited_record(folder, other)
    record = json.loads((folder / "results.json").read_text())["record"]
    (folder / "record.json").write_text(json.dumps(record))


def relabelled(folder, other):
    results = json.loads((folder / "results.json").read_text())
    results["trainer"] = "SoC"
    (folder / "results.json").write_text(json.dumps(signed(results)))


def edited_results(folder, other):
    results = json.loads((folder / "results.json").read_text())
    results["accuracy"] = 99.9
    (folder / "results.json").write_text(json.dumps(results))


def without_hashes(folder, other):
    results = json.loads((folder / "results.json").read_text())
    del results["files"]
    (folder / "results.json").write_text(json.dumps(results))


@pytest.mark.parametrize("mix", [
    of_another_run, with_hash, edited_config, edited_record, edited_both_records, edited_results, relabelled,
    without_hashes])
def test_files_that_do_not_belong_together_are_named_and_left_out(runs, mix):
    mix(runs[1], runs[0])
    before = content_of(runs[1])
    report, rows = report_of(runs)
    assert "O-TPT" not in rows and any(note.startswith("bad is left out: ") for note in report.notes)
    assert content_of(runs[1]) == before  # nothing is written into it


def test_metrics_are_recomputed_from_predictions_with_any_bins(tmp_path):
    run = read_run(make_run(tmp_path, "OTPT", bins=20))
    data = run.load_predictions()
    measured = measure_run(run, data, MeasureOptions(bins=20))
    assert 100 * measured.value("ece") == pytest.approx(run.results["ece"])
    assert 100 * measured.zero_shot_metrics["accuracy"].value == pytest.approx(run.results["zero_shot_accuracy"])
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
    """A temperature from validation logits that are eight times as sharp makes test logits under-confident."""
    for trainer, sharpness in (("SoC", 1.0), ("OTPT", 2.5)):
        make_run(tmp_path, trainer, sharpness=sharpness, folder=trainer)
    make_run(tmp_path, "SoC", split="val", sharpness=8.0, folder="val")
    report_on(tmp_path)
    text = (tmp_path / "report" / "tables.md").read_text()
    assert re.search(r"minimises NLL, not ECE, and raises the ECE here of SoC on UCF101 \([\d.]+ → [\d.]+\)", text)
    assert "O-TPT on UCF101 (" not in text


def test_classes_and_mistakes_by_hand(tmp_path):
    p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    folder = make_run(tmp_path, n=4, classes=2, classnames=["cat", "dog"], index=[3, 5, 7, 9], label=[1, 1, 0, 0],
                      logits=np.log(p))
    rewrite_predictions(folder, lambda a: a.update(zero_shot_logits=np.log([[0.6, 0.4]] * 4)))
    run = read_run(folder)
    measured = measure_run(run, run.load_predictions(), MeasureOptions())
    first, second = measured.mistakes
    assert (first.index, first.truth, first.after[0]) == (3, "dog", ("cat", pytest.approx(0.9)))
    assert first.before == (("cat", pytest.approx(0.6)), ("dog", pytest.approx(0.4)))
    assert (second.index, second.truth, second.filename) == (9, "cat", "UCF101 test 3")
    dog = next(row for row in measured.classes if row.name == "dog")
    assert (dog.n, dog.accuracy, dog.zero_shot_accuracy, dog.confused_with) == (2, 0.5, 0.0, "cat")
    assert dog.gap == pytest.approx(0.85 - 0.5)


def test_images_are_sorted_whatever_order_a_method_used(tmp_path):
    folder = make_run(tmp_path, "SoC", n=40)
    before = read_run(folder).load_predictions()
    order = np.random.default_rng(0).permutation(40)
    apart = ("text", "record")
    rewrite_predictions(folder, lambda a: a.update({k: v[order] for k, v in a.items() if k not in apart}))
    after = read_run(folder).load_predictions()
    for name in ("index", "label", "logits", "zero_shot_logits", "image"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))


def test_every_field_of_results_in_every_wrong_type(runs):
    """All fields that the report reads, and every kind of value in each: about 400 edits."""
    outcomes = {"left out": 0, "taken": 0}
    sound = (runs[1] / "results.json").read_text()
    for field in (*REQUIRED, *OPTIONAL, "zero_shot_accuracy", "unknown"):
        for value in VALUES:
            with_field(runs[1], field, value)
            try:
                read_run(runs[1]).load_predictions()
                outcomes["taken"] += 1
            except DataError as error:
                assert "\n" not in str(error)
                outcomes["left out"] += 1
            (runs[1] / "results.json").write_text(sound)
    assert outcomes["left out"] > 150 and outcomes["taken"] > 50


def test_every_field_of_a_record_in_every_wrong_type(runs):
    """Written into all files of the folder, so that only the value is wrong."""
    sound = json.loads((runs[1] / "results.json").read_text())
    for section in ("data", "views", "model", "method", "numerics", "names", "changed", "seed"):
        for value in (None, True, -1, "x", SCRIPT, [], {}, {"a": 1}, {"trainer": []}):
            record = {**sound["record"], section: value}
            (runs[1] / "record.json").write_text(json.dumps(record))
            rewritten(runs[1] / "predictions.npz", lambda a, r=record: a.update(record=np.array(json.dumps(r))))
            digest = hashlib.sha256((runs[1] / "predictions.npz").read_bytes()).hexdigest()
            files = {**sound["files"], "predictions.npz": digest}
            (runs[1] / "results.json").write_text(json.dumps(signed({**sound, "record": record, "files": files})))
            report_of(runs)


@pytest.mark.parametrize(("field", "value"), [
    ("seed", json.dumps(SCRIPT)), ("trainer", json.dumps(SCRIPT)), ("trainer", '"=cmd|1"'), ("dataset", '"\\ud800"'),
    ("dataset", json.dumps(SCRIPT)), ("n", "100000000"), ("n", DEEP), ("versions", json.dumps({SCRIPT: SCRIPT})),
    ("classnames", json.dumps([SCRIPT, "$x^{$", "_\\{}"])), ("plugins", json.dumps({"$(x)": "a; rm -rf ~"})),
    ("finished", '"\\u001b[2J"'), ("split", json.dumps(SCRIPT)), ("adapt_seconds_per_image", "1" + "0" * 400),
])
def test_the_report_is_finished_whatever_a_field_holds(runs, field, value):
    with_field(runs[1], field, value)
    report, rows = report_of(runs)
    assert not any("rm -rf" in note for note in report.notes)  # no command is suggested that a file made up
    if "O-TPT" not in rows:
        assert any(note.startswith("bad is left out") for note in report.notes)


def rewritten(path, change):
    """The archive with other arrays, as it is: its hash is no longer that of results.json."""
    with np.load(path) as stored:
        arrays = dict(stored)
    change(arrays)
    np.savez(path, **arrays)


CHANGES = {
    "no logits": lambda a: a.pop("logits"),
    "text for logits": lambda a: a.update(logits=np.full((12, 3), "x")),
    "complex logits": lambda a: a.update(logits=a["logits"] * 1j),
    "labels too high": lambda a: a.update(label=a["label"] + 2),
    "labels below zero": lambda a: a.update(label=a["label"] - 5),
    "labels with a fraction": lambda a: a.update(label=a["label"] + 0.5),
    "one axis more": lambda a: a.update(logits=a["logits"][None]),
    "NaN": lambda a: a.update(logits=a["logits"] * np.nan),
    "infinite": lambda a: a.update(zero_shot_logits=a["logits"] + np.inf),
    "other text": lambda a: a.update(text=np.zeros((5, 2))),
    "shorter index": lambda a: a.update(index=np.arange(3)),
    "a record": lambda a: a.update(flagged=np.zeros(12, dtype=[("a", int)])),
    "one image twice": lambda a: a.update(image=np.repeat(a["image"][:1], 12, axis=0)),
    "no images": lambda a: a.pop("image"),
    "short images": lambda a: a.update(image=a["image"][:, :8]),
    "positions twice": lambda a: a.update(index=np.zeros(12, int)),
    "positions below zero": lambda a: a.update(index=np.arange(12) - 3),
}


@pytest.mark.parametrize("change", CHANGES)
def test_predictions_that_do_not_fit(runs, change):
    rewrite_predictions(runs[1], CHANGES[change])
    report, rows = report_of(runs)
    assert "O-TPT" not in rows
    assert any(note.startswith("bad is left out: predictions.npz") for note in report.notes)


@pytest.mark.parametrize("content", [None, b"PK half of it"])
def test_damaged_predictions_are_named(runs, content):
    path = runs[1] / "predictions.npz"
    path.unlink()
    if content:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"predictions\.npz (is missing|is not the file)"):
        read_run(runs[1]).load_predictions()


def test_a_header_that_claims_a_hundred_million_rows_gets_no_memory(runs):
    """With results.json to match, so that only the length of the file contradicts it."""
    with np.load(runs[1] / "predictions.npz") as stored:
        arrays = dict(stored)
    with zipfile.ZipFile(runs[1] / "predictions.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            out = io.BytesIO()
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": (10**8, *array.shape[1:])}
            np.lib.format.write_array_header_1_0(out, header)
            archive.writestr(f"{name}.npy", out.getvalue() + bytes(100))
    results = json.loads((runs[1] / "results.json").read_text())
    results["files"]["predictions.npz"] = hashlib.sha256((runs[1] / "predictions.npz").read_bytes()).hexdigest()
    (runs[1] / "results.json").write_text(json.dumps(signed(results)))
    with pytest.raises(DataError, match="cannot be read"):
        read_run(runs[1]).load_predictions()


def test_flipped_bytes_anywhere(runs):
    """A single flipped byte is noticed: results.json has the hash of the whole file."""
    path = runs[1] / "predictions.npz"
    sound = path.read_bytes()
    generator = np.random.default_rng(0)
    for place in generator.choice(len(sound), 40, replace=False):
        content = bytearray(sound)
        content[place] ^= int(generator.integers(1, 256))
        path.write_bytes(content)
        with pytest.raises(DataError, match="is not the file that results.json belongs to"):
            read_run(runs[1]).load_predictions()


def test_no_formula_in_the_csv_no_command_in_the_latex_and_no_escape_in_the_terminal():
    names = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\\input{/etc/passwd}", "a\n\nb", "\x1b[2J%"]
    rows = [TableRow(name, "SoC", [Entry(-1.0)]) for name in names]
    table = Table("t", "\\write18{id}\x1b]0;x\x07", ["=1+1"], [RowBlock("=2", rows)], ["\\end{document}\x9b2J"])
    for line in list(csv.reader(render.to_csv([table]).splitlines()))[1:]:
        assert not any(cell.startswith(("=", "+", "@")) for cell in line)
        assert [cell for cell in line if cell.startswith("-")] == ["-1.0"]
    latex = render.latex(table)
    assert not re.search(r"\\(input|write18|end\{document)", latex)
    assert "\n\n" not in latex and "\x1b" not in latex
    assert not set(render.terminal(table)) & {"\x1b", "\x07", "\x9b"}


def test_escapes_of_a_foreign_run_do_not_reach_the_terminal(tmp_path):
    changes = {"names.dataset": "set\x1b[2J", "names.method": "\x1b]0;owned\x07TPT", "names.backbone": "b\x9b1m"}
    make_run(tmp_path, "TPT", n=12, classes=3, changes=changes, folder="one")
    make_run(tmp_path, "SoC", n=12, classes=3, changes={"names.dataset": "set\x1b[2J", "data.split": "validation"},
             folder="two")
    done = run_tool("report.py", tmp_path, "--no-figures")
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout + done.stderr) & {"\x1b", "\x07", "\x9b"}
    assert "neither test nor val" in done.stdout


@pytest.mark.slow
def test_odd_names_end_in_figures_all_the_same(tmp_path, real_pictures):
    names = ["$x^{$", "\\frac{", "_under", "a^b", "{}", "漢字 🐈", "שלום", "x" * 300]
    for trainer in ("OTPT", "SoC", "My$^{method"):
        make_run(tmp_path, trainer, "Set_$^{ 漢字 🐈", classes=8, n=40, classnames=names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="Glyph")  # the font has no such letters
        report = report_on(tmp_path, with_figures=True)
    assert not [note for note in report.notes if "left out" in note]
    assert "$x^{$" in report.page.read_text(encoding="utf-8")
    assert (tmp_path / "report" / "figures" / "reliability_grid.png").stat().st_size > 1000


def test_a_figure_that_fails_costs_nothing_else(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no such glyph")

    make_run(tmp_path, n=20)
    monkeypatch.setattr("promptcal.trainers.report.figures.select.draw_selective", fail)
    report = report_on(tmp_path, with_figures=True)
    found = {path.stem for path in (tmp_path / "report" / "figures").glob("*.png")}
    assert "reliability_grid" in found and "selective_ucf101" not in found
    assert report.page.is_file()


def test_a_long_data_set_name_and_a_full_disk(tmp_path):
    """A name of 250 letters has its figures; a disk that is full while figures are written ends with one line."""
    make_run(tmp_path, "SoC", "D" * 250, folder="long", n=12, classes=3)
    report = report_on(tmp_path, with_figures=True)
    assert report.page.is_file() and list((tmp_path / "report/figures").glob("selective_ddd*.pdf"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40000, before[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*figures/.*png.* free some space"):
            report_on(tmp_path, with_figures=True)
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


# Runs of version 1.0

def make_1_0(root: Path, trainer: str = "SoC", seed: int = 0, data_hash: str = "d0", n: int = 60, **settings) -> Path:
    """A run folder as version 1.0 wrote it: no record, no identities, no hashes of files."""
    made = make_run(root / "source", trainer, seed=seed, n=n, classes=4)
    folder = root / f"{trainer}-{seed}-{data_hash}-{len(settings)}"
    folder.mkdir(parents=True)
    with np.load(made / "predictions.npz") as stored:
        columns = {name: stored[name] for name in ("index", "label", "logits", "zero_shot_logits", "flagged")}
    np.savez(folder / "predictions.npz", **columns)
    results = json.loads((made / "results.json").read_text())
    for key in ("record", "files"):
        del results[key]
    results |= {"data_hash": data_hash, "weights_hash": "w0", "precision": "fp32", "device": "cpu (x)",
                "fingerprint": {"engine": 1, "views": "views-1"}}
    (folder / "results.json").write_text(json.dumps(results))
    tree: dict = {"TRAINER": {"NAME": trainer, "SOC": {"LAMBDA": 30.0}}, "DATASET": {"NAME": "UCF101", "ROOT": "/x/y"},
                  "TTA": {"STEPS": 1}}
    for key, value in settings.items():
        group, _, leaf = key.rpartition("__")
        tree["TRAINER"].setdefault(group, {})[leaf] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    return folder


def test_runs_of_1_0_are_read_compared_by_position_and_labelled_by_their_settings(tmp_path):
    for trainer in ("TPT", "SoC"):
        make_1_0(tmp_path / "runs", trainer)
    make_1_0(tmp_path / "runs", "SoC", SOC__LAMBDA=5.0)
    make_1_0(tmp_path / "runs", "SoC", data_hash="d1")
    shutil.rmtree(tmp_path / "runs" / "source")
    report = report_on(tmp_path / "runs")
    text = (tmp_path / "runs/report/tables.md").read_text()
    assert report.tables[0].columns == ["UCF101, 60 images (d0)", "UCF101, 60 images (d1)"]
    assert "SoC, λ 5" in text and "| TPT → SoC |" in text
    assert "60 images that both methods" in text or "numbers differ" in text
    assert "/x/y" not in report.page.read_text()


@pytest.mark.parametrize("content", [
    "- a list", "2024-01-01", "SEED: [1", "TTA: {STEPS: two}", "TTA: {STEPS: 2024-01-01}", "X: [[1], {a: 2}]",
    "TRAINER: {OTPT: {LAMBDA: x}}", "DATASET: {NUM_SHOTS: {}}", "a: &a [*a]", "TTA: &t {STEPS: 1, X: *t}",
    "TTA: !!python/object:os.system {}", "TTA: {STEPS: !!binary aGVsbG8=}", "X: !!set {a, b}", "\ufeffSEED: 0",
    "SEED: 0\nTAG: \"\\uD800\"", "{" * 1000, "x: " + "[" * 1000, "9" * 5000 + ": 1",
    "TTA: {STEPS: " + "9" * 400 + "}", "\x00", "",
    "\n".join(["a0: &a0 {x: 1}", *(f"a{k}: &a{k} {{l: *a{k - 1}, r: *a{k - 1}}}" for k in range(1, 30))]),
])
def test_config_files_of_1_0_with_anything_in_them(tmp_path, content):
    good = make_1_0(tmp_path / "runs", "SoC")
    bad = make_1_0(tmp_path / "runs", "OTPT")
    shutil.rmtree(tmp_path / "runs" / "source")
    (bad / "config.yaml").write_text(content, encoding="utf-8", errors="surrogatepass")
    report = report_on(tmp_path / "runs")
    rows = [row.label for row in report.tables[0].blocks[0].rows]
    named = [note for note in report.notes if note.startswith(bad.name)]
    assert good.is_dir() and "SoC" in rows and ("O-TPT" in rows) != bool(named)


