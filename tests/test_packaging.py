"""The package as it is built and installed, and what a release states about itself.

It is built from a clone without symbolic links and from the source distribution, and installed in
place.
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import promptcal
import pytest
import yaml

from common import PROJECT

PARTS = ("trainers", "datasets", "configs", "tools")
LINKS = [Path(".package", "promptcal", part) for part in PARTS]
PIP_OPTIONS = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation")

# Uses code, configs and weights.
USE = """
from promptcal.trainers import build_cfg, load_clip

load_clip("small")
assert build_cfg("SoC", dataset_config_file="eurosat").DATASET.NAME == "EuroSAT"
"""
# Prints where modules and data of the package lie. It needs no torch, which takes seconds.
LOCATE = """
import sys
from importlib.resources import files
import promptcal.tools.command
from promptcal.trainers import TRAINER_REGISTRY

assert "SoC" in list(TRAINER_REGISTRY)
for data in (
    files("promptcal.configs") / "datasets" / "eurosat.yaml",
    files("promptcal.trainers") / "vlm" / "small" / "small_clip.safetensors",
):
    assert data.is_file()
    print(data)
for name, module in sorted(sys.modules.items()):
    if name.split(".")[0] == "promptcal":
        print(module.__file__)
"""


def run(*command: object, cwd: Path, **variables: str) -> str:
    """Output of a command that must succeed, which does not see this checkout."""
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    environment.update(variables)
    words = list(map(str, command))
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone as on Windows: for a link, git has written a text file with the link's target."""
    ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "output", "__pycache__", "*.egg-info", "build")
    folder = shutil.copytree(PROJECT, tmp_path / "clone", symlinks=True, ignore=ignored)
    for link in LINKS:
        assert (folder / link).is_symlink()
        target = (folder / link).readlink().as_posix()
        (folder / link).unlink()
        (folder / link).write_text(target, encoding="utf-8")
    return folder


def expected_files() -> set[str]:
    """What the wheel must hold: all code, and the data that code reads."""
    files = {f"promptcal/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}
    patterns = {
        "trainers": ("**/*.py", "report/templates/*", "vlm/small/*.safetensors", "vlm/small/*.md"),
        "datasets": ("**/*.py",),
        "configs": ("**/*.py", "**/*.yaml", "**/*.json"),
        "tools": ("*.py",),
    }
    for part, part_patterns in patterns.items():
        for pattern in part_patterns:
            for file in (PROJECT / part).glob(pattern):
                files.add(f"promptcal/{file.relative_to(PROJECT).as_posix()}")
    return files


def build_wheel(source: Path, folder: Path) -> Path:
    pip_wheel = (sys.executable, "-m", "pip", "wheel", *PIP_OPTIONS)
    run(*pip_wheel, "--wheel-dir", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def files_of(wheel: Path) -> set[str]:
    names = zipfile.ZipFile(wheel).namelist()
    return {name for name in names if ".dist-info/" not in name}


@pytest.mark.posix
@pytest.mark.slow
def test_the_wheel_of_a_clone_without_links_is_whole_and_works(clone, tmp_path):
    wheel = build_wheel(clone, tmp_path)
    assert files_of(wheel) == expected_files()
    assert wheel.name == f"promptcal-{promptcal.__version__}-py3-none-any.whl"

    shutil.rmtree(clone)
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = USE + LOCATE
    modules = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(site)).splitlines()
    assert len(modules) > 20
    for module in modules:
        assert Path(module).is_relative_to(site), module


@pytest.mark.posix
def test_the_source_distribution_gives_the_same_wheel(clone, tmp_path):
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    run(sys.executable, "-c", code, cwd=clone)
    (sdist,) = tmp_path.glob("*.tar.gz")
    top = f"promptcal-{promptcal.__version__}"
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"{top}/") for name in archive.getnames()}
    # A packager can run the tests and read the documentation.
    tests = {"tests/test_packaging.py", "tests/README.md", "tools/test.sh"}
    assert {*tests, "CHANGELOG.md", "CITATION.cff"} <= names
    assert not [name for name in names if name.endswith(".pyc")]

    shutil.rmtree(clone)
    assert files_of(build_wheel(sdist, tmp_path)) == expected_files()


@pytest.mark.slow
@pytest.mark.parametrize("has_links", [True, False])
def test_an_editable_installation_uses_the_clone(clone, tmp_path, has_links):
    """Also where Python starts beside a folder called `promptcal`, such as another user's clone."""
    if has_links:
        for link in LINKS:
            (clone / link).unlink()
            (clone / link).symlink_to(Path("..", "..", link.name), target_is_directory=True)
    fresh = tmp_path / "fresh"
    venv.create(fresh, symlinks=True)
    python = fresh / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = run(python, "-c", code, cwd=tmp_path).strip()
    Path(packages, "borrowed.pth").write_text(sysconfig.get_path("purelib"))  # torch and the rest
    pip_install = (sys.executable, "-m", "pip", "--python", python, "install", *PIP_OPTIONS)
    run(*pip_install, "--ignore-installed", "--editable", clone, cwd=tmp_path)

    start = tmp_path / "start"
    (start / "promptcal").mkdir(parents=True)
    for module in run(python, "-c", LOCATE, cwd=start).splitlines():
        assert Path(module).is_relative_to(clone), module
    version = run(fresh / "bin" / "promptcal", "--version", cwd=start)
    assert version == f"promptcal {promptcal.__version__}\n"


@pytest.mark.posix
def test_a_script_runs_in_a_clone_without_links(clone):
    with (clone / "datasets" / "utils" / "cli.py").open("a", encoding="utf-8") as file:
        file.write('print("the clone")\n')
    assert "the clone" in run(sys.executable, "tools/train.py", "--help", cwd=clone)


@pytest.mark.parametrize("tool", ["train.py", "check_data.py"])
def test_a_script_outside_of_the_environment_gets_one_line(tool):
    """-S leaves out what is installed."""
    command = [sys.executable, "-S", PROJECT / "tools" / tool]
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    words = r"error: \S+ has no torch, .*yacs.*: activate the environment, or run pip install -e"
    assert re.match(words, done.stderr), done.stderr


def test_the_version_is_the_same_everywhere():
    """Its home is `.package/promptcal/__init__.py`."""
    metadata = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in metadata and metadata["dynamic"] == ["version"]
    version = promptcal.__version__
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version
    changes = (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", changes, re.MULTILINE)[0] == version
    assert f"version = {{{version}}}" in (PROJECT / "README.md").read_text(encoding="utf-8")


def test_metadata_and_citation_agree():
    metadata = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == metadata["license"]
    assert citation["authors"] == metadata["authors"]
    assert metadata["keywords"] and metadata["classifiers"]
    papers = {paper["url"] for paper in citation["references"]}
    assert set(metadata["urls"].values()) == papers and len(papers) == 5
    bibtex = (PROJECT / "trainers" / "README.md").read_text(encoding="utf-8")
    for paper in citation["references"]:
        assert f"title = {{{paper['title']}}}" in bibtex and f"year = {{{paper['year']}}}" in bibtex
        for author in paper["authors"]:
            assert author["family-names"].replace("è", "{\\`e}") in bibtex
