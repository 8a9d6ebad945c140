"""Odd surroundings: streams that are closed, full or cut off, locales, names, and what lies in a run's way."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from common import PROJECT, make_image_folder, run_tool
from processes import Process, user_environment
from promptcal.datasets.utils.errors import ConfigError, UserError, explaining_faults
from promptcal.datasets.utils.files import make_folder
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.config.fingerprint import run_path
from promptcal.trainers.runs.progress import Progress
from promptcal.trainers.runs.run_dir import RunDir


def train_words(run: Path, clip_file: Path, image_folder: Path) -> list[object]:
    return ["train.py", "--trainer", "ZeroShot", "--root", image_folder, "--dataset-config-file",
            "configs/datasets/image_folder.yaml", "--backbone", clip_file, "--output-dir", run,
            "DATALOADER.NUM_WORKERS", 0]


def typed(line: str, run: Path, clip_file: Path, image_folder: Path, **env: str) -> subprocess.CompletedProcess:
    """A line of shell in which `$TRAIN` is a complete command that takes further settings."""
    tool, *options = train_words(run, clip_file, image_folder)
    words = [sys.executable, PROJECT / "tools" / tool, *options]
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=300,
                          env={**user_environment(), "TRAIN": " ".join(map(str, words)), **env})


def assert_finished(run: Path) -> None:
    assert json.loads((run / "results.json").read_text())["complete"]
    assert {path.name for path in run.iterdir()} == {
        "config.yaml", "log.txt", "results.json", "predictions.npz", "tensorboard"}


@pytest.mark.slow
@pytest.mark.parametrize("line", ["$TRAIN 2>&-", "$TRAIN >&-"])
def test_the_work_is_finished_without_a_stream(line: str, tmp_path: Path, clip_file: Path, image_folder: Path):
    done = typed(line, tmp_path / "run", clip_file, image_folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    assert_finished(tmp_path / "run")


@pytest.mark.parametrize(("stream", "status", "said"), [
    ("out", 2, "cannot write the output: No space left on device"), ("err", 0, ""),
])
def test_the_work_is_finished_when_a_stream_is_full(
    stream: str, status: int, said: str, tmp_path: Path, clip_file: Path, image_folder: Path,
):
    with Path("/dev/full").open("wb") as full:
        process = Process(*train_words(tmp_path / "run", clip_file, image_folder), **{stream: full})
        _, complaint = process.communicate()
    assert process.returncode == status and said in complaint, complaint
    assert "Traceback" not in complaint and "Exception ignored" not in complaint, complaint
    assert_finished(tmp_path / "run")


def test_the_work_is_finished_when_its_reader_leaves(tmp_path: Path, clip_file: Path, image_folder: Path):
    """As `| head -1` does."""
    out, into = os.pipe()
    with os.fdopen(out) as reader, os.fdopen(into, "wb") as writer:
        process = Process(*train_words(tmp_path / "run", clip_file, image_folder), out=writer)
        writer.close()
        assert "12 of 12 test images" in reader.readline()
    _, complaint = process.communicate()
    assert process.returncode == 0, complaint
    assert "Traceback" not in complaint and "Exception ignored" not in complaint, complaint
    assert_finished(tmp_path / "run")


@pytest.mark.slow
def test_a_locale_without_letters(tmp_path: Path, clip_file: Path, image_folder: Path):
    """The path is given in UTF-8, but the locale knows ASCII only, and Python is told not to know better."""
    done = typed("$TRAIN", tmp_path / "ordner-für-é", clip_file, image_folder,
                 LC_ALL="POSIX", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0, done.stderr
    assert_finished(tmp_path / "ordner-für-é")


def test_a_folder_that_is_no_text():
    with pytest.raises(UserError, match="not plain UTF-8"):
        make_folder(Path("/tmp") / os.fsdecode(b"\xff"))


def test_no_home(train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(uid)))
    done = train("ZeroShot", "CACHE.DIR", "~/cache")
    assert done.returncode == 2 and "no home folder: write it out, or set HOME" in done.stderr
    with pytest.raises(RuntimeError, match="something else"), explaining_faults():
        raise RuntimeError("something else")


@pytest.mark.parametrize("tag", ["../..", "/tmp/x", "a/../../b", "a\nb", "\x1b[2J"])
def test_a_tag_stays_in_its_folder(tag: str):
    cfg = build_cfg("ZeroShot", "configs/datasets/landcover.yaml", opts=["TAG", tag])
    with pytest.raises(ConfigError, match="it must be a name below output"):
        run_path(cfg)
    assert run_path(build_cfg("ZeroShot", "configs/datasets/landcover.yaml", opts=["TAG", "a b"])).parts[-2] == "a b"


def test_a_log_that_is_a_folder(train, tmp_path: Path):
    (tmp_path / "run" / "log.txt").mkdir(parents=True)
    done = train("ZeroShot")
    assert done.returncode == 2 and "log.txt: Is a directory" in done.stderr and "Traceback" not in done.stderr


def test_a_folder_among_the_parts_is_not_ours(train, tmp_path: Path):
    (tmp_path / "run" / "parts" / "x").mkdir(parents=True)
    (tmp_path / "run" / "parts" / "x" / "mine").touch()
    for said in ("results in", "nothing to compute"):
        done = train("ZeroShot")
        assert done.returncode == 0 and said in done.stdout
    assert [path.name for path in (tmp_path / "run" / "parts").iterdir()] == ["x"]


@pytest.fixture(scope="module")
def finished(clip_file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The words of a command that is done."""
    root = tmp_path_factory.mktemp("finished")
    words = train_words(root / "run", clip_file, make_image_folder(root / "images"))
    assert run_tool(*words).returncode == 0
    return words


@pytest.mark.parametrize("kind", ["pipe", "endless"])
@pytest.mark.parametrize("name", ["results.json", "config.yaml", "predictions.npz", "lock", "log.txt",
                                  "parts/fingerprint.json"])
def test_pipes_and_devices_under_a_runs_names(finished: list[object], tmp_path: Path, name: str, kind: str):
    """They would be waited for, or fill the memory, for ever."""
    run = tmp_path / "run"
    shutil.copytree(finished[finished.index("--output-dir") + 1], run)
    (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to("/dev/zero")
    for done in (run_tool("report.py", run, "--out", tmp_path / "report", "--no-figures", "--bootstrap", 0),
                 run_tool(*finished, "--output-dir", run)):
        assert "Traceback" not in done.stderr and (done.returncode == 0 or done.stderr.startswith("error: ")), done


def test_a_list_of_names_that_is_a_pipe(tmp_path: Path):
    os.mkfifo(tmp_path / "names.txt")
    done = run_tool("predict.py", "a.png", "--classes", tmp_path / "names.txt", "--backbone", "small")
    assert done.returncode == 2 and "names.txt: Not a regular file" in done.stderr


def test_a_run_folder_removed_early(clip_file: Path, image_folder: Path, tmp_path: Path, monkeypatch):
    """Before the first part is there, nothing is lost with it: the run ends as whole as any."""
    run = tmp_path / "run"
    real = Progress.__enter__

    def removing(self):
        shutil.rmtree(run)
        return real(self)

    monkeypatch.setattr(Progress, "__enter__", removing)
    done = run_tool("train.py", "--trainer", "ZeroShot", "--dataset-config-file", "configs/datasets/image_folder.yaml",
                    "--root", image_folder, "--backbone", clip_file, "--output-dir", run)
    assert done.returncode == 0
    assert_finished(run)


def test_a_run_folder_removed_later(train, tmp_path: Path, monkeypatch):
    """Parts are lost: the run says so, and the same command makes them again."""
    real = RunDir.write_part
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "write_part", lambda *args: (real(*args), shutil.rmtree(tmp_path / "run" / "parts")))
        done = train("ZeroShot", "TEST.PART", 5)
    assert done.returncode == 2 and "is missing or damaged; the others are kept: run the command again" in done.stderr
    assert train("ZeroShot", "TEST.PART", 5).returncode == 0


@pytest.mark.parametrize("content", ['{"complete": true}', '{"complete": true, "fingerprint": 3, "bins": 20}'])
def test_a_result_of_nobody(train, tmp_path: Path, content: str):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text(content)
    done = train("ZeroShot")
    assert done.returncode == 0 and "is no result of a run" in done.stdout
    assert json.loads((tmp_path / "run" / "results.json").read_text())["trainer"] == "ZeroShot"


def test_a_plain_python_user_is_not_slowed_down(image_folder: Path, clip_file: Path, tmp_path: Path):
    """A run takes one of torch's threads and gives the others back."""
    import torch
    torch.set_num_threads(2)
    try:
        build_trainer(build_cfg("ZeroShot", "configs/datasets/image_folder.yaml", flags=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", tmp_path / "run",
            "DATALOADER.NUM_WORKERS", 0])).run()
        assert torch.get_num_threads() == 2
        assert json.loads((tmp_path / "run" / "results.json").read_text())["threads"] == 1
    finally:
        torch.set_num_threads(1)
