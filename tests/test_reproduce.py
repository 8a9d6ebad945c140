"""The command that makes tables and figures: from plan to page, through failures, in one and in
several processes."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image
from promptcal.datasets import build_dataset
from promptcal.datasets.utils.lock import FolderLock
from promptcal.trainers.experiments.definition import FOLDER, read_experiment
from promptcal.trainers.experiments.outcome import DEMO, write_outcome
from promptcal.trainers.experiments.plan import Workspace, expand, select
from promptcal.trainers.experiments.plan_table import estimate
from promptcal.trainers.experiments.planned_run import PlannedRun, work_groups
from promptcal.trainers.experiments.run import run_group, run_groups
from promptcal.trainers.experiments.studies import CAVEAT

from common import PROJECT, Done, openai_state, random_clip, run_tool
from data_roots import build
from folders import names
from made_runs import row_labels
from processes import Process

# Few tiles and views: the machinery is the same.
FEW_VIEWS = ("TTA.VIEWS", 8, "TTA.SELECT", 0.5, "DATALOADER.NUM_WORKERS", 0)
QUICK = ("--demo", "--limit", 12, "--set", *FEW_VIEWS)


def times_of(root: Path, name: str) -> dict[Path, int]:
    """When the files of this name were written."""
    return {path: path.stat().st_mtime_ns for path in root.rglob(name)}


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Path, Done]:
    out = tmp_path_factory.mktemp("demo")
    return out, run_tool("reproduce.py", "sals", "--output-dir", out, *QUICK)


def test_a_demo_experiment_from_end_to_end(demo):
    out, process = demo
    assert process.returncode == 0, process.stderr
    assert "6 runs, 0 finished, 6 to do." in process.stdout
    assert "6 runs done now; 1 of 1 outcome written" in process.stdout
    folder = out / "demo" / "experiments" / "sals"
    assert names(folder) == ["figures", "report.html", "tables.csv", "tables.md", "tables.tex", "tables_notes.tex"]
    assert names(folder / "figures") == ["figures.json", "sals.pdf", "sals.png"]
    text = (folder / "tables.md").read_text()
    page = (folder / "report.html").read_text()
    assert "small CLIP, SELECT 0.5, 8 views" in text  # what all rows share stands once
    for row in ("C-TPT", "O-TPT", "SoC"):
        assert text.count(f"| {row} |") == 3  # accuracy, ECE, ECE + SaLS
    assert "LandCover | LandCoverShift | Average" in text
    assert DEMO.split(":")[0] in text and DEMO.replace("'", "&#39;") in page
    assert "(published: " not in text + page
    assert "sals/report.html" in (out / "demo" / "experiments" / "index.html").read_text()
    # One set of view features for each data set, whatever the number of methods.
    assert len(list((out / "demo" / "cache").glob("views-*"))) == 2


def test_a_second_time_computes_nothing(demo):
    out, _ = demo
    before = times_of(out, "results.json")
    process = run_tool("reproduce.py", "sals", "--output-dir", out, *QUICK, "--jobs", 2)
    assert process.returncode == 0, process.stderr
    assert "6 runs, 6 finished, 0 to do." in process.stdout and "0 runs done now" in process.stdout
    assert times_of(out, "results.json") == before


def test_a_failed_run_does_not_stop_the_others_and_is_reported_at_the_end(tmp_path):
    obstacle = tmp_path / "demo" / "LandCover" / "OTPT"
    obstacle.parent.mkdir(parents=True)
    obstacle.write_text("a file where a folder belongs")
    command = ("reproduce.py", "class_pairs", "--output-dir", tmp_path, *QUICK)
    process = run_tool(*command)
    assert process.returncode == 1
    assert "1 run done now; 1 of 1 outcome written" in process.stdout
    failure = r"^failed: OTPT on landcover, small, seed 0: cannot make folder"
    assert re.search(failure, process.stdout, re.M)
    page = (tmp_path / "demo" / "experiments" / "class_pairs" / "report.html").read_text()
    assert "Missing: OTPT on landcover" in page
    # The same command computes only what is left.
    obstacle.unlink()
    process = run_tool(*command)
    assert process.returncode == 0, process.stdout
    assert "2 runs, 1 finished, 1 to do." in process.stdout


# --- several processes


def working_on(folder: Path) -> int:
    """Waits for the process that computes a run below `folder`, and returns it."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for lock in folder.rglob("lock"):
            with suppress(OSError, ValueError):  # being written or removed
                return json.loads(lock.read_text())["pid"]
        time.sleep(0.02)
    raise AssertionError("no run has started")


@pytest.mark.slow
def test_jobs_survive_a_killed_worker_and_give_the_tables_of_one_process(demo, tmp_path):
    args = ("reproduce.py", "sals", "--output-dir", tmp_path, *QUICK)
    process = Process(*args, "--jobs", 2, "--only", "SoC")
    os.kill(working_on(tmp_path / "demo" / "LandCover"), signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 1
    failed = re.findall(r"^failed: SoC on (\w+), .* its process died", out, re.M)
    assert failed == ["landcover"]  # its group only
    assert len(list((tmp_path / "demo" / "LandCoverShift").rglob("results.json"))) == 1
    done = run_tool(*args)
    assert done.returncode == 0 and "5 runs done now" in done.stdout, done.stderr
    assert len(list((tmp_path / "demo" / "cache").glob("views-*"))) == 2
    table = Path("demo", "experiments", "sals", "tables.md")
    assert (tmp_path / table).read_text() == (demo[0] / table).read_text()


@pytest.mark.slow
def test_workers_end_with_the_command_and_the_same_command_continues(tmp_path):
    args = ("reproduce.py", "class_pairs", "--output-dir", tmp_path, *QUICK, "--only", "SoC")
    for number, status in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        process = Process(*args, "--jobs", 2)
        worker = working_on(tmp_path)
        os.kill(process.pid, number)
        assert process.wait() == status
        if status > 0:
            assert "the same command continues" in process.communicate()[1]
            assert not list(tmp_path.rglob("lock"))
        until = time.monotonic() + 30
        while Path(f"/proc/{worker}").exists():
            assert time.monotonic() < until, "the worker goes on without its parent"
            time.sleep(0.1)
    assert run_tool(*args).returncode == 0


RECORDER = """
import importlib.abc, os, pathlib, sys, time

class Recorder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.meta_path.remove(self)
            folder = pathlib.Path(os.environ["RECORDED"])
            (folder / str(os.getpid())).write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "unset"))
            until = time.monotonic() + 60
            while len(list(folder.iterdir())) < 2 and time.monotonic() < until:  # the other worker
                time.sleep(0.02)
            os._exit(0)

sys.meta_path.insert(0, Recorder())
"""


@pytest.mark.slow
def test_each_worker_sees_its_gpu_when_it_first_imports_torch(tmp_path, monkeypatch):
    """Two workers, which overlap in time, and a machine with two GPUs as far as this process
    knows. They end where they would import torch."""
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    (tmp_path / "sitecustomize.py").write_text(RECORDER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{PROJECT / '.package'}")
    monkeypatch.setenv("RECORDED", str(recorded))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 9")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    opts = ("DEVICE", "cpu", "DATALOADER.NUM_WORKERS", 0)
    workspace = Workspace(output=tmp_path / "output", demo=True, limit=2, opts=opts)
    runs = select(expand(read_experiment("table1"), workspace), ["ZeroShot"])
    groups = work_groups(runs)
    assert len(groups) == 2
    failed = run_groups(groups, jobs=2)
    assert sorted(path.read_text() for path in recorded.iterdir()) == ["4", "9"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4, 9"
    assert failed.keys() == set(runs)


def test_a_run_that_another_process_computes_counts_as_failed(tmp_path):
    workspace = Workspace(output=tmp_path, demo=True, limit=24)
    run = expand(read_experiment("class_pairs"), workspace)[0]
    run.folder.mkdir(parents=True)
    with FolderLock(run.folder).held():
        assert f"in use by process {os.getpid()}" in run_group([run])[run]
    assert not list(run.folder.iterdir())


# --- finished runs of something else


@dataclass
class Laboratory:
    """The experiment mine.yaml with the tiny CLIP on a miniature of EuroSAT."""

    folder: Path
    weights: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def reproduce(self, *args: object, out: str = "output", root: str = "root") -> Done:
        return run_tool(
            "reproduce.py", self.folder / "mine.yaml", "--root", self.folder / root,
            "--backbone", self.weights, "--output-dir", self.folder / out, *args,
            "--set", *FEW_VIEWS)

    def tables(self, out: str = "output") -> str:
        return (self.folder / out / "experiments" / "mine" / "tables.md").read_text()

    def failures(self, *args: object) -> str:
        """The lines of a refused command on what has failed."""
        done = self.reproduce(*args)
        assert done.returncode == 1, done
        return "\n".join(line for line in done.stdout.splitlines() if line.startswith("failed: "))

    def change_labels(self) -> None:
        file = next(self.root.rglob("split_zhou_EuroSAT.json"))
        split = json.loads(file.read_text())
        for row in split["test"]:
            row[1:] = split["test"][0][1:]
        file.write_text(json.dumps(split))

    def change_images(self, split: str = "test") -> None:
        for number, item in enumerate(getattr(build_dataset("EuroSAT", self.root), split)):
            Image.new("RGB", (12, 10), (255, number, 0)).save(item.impath)


@pytest.fixture
def laboratory(tmp_path, clip_file) -> Laboratory:
    weights = tmp_path / "tiny.pt"
    shutil.copy(clip_file, weights)
    write_experiment(tmp_path / "mine.yaml", "eurosat", {"methods": ["ZeroShot", "TPT"]})
    build("EuroSAT", tmp_path / "root")
    return Laboratory(tmp_path, weights)


def write_experiment(path: Path, dataset: str, group: dict, coop: dict | None = None) -> None:
    content = {"title": "t", "layout": "results", "backbones": ["small"], "datasets": [dataset], "runs": [group]}
    path.write_text(json.dumps({**content, "coop": coop or {}}))


@pytest.mark.parametrize(("change", "reason"), [
    (Laboratory.change_labels, "was made with other data: 18 labels differ"),
    (Laboratory.change_images, "was made with other data: 20 images changed"),
])
def test_finished_runs_of_other_data_are_never_shown(laboratory, change, reason):
    shutil.copytree(laboratory.root, laboratory.folder / "copy")
    assert laboratory.reproduce().returncode == 0
    first = laboratory.tables()
    # The same images elsewhere are the same data.
    again = laboratory.reproduce(root="copy")
    assert again.returncode == 0 and "2 runs, 2 finished, 0 to do." in again.stdout, again

    change(laboratory)
    dry = laboratory.reproduce("--dry-run")
    assert "2 runs, 0 finished, 2 to do." in dry.stdout and dry.stdout.count(reason) == 2
    refused = laboratory.reproduce()
    assert refused.returncode == 1 and "0 runs done now; 0 of 1 outcome" in refused.stdout
    assert len(re.findall(rf"^failed: \w+ on eurosat.*{reason}.*--overwrite", refused.stdout, re.M)) == 2
    assert "tables of an earlier call are still there" in refused.stdout
    assert laboratory.tables() == first
    index = laboratory.folder / "output" / "experiments" / "index.html"
    assert "mine/report.html" not in index.read_text(encoding="utf-8")
    assert "2 runs, 2 finished" in laboratory.reproduce(root="copy").stdout

    assert laboratory.reproduce(out="fresh").returncode == 0
    done = laboratory.reproduce("--overwrite")
    assert done.returncode == 0 and "2 runs done now; 1 of 1 outcome written" in done.stdout, done
    assert laboratory.tables() == laboratory.tables("fresh") != first
    before = times_of(laboratory.folder / "output", "predictions.npz")
    done = laboratory.reproduce("--overwrite")
    assert "2 runs, 2 finished, 0 to do." in done.stdout  # it overwrites other runs only
    assert times_of(laboratory.folder / "output", "predictions.npz") == before


def test_finished_runs_of_other_weights_or_without_their_data_are_never_shown(laboratory):
    assert laboratory.reproduce().returncode == 0
    weights = laboratory.weights.read_bytes()
    torch.save(openai_state(random_clip(seed=1)), laboratory.weights)
    assert laboratory.failures().count("was made with other weights: ") == 2
    laboratory.weights.write_bytes(weights)
    shutil.rmtree(laboratory.root / "eurosat")
    assert laboratory.failures().count("cannot be compared with the planned one: ") == 2


def test_an_edited_file_of_the_same_size_and_time_is_named(laboratory):
    assert laboratory.reproduce().returncode == 0
    for name in ("predictions.npz", "results.json", "config.yaml"):
        file = next(laboratory.folder.glob(f"output/*/TPT/*/*/seed0/{name}"))
        status = file.stat()
        content = file.read_bytes()
        edited = content[:-1] + b"?"
        if b"TPT" in content:
            edited = content.replace(b"TPT", b"TDA", 1)
        for written in (edited, content):
            file.write_bytes(written)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
            if written == edited:
                words = r"^failed: TPT on eurosat.* holds files that do not belong together"
                assert re.search(words, laboratory.failures(), re.M), name
    assert laboratory.reproduce().returncode == 0


def test_a_run_that_was_begun_with_other_settings_is_refused_or_started_again(laboratory):
    """It has no results yet, and its parts are of other views."""
    assert laboratory.reproduce().returncode == 0
    folder = next(laboratory.folder.glob("output/*/TPT/*/*/seed0"))
    record = json.loads((folder / "record.json").read_text())
    record["views"]["count"] = 64
    (folder / "record.json").write_text(json.dumps(record))
    (folder / "results.json").unlink()
    (folder / "parts").mkdir()
    (folder / "predictions.npz").rename(folder / "parts" / "0000000-0000019.npz")
    failure = r"^failed: TPT .*other settings \(TTA.VIEWS was 64, is 8\).*--overwrite"
    assert re.search(failure, laboratory.failures(), re.M)
    assert laboratory.reproduce("--overwrite").returncode == 0


# --- prompts that an experiment trains


def prompt_experiment(path: Path, dataset: str, epochs: int) -> None:
    coop = {"OPTIM.MAX_EPOCH": epochs, "TRAINER.COOP.FIXED_VIEWS": True, "TRAINER.COOP.N_CTX": 2}
    write_experiment(path, dataset, {"methods": ["TPT"], "shots": [1]}, coop)


def test_runs_from_a_prompt_that_is_trained_otherwise_are_computed_again(tmp_path):
    def reproduce(out: str) -> list[str]:
        done = run_tool("reproduce.py", tmp_path / "mine.yaml", "--output-dir", tmp_path / out,
                        "--limit", 12, "--set", *FEW_VIEWS)
        assert done.returncode == 0, done
        assert "2 runs done now" in done.stdout
        tables = (tmp_path / out / "experiments" / "mine" / "tables.md").read_text()
        return re.findall(r"\| (\d+\.\d+) ", tables)

    prompt_experiment(tmp_path / "mine.yaml", "landcover", 1)
    first = reproduce("output")
    prompt_experiment(tmp_path / "mine.yaml", "landcover", 20)
    second = reproduce("output")
    assert second == reproduce("fresh") != first


def test_runs_from_a_prompt_of_other_training_images(laboratory):
    """Its settings are the same. Without --overwrite all are refused by name."""
    def prompt_hashes(out: str) -> set[str]:
        hashes = set()
        for path in (laboratory.folder / out).rglob("record.json"):
            hashes.add(json.loads(path.read_text())["model"]["prompt"].get("hash", ""))
        return hashes

    prompt_experiment(laboratory.folder / "mine.yaml", "eurosat", 2)
    assert laboratory.reproduce().returncode == 0
    first = prompt_hashes("output")
    laboratory.change_images("train")
    failures = laboratory.failures()
    assert re.search(r"^failed: CoOp .* other settings \(training images was .*--overwrite", failures, re.M)
    assert re.search(r"^failed: TPT .*: the prompt that it starts from could not be learnt", failures, re.M)
    assert prompt_hashes("output") == first
    assert laboratory.reproduce("--overwrite").returncode == 0
    assert laboratory.reproduce(out="fresh").returncode == 0
    assert prompt_hashes("output") == prompt_hashes("fresh") != first


# --- the command line


@pytest.mark.parametrize(("args", "ranks", "message"), [
    (["tabel1"], 1, "error: unknown experiment 'tabel1'. Did you mean 'table1'?"),
    (["table1", "--dry-run", "--set", "TTA.STEP", "2"], 1, "error: unknown key 'TTA.STEP' in the command."),
    (["table1", "--jobs", "0"], 1, "error: --jobs is 0; it must be 1 or more"),
    (["table1", "--demo"], 2, "error: reproduce starts its own processes: use --jobs N instead of torchrun"),
])
def test_mistakes_in_the_command_get_one_line(tmp_path, args, ranks, message):
    process = run_tool("reproduce.py", *args, "--output-dir", tmp_path, WORLD_SIZE=str(ranks))
    assert process.returncode == 2
    assert process.stderr.startswith(message) and process.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_list_needs_no_torch_and_less_than_a_cpu_second():
    code = ("import sys, time\nfrom promptcal.tools.reproduce import main\nassert main([]) == 0\n"
            "assert 'torch' not in sys.modules\nassert time.process_time() < 1")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "table1" in done.stdout and "Table 1" in done.stdout


@pytest.mark.slow
def test_theory_on_embedded_data_says_where_its_floor_holds(tmp_path):
    workspace = Workspace(output=tmp_path, demo=True, limit=6, opts=FEW_VIEWS)
    experiment = read_experiment("theory")
    tuned, first_order = write_outcome(experiment, workspace, [], {}, {}).tables
    assert row_labels(tuned) == ["before", "TPT", "C-TPT", "O-TPT", "SoC"]
    for table in (tuned, first_order):
        assert CAVEAT in table.notes and table.notes[0] == DEMO
    for row in first_order.blocks[0].rows:
        assert 0 <= row.entries[-1].value < 1  # percent, between first order and measurement
    before = times_of(workspace.outcome_dir("theory"), "*.npz")
    write_outcome(experiment, workspace, [], {}, {})
    assert len(before) == 4 and times_of(workspace.outcome_dir("theory"), "*.npz") == before


# --- the plan's time and disk


def test_a_plan_looks_at_the_root(tmp_path):
    """The images there count, not the published number. What is missing is named with the remedy."""
    build("EuroSAT", tmp_path)
    images = len(build_dataset("EuroSAT", tmp_path).test)
    done = run_tool("reproduce.py", "coop", "--dry-run", "--root", tmp_path, "--output-dir", tmp_path / "output",
                    "--only", "eurosat", "dtd", "TPT")
    assert done.returncode == 0, done.stderr
    assert f"Data in {tmp_path}: partial: eurosat; absent: dtd." in done.stdout
    assert re.search(r"^  dtd: .*download\.py", done.stdout, re.M)
    row = next(line for line in done.stdout.splitlines() if " eurosat " in line)
    assert f" {5 * images} " in row and "8,100" not in row


def test_view_features_are_stored_by_the_first_run_that_uses_them():
    plan = expand(read_experiment("table1"), Workspace())
    features = 1692 * 64 * 768 * 4  # bytes, on a CPU
    dtd = {run.method: run for run in plan if run.dataset == "dtd"}
    tpt = dtd["TPT"]
    costs = estimate(plan, set())
    assert [method for method, run in dtd.items() if costs[run].disk > features] == ["TPT"]
    costs = estimate(plan, {tpt})
    for method, run in dtd.items():
        assert run == tpt or costs[run].disk <= features, method
    plain, = estimate(select(plan, ["ZeroShot", "dtd"]), set()).values()
    assert features / 64 < plain.disk < features / 32  # the plain view


def test_times_of_finished_runs_of_the_same_kind(demo):
    """Also those of a pilot; other views are another kind."""
    out, _ = demo

    def plan(limit: int, views: int = 8) -> list[PlannedRun]:
        opts = ("TTA.VIEWS", views, *FEW_VIEWS[2:])
        return expand(read_experiment("sals"), Workspace(output=out, demo=True, limit=limit, opts=opts))

    assert [run for run in plan(limit=12) if not run.finished] == []
    runs = plan(limit=900)
    costs = estimate(runs, set())
    times = []
    for file in (out / "demo" / "LandCover").rglob("results.json"):
        times.append(json.loads(file.read_text())["seconds_per_image"])
    first, *others = [costs[run].seconds for run in runs if run.dataset == "landcover"]
    assert len(times) == 3 and first == pytest.approx(900 * max(times))  # it encodes the views
    assert others == pytest.approx([900 * min(times)] * 2)
    for cost in estimate(plan(limit=12, views=16), set()).values():
        assert cost.seconds is None


def test_a_dry_run_computes_nothing(demo, tmp_path):
    """The time is unknown until runs of the same kind are finished."""
    done = run_tool("reproduce.py", "sals", "--dry-run", "--output-dir", tmp_path, *QUICK, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Time unknown: 6 runs, because no run of the same kind is finished." in done.stdout
    words = "landcover (12 images) 13.0 to 72; landcover_shift (12 images) 13.0 to 72 points"
    assert words in done.stdout
    assert not list(tmp_path.iterdir())


def test_several_experiments_in_one_command(tmp_path):
    done = run_tool("reproduce.py", "table1", "sals", "--dry-run", "--output-dir", tmp_path, *QUICK)
    assert done.returncode == 0 and "10 runs" in done.stdout, done  # sals has six of table1's
    first = tmp_path / "mine.yaml"
    second = tmp_path / "other" / "mine.yaml"
    second.parent.mkdir()
    shutil.copy(FOLDER / "table1.yaml", first)
    shutil.copy(FOLDER / "ace.yaml", second)
    done = run_tool("reproduce.py", first, second, "--dry-run", *QUICK)
    assert done.returncode == 2 and "has the name of another experiment of this command" in done.stderr


def test_settings_that_no_run_uses_are_named(tmp_path):
    """With a setting that only some methods use nothing is said."""
    unused = run_tool(
        "reproduce.py", "sals", "--demo", "--dry-run", "--output-dir", tmp_path, "--set",
        "TTA.STEPS", 2, "TRAINER.SOC.LAMBDA", 3, "TRAINER.TDA.ALPHA", 3)
    assert "no effect" not in unused.stdout
    assert re.findall(r"^No run uses (.*)\.$", unused.stdout, re.M) == ["TRAINER.TDA.ALPHA"], unused
