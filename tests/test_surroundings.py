"""Unusual environments: streams that are closed, full or cut off, locales, names, and odd files in
a run folder."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from promptcal.datasets.utils.cli import torchrun_variables
from promptcal.datasets.utils.errors import ConfigError, UserError
from promptcal.datasets.utils.files import make_folder
from promptcal.trainers import build_cfg
from promptcal.trainers.config.settings import run_path

from common import make_image_folder, run_tool
from folders import results_of

TOOL = """
import logging, sys
from pathlib import Path
from promptcal.datasets.utils.cli import log_to_terminal, run_tool
from tqdm import tqdm

def main():
    log_to_terminal()
    for number in tqdm(range(1000)):
        logging.getLogger("promptcal").info("line %d of é", number)
    print("a table", end="", flush=True)
    Path(sys.argv[1]).mkdir()

run_tool(main)
"""


@pytest.mark.parametrize(("line", "status", "said"), [
    ("$COMMAND >/dev/full", 2, "cannot write the output: No space left on device"),
    ("$COMMAND 2>/dev/full", 0, ""),
    ("$COMMAND >&-", 0, ""),
    ("$COMMAND 2>&-", 0, ""),
    ("set -o pipefail; $COMMAND | head -1", 0, ""),
    ("LC_ALL=POSIX $COMMAND", 0, ""),
])
def test_a_command_finishes_its_work_without_a_stream(line, status, said, tmp_path):
    """It is closed, full, a pipe that ends, or in an ASCII locale; the folder's name is in
    UTF-8."""
    (tmp_path / "tool.py").write_text(TOOL, encoding="utf-8")
    command = f"{sys.executable} {tmp_path / 'tool.py'} {tmp_path / 'ordner-für-é'}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "COMMAND": command})
    assert done.returncode == status and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    assert (tmp_path / "ordner-für-é").is_dir()


def test_log_lines_appear_once_beside_libraries_that_log_to_the_root():
    """As open_clip does. Their warnings are shown."""
    code = (
        "import logging\nfrom promptcal.datasets.utils.cli import log_to_terminal\nlog_to_terminal()\n"
        "logging.info('their line')\nlogging.getLogger('promptcal.x').warning('our line')\n"
        "logging.getLogger('open_clip').warning('their warning')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(f"{done.stdout}\n{done.stderr}".split("\n")) == ["", "", "our line", "their warning"]


STEP = {
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[03-04,09],cpu1", "SLURM_PROCID": "2", "SLURM_LOCALID": "0",
    "SLURM_JOB_ID": "100", "SLURM_STEP_ID": "1",
}


@pytest.mark.parametrize(("env", "expected"), [
    ({}, ""),
    ({"RANK": "3", **STEP}, ""),
    ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, ""),
    ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, ""),  # sbatch without srun
    (STEP, "2 0 4 gpu03 20701"),
    ({**STEP, "SLURM_STEP_NUM_NODES": "1", "MASTER_PORT": "5"}, "2 0 4 127.0.0.1 5"),
])
def test_sruns_variables_under_torchruns_names(env, expected):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert torchrun_variables(env) == dict(zip(names, expected.split(), strict=False))


def test_a_folder_that_is_no_text():
    with pytest.raises(UserError, match="not plain UTF-8"):
        make_folder(Path("/tmp") / os.fsdecode(b"\xff"))


@pytest.mark.posix
def test_no_home(train, tmp_path, monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(uid)))
    done = train("ZeroShot", "CACHE.DIR", "~/cache")
    assert done.returncode == 2 and "no home folder: write it out, or set HOME" in done.stderr


@pytest.mark.parametrize("tag", ["../..", "/tmp/x", "a/../../b", "a\nb", "\x1b[2J"])
def test_a_tag_stays_in_its_folder(tag):
    cfg = build_cfg("ZeroShot", "configs/datasets/landcover.yaml", opts=["TAG", tag])
    with pytest.raises(ConfigError, match="it must be a name below output"):
        run_path(cfg)
    cfg = build_cfg("ZeroShot", "configs/datasets/landcover.yaml", opts=["TAG", "a b"])
    assert run_path(cfg).parts[-2] == "a b"


def test_a_log_that_is_a_folder(train, tmp_path):
    (tmp_path / "run" / "log.txt").mkdir(parents=True)
    done = train("ZeroShot")
    assert done.returncode == 2 and "it holds log.txt" in done.stderr and "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def finished(clip_file, tmp_path_factory) -> list[object]:
    """The arguments of a run that is done."""
    root = tmp_path_factory.mktemp("finished")
    words = [
        "train.py", "--trainer", "ZeroShot", "--dataset-config-file", "image_folder",
        "--root", make_image_folder(root / "images"), "--backbone", clip_file,
        "--output-dir", root / "run",
    ]
    assert run_tool(*words).returncode == 0
    return words


@pytest.mark.posix
@pytest.mark.parametrize("kind", ["pipe", "endless"])
@pytest.mark.parametrize("name", ["results.json", "config.yaml", "predictions.npz", "lock", "log.txt", "record.json"])
def test_pipes_and_devices_under_a_runs_names(finished, tmp_path, name, kind):
    """They would be waited for, or fill the memory."""
    run = tmp_path / "run"
    shutil.copytree(finished[-1], run)
    (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to("/dev/zero")
    for done in (run_tool("report.py", run, "--out", tmp_path / "report", "--no-figures"),
                 run_tool(*finished[:-1], run)):
        assert "Traceback" not in done.stderr, done
        assert (done.returncode == 0 or done.stderr.startswith("error: ")), done


@pytest.mark.posix
def test_a_list_of_names_that_is_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "names.txt")
    done = run_tool("predict.py", "a.png", "--classes", tmp_path / "names.txt", "--backbone", "small")
    assert done.returncode == 2 and "names.txt: Not a regular file" in done.stderr


@pytest.mark.parametrize("content", ['{"trainer": "SoC", "accuracy": 99', '{"complete": true}',
                                     '{"complete": true, "fingerprint": 3, "bins": 20}'])
def test_results_that_no_run_wrote_are_left_alone(train, tmp_path, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text(content)
    done = train("ZeroShot")
    assert done.returncode == 2 and "--output-dir" in done.stderr
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["results.json"]
    assert (tmp_path / "run" / "results.json").read_text() == content


def test_a_run_gives_torchs_threads_back(train, tmp_path):
    torch.set_num_threads(2)
    try:
        assert train("ZeroShot").returncode == 0 and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert results_of(tmp_path / "run")["threads"] == 1


@pytest.mark.parametrize("flag", [
    "--output-dir", "--backbone", "--config-file", "--dataset-config-file", "--model-dir",
    "--resume", "MODEL.INIT_WEIGHTS", "PROMPT.DESCRIPTIONS", "DATASET.IMAGE_LIST",
])
@pytest.mark.parametrize("path", ["x" * 300, "folder/" * 700], ids=["name", "path"])
def test_a_path_that_is_too_long_gets_one_line(flag, path):
    done = run_tool(
        "train.py", "--trainer", "TDA", "--dataset-config-file", "landcover",
        "--backbone", "small", "TEST.LIMIT", 2, flag, path,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "error: " in done.stderr


@pytest.mark.parametrize("inside", ["run", "run/cache"])
def test_a_cache_in_the_folder_of_the_run_is_refused(train, tmp_path, inside):
    done = train("ZeroShot", "CACHE.DIR", tmp_path / inside)
    assert done.returncode == 2
    assert "is inside the folder of the run" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["--output-dir", "CACHE.DIR"])
def test_a_folder_that_the_next_run_would_take_for_a_class_is_refused(train, image_folder, name):
    done = train("ZeroShot", name, image_folder / "output")
    assert done.returncode == 2 and "where every folder is a class of images" in done.stderr
    assert done.stderr.count("\n") == 1 and not (image_folder / "output").exists()
