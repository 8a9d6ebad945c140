"""One command for all tools, and the wheel: installed alone, without a checkout, it does all that a checkout does."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from conftest import PROJECT
from promptcal.datasets.utils.errors import UnknownNameError
from promptcal.tools.command import commands, main

WANTED = {
    "train", "predict", "report", "reproduce", "download", "check-data", "convert-prompt", "benchmark", "doctor",
    "demo",
}


def test_every_tool_is_a_command(capsys: pytest.CaptureFixture):
    assert set(commands()) >= WANTED and "train-small-clip" not in commands()
    assert main([]) == 2
    out = capsys.readouterr().out
    for name, what in commands().items():
        assert what and f"\n  {name}" in out and what in out


@pytest.mark.parametrize("name", sorted(WANTED - {"benchmark", "demo"}))
def test_its_help_names_the_command(name: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["promptcal"])
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0 and f"usage: promptcal {name}" in capsys.readouterr().out


@pytest.mark.parametrize(("given", "meant"), [("trian", "train"), ("check_dat", "check-data"), ("zzz", "")])
def test_an_unknown_command_gets_the_nearest(given: str, meant: str):
    with pytest.raises(UnknownNameError, match=f"unknown command '{given}'") as error:
        main([given])
    assert not meant or f"Did you mean '{meant}'?" in str(error.value)


def test_scripts_import_the_project_and_not_a_folder_beside_them():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import promptcal.datasets as found; print(found.__file__)"
    done = subprocess.run([sys.executable, "-c", code, PROJECT / "tools"], capture_output=True, text=True)
    assert Path(done.stdout.strip()).samefile(PROJECT / "datasets" / "__init__.py"), done.stderr


@pytest.mark.slow
def test_a_wheel_installed_alone_does_everything(tmp_path: Path, image_folder: Path):
    source = tmp_path / "source"
    shutil.copytree(PROJECT, source, ignore=shutil.ignore_patterns(".git", ".venv", "output", "*.egg-info", "build"))
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}

    def run(*command: object) -> str:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, cwd=tmp_path, env=env)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path, source)
    (wheel,) = tmp_path.glob("promptcal-*.whl")
    shutil.rmtree(source)

    # A fresh environment that borrows what is installed here, but not the checkout that is.
    fresh = tmp_path / "fresh"
    venv.create(fresh, symlinks=True)
    python = fresh / "bin" / "python"
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (own / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    run(*pip, "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    promptcal = fresh / "bin" / "promptcal"

    where = "import promptcal, promptcal.trainers; print(promptcal.__version__, promptcal.trainers.__file__)"
    version, place = run(python, "-c", where).split()
    assert Path(place).is_relative_to(fresh) and run(promptcal, "--version") == f"promptcal {version}\n"
    assert "usage: promptcal train" in run(promptcal, "train", "--help")
    modules = [f"promptcal.tools.{name.replace('-', '_')}" for name in WANTED]
    run(python, "-c", f"import {', '.join(modules)}, promptcal.trainers.dassl.keys")

    assert "SoC" in run(promptcal, "demo", "--images", 4, "--out", "demo")
    assert (tmp_path / "demo" / "report" / "report.html").is_file()
    table = run(python, "-m", "promptcal", "train", "--trainer", "SoC", "--dataset-config-file", "image_folder",
                "--root", image_folder, "--backbone", "small", "--output-dir", "run", "TTA.VIEWS=8", "TTA.SELECT=0.25")
    assert "12 test images of 4 classes" in table
    assert "report.html" in run(promptcal, "report", "run", "--no-figures")
    assert "table1" in run(promptcal, "reproduce", "list")
    run(promptcal, "check-data", "--root", tmp_path)
    oracles = "from promptcal.tools.speed.baseline import reference; " \
              "print(reference().__file__); print(reference('reference_views').__file__)"
    assert all(Path(file).is_relative_to(fresh) for file in run(python, "-c", oracles).splitlines())
