"""Methods that `new-method` writes run at once, and are the examples of the README."""
from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from promptcal.datasets.utils import cli
from promptcal.tools import new_method, train

from common import PROJECT, run_tool
from folders import names
from processes import forked

README = (PROJECT / "trainers" / "README.md").read_text(encoding="utf-8")


def write(folder: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    new_method.main([name, "--kind", kind])
    return (folder / f"{new_method.module_name(name)}.py").read_text()


@pytest.mark.parametrize("kind", sorted(new_method.TEMPLATES))
def test_a_new_method_runs_at_once(kind, tmp_path, monkeypatch, capsys):
    write(tmp_path, "MyOwnMethod", kind, monkeypatch)
    out = capsys.readouterr().out
    words = re.search(r"run it: .*train(?:\.py)? (.*)", out)[1].split()
    words += ["--output-dir", "run", "TTA.VIEWS", "12", "TTA.SELECT", "0.25", "TEST.LIMIT=8"]
    done = forked(lambda: sys.exit(cli.outcome(lambda: train.main(words))))
    assert done.returncode == 0, done.stderr
    assert re.search(r"^My own method +\d", done.stdout, re.MULTILINE)


def run_test(file: str) -> str:
    """What pytest says of a file, in a fork of this process."""
    def run() -> None:
        sys.path.insert(0, str(Path.cwd()))
        sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-s", file]))

    return forked(run).stdout


@pytest.mark.slow
def test_the_test_of_a_new_method_passes_and_fails_where_it_should(tmp_path, monkeypatch):
    source = write(tmp_path, "WeightedViews", "gradient-free", monkeypatch)
    output = run_test("test_weighted_views.py")
    assert "2 passed" in output, output
    weighted_mean = "(confidence * logits).sum(1) / confidence.sum(1)"
    plain_view = "logits[:, 0] + 0 * confidence[:, 0]"
    assert weighted_mean in source
    (tmp_path / "weighted_views.py").write_text(source.replace(weighted_mean, plain_view))
    output = run_test("test_weighted_views.py")
    assert "1 failed, 1 passed" in output, output


@pytest.mark.parametrize(("name", "kind"), [
    ("WeightedViews", "gradient-free"), ("ClassBalance", "online"),
])
def test_the_readme_shows_what_is_written(name, kind, tmp_path, monkeypatch):
    assert f"```python\n{write(tmp_path, name, kind, monkeypatch)}```" in README


def test_names_that_are_in_use_are_refused(tmp_path, monkeypatch):
    write(tmp_path, "WeightedViews", "gradient-free", monkeypatch)
    reasons = {"OTpt": "OTPT is a registered method", "Numpy": "a module numpy is installed"}
    for name, reason in reasons.items():
        done = run_tool("new_method.py", name, "--kind", "online")
        assert done.returncode == 2 and reason in done.stderr
    with pytest.raises(ValueError, match=r"weighted_views.py is there: remove it"):
        new_method.main(["WeightedViews", "--kind", "online"])
    assert names(tmp_path) == ["test_weighted_views.py", "weighted_views.py"]
