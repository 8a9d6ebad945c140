"""Methods, data sets, metrics, backbones and experiments of another repository."""
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from promptcal.datasets.utils import cli
from promptcal.datasets.utils.cli import load_plugins
from promptcal.datasets.utils.errors import ConfigError
from promptcal.tools import report, reproduce, train
from promptcal.trainers.experiments.definition import add, experiment_file, read_experiment

from common import PROJECT, make_image_folder
from processes import forked

SETTINGS = ("--backbone", "small", "--root", "DATA", "TTA.VIEWS", "10")


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """The example of the READMEs, written from their own blocks, and its data.

    Commands start in it.
    """
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    text += (PROJECT / "trainers/README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"`(\w+\.(?:py|yaml))`[^\n]*:\n\n```\w+\n(.*?)```", text, re.DOTALL)
    assert {name for name, _ in blocks} == {"hinge_pairs.py", "birds.py", "pairs.yaml"}
    for name, content in blocks:
        (tmp_path / name).write_text(content, encoding="utf-8")
    make_image_folder(tmp_path / "DATA" / "birds")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROMPTCAL_PLUGINS", raising=False)
    return tmp_path


def command(main: Callable, *args: str) -> subprocess.CompletedProcess:
    """A command in a copy of this process, because plugins register themselves."""
    return forked(lambda: sys.exit(cli.outcome(lambda: main(list(args)))))


@pytest.mark.slow
def test_the_example_repository_runs_as_a_package_of_its_own(repository):
    """`family --add` has the method, an experiment of the user's has it and the data set; so do worker processes."""
    done = command(reproduce.main, "family", "--demo", "--limit", "6", "--plugin", "hinge_pairs", "--add", "HingePairs",
                   "--only", "HingePairs", "SoC", "TDA", "landcover", "--set", "TTA.VIEWS", "10")
    assert done.returncode == 0, done.stderr
    assert re.search(r"Hinge pairs +\*?\d", done.stdout) and "3 runs done now" in done.stdout
    tables = Path("output/demo/experiments/family/tables.md").read_text(encoding="utf-8")
    head, _, body = tables.split("\n### ")[0].partition("|:--")
    for label in ("Accuracy (%)", "ECE (%)", "ECE + CoTS (%)", "Seconds"):
        assert label in head, label
    assert re.search(r"^\| TDA[^|]*\|[^|]*\|[^|]*\| +\|", body, re.M)  # no CoTS: it sees the plain view alone
    done = command(reproduce.main, "pairs.yaml", "--plugin", "hinge_pairs,birds", "--jobs", "2", "--backbone", "small",
                   "--root", "DATA", "--limit", "4", "--set", "TTA.VIEWS", "10")
    assert done.returncode == 0, done.stderr
    assert "Garden birds" in done.stdout and "*" in done.stdout
    assert "5 runs done now; 1 of 1 outcome written" in done.stdout
    page = Path("output/experiments/pairs/report.html").read_text(encoding="utf-8")
    assert "Hinge pairs" in page and "Of the SoC paper" not in page


def test_a_run_and_its_report_with_and_without_the_plugin(repository, monkeypatch):
    flags = ("--dataset-config-file", "Birds", "--output-dir", "run", *SETTINGS)
    hinge = ("--trainer", "HingePairs", *flags)
    assert command(train.main, *hinge).returncode == 2
    done = command(train.main, "--plugin", "hinge_pairs", "--plugin", "birds", *hinge)
    assert done.returncode == 0 and "Hinge pairs" in done.stdout, done.stderr
    results = json.loads(Path("run/results.json").read_text())
    assert results["plugins"] == {"HingePairs": "hinge_pairs", "Birds": "birds"} and results["dataset"] == "Birds"
    assert results["record"]["method"]["source"]["plugin"]

    without = command(report.main, "run", "--no-figures")
    assert without.returncode == 0 and "  Hinge pairs" in without.stdout, without.stderr
    note, = re.findall(r"^note: .*$", without.stdout, re.MULTILINE)
    assert note.endswith("add --plugin hinge_pairs --plugin birds to the command.")
    monkeypatch.setenv("PROMPTCAL_PLUGINS", "hinge_pairs:birds")
    loaded = command(report.main, "run", "--no-figures").stdout
    assert re.search("Hinge pairs, .* has an ECE of", loaded)
    assert "Garden birds" in loaded and "note: " not in loaded

    source = Path("hinge_pairs.py")
    source.write_text(source.read_text().replace(".relu()", ".relu().square()"))
    refused = command(train.main, *hinge)
    assert refused.returncode == 2 and "was made with other code of HingePairs" in refused.stderr


def test_the_source_of_an_added_term_counts(repository, monkeypatch):
    monkeypatch.setenv("PROMPTCAL_PLUGINS", "hinge_pairs")
    done = command(train.main, "--trainer", "TPT", "--dataset-config-file", "image_folder", "--output-dir", "run",
                   *SETTINGS, "DATASET.ROOT", "DATA/birds", "TRAINER.REGULARISERS", "hingepairs:5")
    assert done.returncode == 0, done.stderr
    assert json.loads(Path("run/record.json").read_text())["method"]["source"]["plugin"]


LAB = """
import toy
from promptcal.trainers.report.metrics import Metric, register_metric
register_metric("doubt", Metric("Doubt", lambda s: (lambda c: 1 - c.mean(), s.top.confidence)))
"""


def test_installed_packages_metrics_and_backbones(repository, monkeypatch):
    """An entry point is enough; a metric becomes a column, a prefix a backbone."""
    text = (PROJECT / "trainers/vlm/README.md").read_text(encoding="utf-8")
    toy = re.search(r"```python\n(# toy\.py.*?)```", text, re.DOTALL)[1]
    site = repository / "site"
    info = site / "lab-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[promptcal.plugins]\nlab = lab\n")
    (site / "toy.py").write_text(toy)
    (site / "lab.py").write_text(LAB)
    monkeypatch.syspath_prepend(site)
    (repository / "waters").mkdir()
    for old, new in (("kind_a", "river"), ("kind_b", "lake")):  # words that the toy knows
        (repository / "DATA" / "birds" / old).rename(repository / "waters" / new)
    run = (train.main, "--trainer", "ZeroShot", "--backbone", "toy:any", "--dataset-config-file", "image_folder",
           "--root", "waters", "--output-dir", "run", "PROMPT.CTX_INIT", "a photo")
    done = command(*run)
    assert done.returncode == 0, done.stderr
    assert json.loads(Path("run/results.json").read_text())["weights_hash"]
    (site / "toy.py").write_text(toy.replace("manual_seed(0)", "manual_seed(1)"))  # its weights_hash is not edited
    edited = command(*run)
    assert edited.returncode == 2 and "was made with other weights" in edited.stderr
    done = command(report.main, "run", "--no-figures")
    assert "Doubt" in done.stdout, done.stderr
    (site / "lab.py").write_text(LAB.replace("1 - c.mean()", "c.nothing"))
    done = command(report.main, "run", "--no-figures")
    assert done.returncode == 2 and "metric 'doubt' failed: AttributeError" in done.stderr
    (site / "lab.py").write_text("import nowhere\n")
    done = command(report.main, "run")
    assert "plugin 'lab' of the installed package lab cannot be imported" in done.stderr


TRAINER_AGAIN = """
from promptcal.trainers.registry import TRAINER_REGISTRY
@TRAINER_REGISTRY.register()
class Soc: pass
"""
METRIC_AGAIN = """
from promptcal.trainers.report.metrics import METRICS, register_metric
register_metric("ece", METRICS["ece"])
"""
BACKBONES_AGAIN = """
from promptcal.trainers.vlm.loading import register_backbones
register_backbones("hf", __name__)
"""


@pytest.mark.parametrize(("name", "content", "message"), [
    ("absent", None, "plugin 'absent' is not found: there is no module 'absent' in .* or among the installed"),
    ("lab/mine.py", None, "is not a module's name: write it as in Python's import, such as lab.hinge"),
    ("needs", "import no_torch", r"No module named 'no_torch' \(.*needs.py, line 1\)"),
    ("stops", "import sys\nsys.exit(3)", r"SystemExit: 3 \(.*stops.py, line 2\)"),
    ("wrong", "def f(:", "cannot be imported: SyntaxError: invalid syntax"),
    ("takes", TRAINER_AGAIN, "'Soc' is registered twice: in promptcal.trainers.soc and in takes"),
    ("again", METRIC_AGAIN, "metric 'ece' is registered twice"),
    ("loads", BACKBONES_AGAIN, "backbones 'hf:' are registered twice"),
])
def test_a_plugin_that_cannot_be_used_gets_one_line(name, content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PROMPTCAL_PLUGINS", "")
    if content is not None:
        (tmp_path / f"{name}.py").write_text(content)
    with pytest.raises(ConfigError, match=message) as error:
        load_plugins([name])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("args", "message"), [
    (("family", "--add", "SoCk"), "no method or data set 'SoCk'. Did you mean 'SoC'"),
    (("theory", "--add", "SoC"), "theory has no runs to add to"),
    (("family", "--demo", "--add", "dtd"), "--add dtd: --demo takes methods only"),
    (("nowhere.yaml",), "there is no experiment file nowhere.yaml"),
])
def test_what_cannot_be_added_gets_one_line(args, message):
    done = command(reproduce.main, *args, "--dry-run")
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_added_names_join_the_groups_that_sweep_no_other_methods_settings(tmp_path):
    experiment = read_experiment("lambda")
    joined = add(experiment, ["r-tpt", "OxfordPets"])
    assert [group.methods for group in joined.runs] == [["TPT", "CTPT", "OTPT", "RTPT"], ["SoC"]]
    assert joined.datasets[-1] == "oxford_pets" and joined.demo == experiment.demo
    assert add(read_experiment("normalisation"), ["TPT"]).runs[-1].methods == ["TPT"]
    assert "RTPT" in add(read_experiment("two_steps"), ["RTPT"]).runs[0].methods
    (tmp_path / "table1.yaml").write_text("title: x")
    with pytest.raises(ConfigError, match="rename the file"):
        experiment_file(str(tmp_path / "table1.yaml"))


def test_a_data_set_of_a_plugin_is_found_in_any_spelling(repository):
    plugin = repository / "birds.py"
    plugin.write_text(re.sub(r"class \w+\(", "class GardenBirds(", plugin.read_text()))
    for name in ("birds", "garden_birds"):
        done = command(train.main, "--plugin", "birds", "--trainer", "ZeroShot", "--dataset-config-file", name,
                       "--no-train", *SETTINGS)
        assert done.returncode == 0, done.stderr
