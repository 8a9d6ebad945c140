"""The files of a run folder: complete or absent, and never those of another run."""
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from promptcal.datasets.utils.files import write_json
from promptcal.datasets.utils.lock import FolderLock
from promptcal.trainers.runs.run_dir import RunDir, read_predictions

from common import make_image_folder, run_tool
from folders import RUN_FILES, contents, interrupted_at, names, results_of
from records import make

# Small runs of 12 images in three parts.
PARTS = ("TEST.PART", 4, "TTA.VIEWS", 4, "TTA.SELECT", 0.5)
EVENTS = "events.out.tfevents.1.host"


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    """One for all tests, so that they can share finished runs."""
    return make_image_folder(tmp_path_factory.mktemp("shared") / "images")


@pytest.fixture(scope="module")
def start(image_folder, clip_file):
    """Runs a method in a folder."""
    def start(folder: Path, *words: object, method: str = "ZeroShot"):
        return run_tool(
            "train.py", "--trainer", method, "--dataset-config-file", "image_folder",
            "--root", image_folder, "--backbone", clip_file, "--output-dir", folder, *PARTS,
            "DATALOADER.NUM_WORKERS", 0, *words)
    return start


@pytest.fixture(scope="module")
def finish(start):
    """Runs a method to its end, and returns its logits."""
    def finish(folder: Path, *words: object, method: str = "ZeroShot") -> np.ndarray:
        done = start(folder, *words, method=method)
        assert done.returncode == 0, done.stderr
        return read_predictions(folder)["logits"]
    return finish


@pytest.fixture(scope="module")
def begin(start):
    """Makes a run that was interrupted after some of its three parts."""
    def begin(folder: Path, *words: object, method: str = "ZeroShot", parts: int = 2) -> None:
        with interrupted_at("parts/0*.npz" if parts else "config.yaml", parts or 1):
            assert start(folder, *words, method=method).returncode == 130
        assert len(list((folder / "parts").glob("0*.npz"))) == parts
    return begin


@pytest.fixture(scope="module")
def finished_runs(finish, tmp_path_factory) -> Path:
    """The folder of two runs that differ in their seed."""
    root = tmp_path_factory.mktemp("finished")
    for seed in (0, 1):
        finish(root / f"seed{seed}", "SEED", seed)
    return root


@pytest.fixture
def run(finished_runs, tmp_path) -> Path:
    """The folder of a finished run, which a test may change."""
    return shutil.copytree(finished_runs / "seed0", tmp_path / "run")


def write_files(folder: Path, files: list[str], text: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


# Parts

def test_any_flipped_byte_of_a_part_is_noticed_or_harmless(tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "index": np.array([4, 6]), "label": np.array([0, 1]),
        "logits": rng.normal(size=(2, 3)).astype(np.float32),
        "zero_shot_logits": rng.normal(size=(2, 3)).astype(np.float32),
        "flagged": np.array([False, True]), "seconds": np.array([0.5]), "adapt_seconds": np.array([0.1]),
        "peak_bytes": np.array([0]), "bad_index": np.array([5]), "bad_reason": np.array(["no image"]),
    }
    indices = [4, 5, 6]
    run_dir = RunDir(tmp_path, make())
    run_dir.write_part(indices, columns)
    (file,) = (tmp_path / "parts").glob("*.npz")
    content = file.read_bytes()
    noticed = 0
    for place in range(0, len(content), 17):
        for flip in (1, 255):
            file.write_bytes(content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :])
            read = run_dir.read_part(indices)
            noticed += read is None
            for name, column in (read or {}).items():
                assert np.array_equal(column, columns[name]) and column.dtype == columns[name].dtype, place
    assert noticed > len(content) // 17


@pytest.mark.parametrize("record", ["", "[1]", '{"seed": 0'])
def test_a_folder_whose_record_is_damaged_is_left_alone(begin, start, tmp_path, record):
    begin(tmp_path)
    (tmp_path / "record.json").write_text(record)
    before = contents(tmp_path)
    done = start(tmp_path)
    assert done.returncode == 2 and "not the folder of a run" in done.stderr
    assert contents(tmp_path) == before


@pytest.mark.parametrize("method", ["ZeroShot", "TDA"])
def test_parts_and_states_of_another_run_are_not_used(begin, finish, tmp_path, method):
    """Copied there from its folder, or left when record.json was exchanged."""
    words = ("PROMPT.CTX_INIT", "a")
    expected = finish(tmp_path / "whole", method=method)
    begin(tmp_path / "run", method=method)
    begin(tmp_path / "other", *words, method=method)
    shutil.rmtree(tmp_path / "run" / "parts")
    shutil.copytree(tmp_path / "other" / "parts", tmp_path / "run" / "parts")
    assert (tmp_path / "run" / "parts" / "state.npz").exists() == (method == "TDA")
    assert np.array_equal(finish(tmp_path / "run", method=method), expected)


def test_a_run_owns_its_folder_from_its_first_part_on(start, begin, finish, tmp_path):
    continued = tmp_path / "continued"
    begin(continued)
    done = start(continued)
    assert done.returncode == 0 and "computed again" not in done.stdout + done.stderr
    run = tmp_path / "run"
    begin(run, "SEED", 1)
    done = start(run, "SEED", 2)
    assert done.returncode == 2 and "(SEED was 1, is 2). Use TAG" in done.stderr
    finish(run, "SEED", 2, "--overwrite")
    assert results_of(run)["seed"] == 2


@pytest.mark.parametrize("parts", [0, 2])
def test_a_run_that_starts_again_has_the_defaults_that_it_began_with(begin, tmp_path, parts):
    """--resume does not know those of a user's own yaml of a data set."""
    yaml = tmp_path / "mine.yaml"
    yaml.write_text("DATASET: {NAME: ImageFolder}\nOPTIM: {LR: 0.01}\n")
    run = tmp_path / "run"
    begin(run, "--dataset-config-file", yaml, "TTA.STEPS", 2, method="TPT", parts=parts)
    yaml.unlink()
    done = run_tool("train.py", "--resume", run)
    assert done.returncode == 0, done.stderr
    changed = results_of(run)["record"]["changed"]
    assert changed.pop("TTA.STEPS") == [1, 2] and changed.keys() == {"TTA.VIEWS", "TTA.SELECT"}


# Folders of others

@pytest.mark.parametrize("files", [
    ["log.txt", "config.yaml", "thesis.tex"],
    ["chapters/thesis.tex"],
    [".git/config"],
    [".bashrc"],
    ["parts/piston.step"],
    ["parts/0000000-0000063.npz", "parts/piston.step"],
    ["tensorboard/notes"],
    ["prompt_learner/mine.py"],
    ["prompt_learner/model.pth.tar-50"],
    ["prompt_learner/model.pth.tar-50", f"tensorboard/{EVENTS}"],
    [".thesis.tex.part"],
])
@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_somebody_elses_folder_is_refused_before_anything_is_written(start, tmp_path, files, overwrite):
    write_files(tmp_path, files, "mine")
    done = start(tmp_path, *overwrite)
    assert done.returncode == 2 and "not the folder of a run" in done.stderr
    assert "another --output-dir" in done.stderr
    assert contents(tmp_path) == dict.fromkeys(files, b"mine")


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_a_file_under_the_name_of_the_folder_is_refused(start, tmp_path, overwrite):
    (tmp_path / "run").write_text("mine")
    done = start(tmp_path / "run", *overwrite)
    assert done.returncode == 2 and "is not a folder: choose another --output-dir" in done.stderr
    assert (tmp_path / "run").read_text() == "mine"


def test_a_locked_folder_is_not_overwritten(start, run):
    with FolderLock(run).held():
        before = contents(run)
        done = start(run, "SEED", 1, "--overwrite")
        assert done.returncode == 2 and "is in use by process" in done.stderr
        assert contents(run) == before


def test_nothing_is_removed_where_no_record_says_that_a_run_was_there(finish, tmp_path):
    """Curves of TensorBoard may be of any program. What a refused run leaves, and files that a kill left
    half-written, do not bar the folder."""
    left = ["parts/listing.json", "parts/.0000000-0000063.npz.7-1f.part", ".record.json.7-1f.part"]
    write_files(tmp_path, [f"tensorboard/mine/{EVENTS}", *left], "mine")
    finish(tmp_path, "--overwrite")
    assert (tmp_path / "tensorboard" / "mine" / EVENTS).read_text() == "mine"
    assert names(tmp_path) == RUN_FILES


def test_files_that_a_run_has_not_written_stay_in_its_folders(finish, run):
    others = ["prompt_learner/notes.txt", "tensorboard/run/results.json", "parts/piston.step"]
    write_files(run, [*others, "prompt_learner/model.pth.tar-5", f"tensorboard/tuned/{EVENTS}"], "mine")
    finish(run, "SEED", 1, "--overwrite")
    left = {name for name, content in contents(run).items() if content == b"mine"}
    assert left == set(others)


def test_another_run_in_the_folder_has_its_own_curves(start, run):
    """The results of the first run were removed by hand."""
    events = run / "tensorboard" / "tuned" / EVENTS
    for seed, has_curves in ((0, True), (1, False)):
        (run / "results.json").unlink()
        write_files(run, [f"tensorboard/tuned/{EVENTS}"], "curves")
        done = start(run, "SEED", seed)
        assert done.returncode == 0, done.stderr
        assert events.exists() == has_curves


# Finished runs

@pytest.mark.parametrize("name", ["predictions.npz", "config.yaml", "record.json"])
@pytest.mark.parametrize("exchange", ["of another run", "removed"])
def test_files_of_a_folder_belong_together(start, run, finished_runs, name, exchange):
    (run / name).unlink()
    if exchange == "of another run":
        shutil.copy(finished_runs / "seed1" / name, run)
    before = contents(run)
    done = start(run)
    assert done.returncode == 2 and f"do not belong together: {name}" in done.stderr
    assert contents(run) == before


@pytest.mark.parametrize(("key", "value"), [
    ("accuracy", 99.9), ("flagged", 5), ("skipped", ["x"]), ("classnames", ["x"]),
])
def test_edited_results_are_refused(start, finish, run, key, value):
    path = run / "results.json"
    write_json(path, {**results_of(run), key: value})
    edited = path.read_bytes()
    done = start(run)
    assert done.returncode == 2 and "results.json was edited" in done.stderr
    assert path.read_bytes() == edited
    finish(run, "--overwrite")
    assert results_of(run)[key] != value


def test_a_kill_between_the_files_of_a_renamed_run_changes_nothing(start, run, monkeypatch):
    """A finished run under another name is only renamed."""
    predictions = (run / "predictions.npz").read_bytes()
    replace = os.replace

    def killed(source: Path, target: Path) -> None:
        if Path(target).name == "record.json":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        assert start(run, "DATASET.LABEL", "Actions").returncode == 130
    record = json.loads((run / "record.json").read_text())
    assert results_of(run)["record"]["names"]["dataset"] == "Actions" != record["names"]["dataset"]
    done = start(run, "DATASET.LABEL", "Actions")
    assert done.returncode == 0 and "nothing to compute" in done.stdout
    assert (run / "predictions.npz").read_bytes() == predictions


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_json(path, {"version": "old"})

    def cut_off(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", cut_off)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"version": "new"})
    assert json.loads(path.read_text()) == {"version": "old"}
    assert names(tmp_path) == ["results.json"]
