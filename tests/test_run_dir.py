"""The files of a run directory: complete or absent, and never those of another run."""
from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from promptcal.datasets.utils.errors import ConfigError, UserError
from promptcal.datasets.utils.files import write_json
from promptcal.trainers import build_cfg
from promptcal.trainers.runs.dist import Distributed
from promptcal.trainers.runs.run_dir import RunDir


def one_part(seed: int = 0) -> dict[str, np.ndarray]:
    """The part of images 4 to 6, of which the second cannot be read."""
    rng = np.random.default_rng(seed)
    return {
        "index": np.array([4, 6]), "label": np.array([0, 1]), "logits": rng.normal(size=(2, 3)).astype(np.float32),
        "zero_shot_logits": rng.normal(size=(2, 3)).astype(np.float32), "flagged": np.array([False, True]),
        "loss": np.ones(2), "penalty": np.zeros(2), "seconds": np.array([0.5]),
        "adapt_seconds": np.array([0.1]), "bad_index": np.array([5]),
        "bad_reason": np.array(["no image"]),
    }


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(
        np.array_equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def test_any_flipped_byte_of_a_part_is_noticed_or_harmless(tmp_path: Path):
    folder, indices = RunDir(tmp_path), [4, 5, 6]
    folder.write_part(indices, one_part())
    file = folder.part_file(indices)
    content = file.read_bytes()
    assert same(folder.read_part(indices), one_part())
    noticed = 0
    for place in range(0, len(content), 7):
        for flip in (1, 255):
            file.write_bytes(content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :])
            found = folder.read_part(indices)
            assert found is None or same(found, one_part()), place
            noticed += found is None
    assert noticed > len(content) // 7


def test_parts_that_lack_something_are_computed_again(tmp_path: Path):
    folder, indices = RunDir(tmp_path), [4, 5, 6]
    for lacking in set(one_part()) - {"loss", "penalty"}:  # which not every method has
        folder.write_part(indices, {name: column for name, column in one_part().items() if name != lacking})
        assert folder.read_part(indices) is None, lacking
    folder.write_part(indices, {**one_part(), "bad_index": np.array([], dtype=int)})
    assert folder.read_part(indices) is None  # nothing is known of image 5
    with pytest.raises(UserError, match="run the command again"):
        folder.merge([indices], {}, text=np.eye(3))


@pytest.mark.parametrize("fingerprint", [None, "", "[1]", '{"seed": 0'])
def test_parts_of_unknown_origin_are_removed(tmp_path: Path, fingerprint: str | None):
    folder = RunDir(tmp_path)
    folder.write_part([4, 5, 6], one_part())
    if fingerprint is not None:
        (folder.parts / "fingerprint.json").write_text(fingerprint)
    folder.start({"seed": 1})
    assert not folder.has_parts and json.loads((folder.parts / "fingerprint.json").read_text()) == {"seed": 1}


def test_a_run_owns_its_directory_from_the_first_part_on(tmp_path: Path):
    folder = RunDir(tmp_path)
    for seed in (0, 1):
        folder.start({"seed": seed})
    folder.write_part([4, 5, 6], one_part())
    folder.start({"seed": 1})
    assert folder.has_parts
    with pytest.raises(ConfigError, match="seed was 1, is 2"):
        folder.start({"seed": 2})


@pytest.mark.parametrize("computed", [False, True])
def test_a_refused_run_leaves_nothing_that_looks_unfinished(tmp_path: Path, computed: bool):
    cfg = build_cfg("TPT", opts=["OUTPUT_DIR", tmp_path / "run"])
    with pytest.raises(UserError), RunDir.open(cfg, {"seed": 0}, Distributed()) as run_dir:
        if computed:
            run_dir.write_part([4, 5, 6], one_part())
        raise UserError("no such weights")
    left = {path.name for path in (tmp_path / "run").glob("*")}
    assert left == ({"config.yaml", "log.txt", "parts"} if computed else set()) and run_dir.path.exists() == computed


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "results.json"
    write_json(path, {"version": "old"})

    def cut_off(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", cut_off)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"version": "new"})
    assert json.loads(path.read_text()) == {"version": "old"}
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_a_finished_run_has_no_temporary_files(tmp_path: Path):
    cfg = build_cfg("TPT", opts=["OUTPUT_DIR", tmp_path])
    (tmp_path / ".config.yaml.7-1f.part").write_text("SEE")  # of a process that was killed
    RunDir(tmp_path).finish({"n": 3}, cfg)
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "results.json"}
