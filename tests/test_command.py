"""One command for all tools, and the release.

Installed alone, without a checkout, it does all that a checkout does.
"""
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import torch
from promptcal.datasets.download.install import COOP_PROMPTS
from promptcal.datasets.utils.errors import UnknownNameError
from promptcal.tools.command import COMMANDS, as_typed, command_of, main, module_of, summary
from safetensors.torch import load_file

from common import PROJECT
from dassl_files import save_as_dassl
from file_server import serving
from processes import Process


def test_every_tool_is_a_command(capsys):
    scripts = [file for file in (PROJECT / "tools").glob("*.py") if "def main(" in file.read_text()]
    assert {command_of(file.stem) for file in scripts} == {*COMMANDS, "command"}
    assert main([]) == 2
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert summary(name) and f"\n  {name}" in out and summary(name) in out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_scripts(name):
    process = Process(f"{module_of(name)}.py", "--help")
    out, complaint = process.communicate()
    assert process.returncode == 0 and f"usage: {module_of(name)}.py" in out, complaint


def test_an_unknown_command_gets_the_nearest():
    answers = {"trian": " Did you mean 'train'?", "check_dat": " Did you mean 'check-data'?", "zzz": ""}
    for given, answer in answers.items():
        with pytest.raises(UnknownNameError, match=re.escape(f"unknown command '{given}'.{answer} Known: ")):
            main([given])


def test_examples_are_shown_as_they_can_be_typed(capsys, monkeypatch):
    """An installed package has no folder `tools`."""
    monkeypatch.setattr(sys, "argv", ["promptcal"])
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    out = capsys.readouterr().out
    assert "\n    promptcal reproduce all --demo\n" in out
    assert "promptcal reproduce all --root DATA --jobs 8" in out
    typed = as_typed("torchrun --nproc-per-node 8 tools/train.py")
    assert typed == "torchrun --nproc-per-node 8 -m promptcal train"
    assert as_typed("bash tools/demo.sh") == "promptcal demo"


# Every command, one after the other in one process of the fresh environment.
EVERYTHING = """
import contextlib, io, json, sys
from promptcal.datasets.utils.cli import outcome
from promptcal.tools import command, far_device, measuring
from promptcal.trainers.report.figures import style

measuring.MIN_SECONDS = 1e-9
far_device.available = lambda: False  # test_benchmark.py counts launches
style.FigureCanvasPdf = style.FigureCanvasAgg  # embedding fonts takes longer than everything else
style.FigureCanvasPdf.print_pdf = lambda canvas, file, metadata: None
said = [command.__file__]
for argv in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = outcome(lambda: command.main(argv))
    said.append([status, out.getvalue()])
print(json.dumps(said))
"""


@pytest.mark.slow
def test_a_release_installed_alone_does_everything(tmp_path, image_folder, clip_model):
    env = dict(os.environ)
    env.pop("PYTHONPATH", None)
    env["OMP_NUM_THREADS"] = "1"

    def run(*command: object, cwd: Path = tmp_path) -> str:
        words = list(map(str, command))
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=cwd, env=env)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "output", "*.egg-info", "build")
    source = shutil.copytree(PROJECT, tmp_path / "source", symlinks=True, ignore=ignored)
    # As a release is made: the source distribution, and from it the wheel.
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    run(sys.executable, "-c", build, cwd=source)
    (sdist,) = tmp_path.glob("promptcal-*.tar.gz")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    options = ("--quiet", "--no-deps", "--no-index")
    run(*pip, "wheel", *options, "--no-build-isolation", "-w", tmp_path, sdist)
    (wheel,) = tmp_path.glob("promptcal-*.whl")
    shutil.rmtree(source)
    assert "promptcal/py.typed" in zipfile.ZipFile(wheel).namelist()

    # A fresh environment that borrows what is installed here, but not the checkout.
    fresh = tmp_path / "fresh"
    venv.create(fresh, symlinks=True)
    python = fresh / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(python, "-c", where).strip())
    (packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    run(*pip, "--python", python, "install", *options, wheel)
    for command in ([fresh / "bin" / "promptcal"], [python, "-m", "promptcal"]):
        assert run(*command, "--version") == f"promptcal {wheel.name.split('-')[1]}\n"

    prompt = save_as_dassl(tmp_path / "made", clip_model, ["cat", "dog"], torch.randn(4, 64))
    checkpoint = "seed1/prompt_learner/model.pth.tar-50"
    picture = next(image_folder.rglob("*.png"))
    pack = io.BytesIO()
    with zipfile.ZipFile(pack, "w") as zipped:
        zipped.write(prompt, checkpoint)
    (tmp_path / "everything.py").write_text(EVERYTHING)
    with serving() as server:
        server.files = {COOP_PROMPTS.name: pack.getvalue()}
        jobs = {  # arguments, and what the command prints
            "demo": (["--images", 2, "--out", "demo"], "SoC"),
            "train": (["--trainer", "SoC", "--dataset-config-file", "image_folder", "--root", image_folder,
                       "--backbone", "small", "--output-dir", "run", "TTA.VIEWS=8", "TTA.SELECT=0.25"], "SoC"),
            "report": (["run", "--no-figures"], "report.html"),
            "export": (["run", "--out", "shared"], "shared"),
            "predict": ([picture, "--classes", "forest", "river", "--backbone", "small"], "river"),
            "download": (["coop", "--root", "root", "--mirror", server.address], "coop: ready in"),
            "convert-prompt": ([f"root/coop/{checkpoint}", "prompt.safetensors"], ""),
            "new-method": (["WeightedViews", "--kind", "gradient-free"], "weighted_views"),
            "check-data": (["--root", "root"], "promptcal download"),
            "reproduce": (["table1", "--demo", "--dry-run"], "table1"),
            "doctor": (["--backbone", "small", "--classes", 10], "precision on cpu"),
            "benchmark": (["--quick", "--backbone", "tiny", "--classes", 5], "views with AugMix"),
        }
        listed = json.dumps([[name, *map(str, args)] for name, (args, _) in jobs.items()])
        place, *said = json.loads(run(python, "everything.py", listed).splitlines()[-1])
    # TensorBoard serves pages until it is stopped; test_tensorboard.py tries it.
    assert set(jobs) == set(COMMANDS) - {"tensorboard"} and Path(place).is_relative_to(fresh)
    for (name, (_, words)), (status, out) in zip(jobs.items(), said, strict=True):
        # The doctor's opinion of this machine does not matter.
        assert status == 0 or (name, status) == ("doctor", 1), out
        assert words in out and "tools/" not in out, out  # that folder does not exist there
    assert load_file(tmp_path / "prompt.safetensors")["ctx"].shape == (4, 64)
    assert (tmp_path / "demo" / "report" / "report.html").is_file()


def test_usage_errors_do_not_import_torch():
    code = ("import sys\nfrom promptcal.tools import benchmark, command, doctor\n"
            "for tool in (benchmark, doctor):\n"
            "    try: tool.main(['--classes', '1'])\n    except SystemExit: pass\n"
            "print('torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
