"""The files of a run directory: complete or absent, and never those of another run."""
import json
import os
from pathlib import Path

import numpy as np
import pytest
from promptcal.datasets.utils.errors import ConfigError, UserError
from promptcal.datasets.utils.files import write_json
from promptcal.datasets.utils.lock import FolderLock
from promptcal.trainers.runs import run_dir as run_dir_module
from promptcal.trainers.runs.dist import Distributed
from promptcal.trainers.runs.record import RunRecord
from promptcal.trainers.runs.run_dir import AskedRun, RunDir, read_record, read_results

from folders import RUN_FILES, contents, names
from records import make


def one_part(seed: int = 0) -> dict[str, np.ndarray]:
    """The part of images 4 to 6, of which the second cannot be read."""
    rng = np.random.default_rng(seed)
    return {
        "index": np.array([4, 6]), "label": np.array([0, 1]),
        "logits": rng.normal(size=(2, 3)).astype(np.float32),
        "zero_shot_logits": rng.normal(size=(2, 3)).astype(np.float32),
        "flagged": np.array([False, True]), "loss": np.ones(2), "penalty": np.zeros(2),
        "seconds": np.array([0.5]), "adapt_seconds": np.array([0.1]),
        "peak_bytes": np.array([0]), "bad_index": np.array([5]),
        "bad_reason": np.array(["no image"]),
    }


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(
        np.array_equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def test_any_flipped_byte_of_a_part_is_noticed_or_harmless(tmp_path):
    folder = RunDir(tmp_path, make())
    indices = [4, 5, 6]
    folder.write_part(indices, one_part())
    file = folder.part_file(indices)
    content = file.read_bytes()
    assert same(folder.read_part(indices), one_part())
    noticed = 0
    for place in range(0, len(content), 7):
        for flip in (1, 255):
            file.write_bytes(
                content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :]
            )
            columns = folder.read_part(indices)
            assert columns is None or same(columns, one_part()), place
            noticed += columns is None
    assert noticed > len(content) // 7


def test_parts_that_lack_something_are_computed_again(tmp_path):
    folder = RunDir(tmp_path, make())
    indices = [4, 5, 6]
    for lacking in set(one_part()) - {"loss", "penalty"}:  # which not every method has
        folder.write_part(
            indices, {name: column for name, column in one_part().items() if name != lacking}
        )
        assert folder.read_part(indices) is None, lacking
    folder.write_part(indices, {**one_part(), "bad_index": np.array([], dtype=int)})
    assert folder.read_part(indices) is None  # nothing is known of image 5
    with pytest.raises(UserError, match="run the command again"):
        folder.merge([indices], {}, text=np.eye(3))


LISTING = {
    "index": np.arange(3), "image": np.arange(48, dtype=np.uint8).reshape(3, 16),
    "label": np.array([0, 1, 1]),
}


def opened(path: Path, record: RunRecord, **options: object):
    """The folder of a run in a single process."""
    asked = AskedRun(**{"record": record, "listing": LISTING, "config": "SEED: 0\n", **options})
    return RunDir(path, record).open(asked, Distributed())


@pytest.mark.parametrize("record", [None, "", "[1]", '{"seed": 0'])
def test_parts_of_unknown_origin_are_removed(tmp_path, record):
    folder = RunDir(tmp_path, make())
    folder.write_part([4, 5, 6], one_part())
    if record is not None:
        (tmp_path / "record.json").write_text(record)
    with opened(tmp_path, make(seed=1)) as run_dir:
        assert not run_dir.has_parts
        assert read_record(tmp_path / "record.json") == make(seed=1)


def test_a_run_owns_its_directory_from_the_first_part_on(tmp_path):
    for seed in (0, 1):
        with opened(tmp_path, make(seed=seed)) as run_dir:
            assert run_dir.record.seed == seed
    with opened(tmp_path, make(seed=1)) as run_dir:
        run_dir.write_part([4, 5, 6], one_part())
    with opened(tmp_path, make(seed=1)) as run_dir:
        assert run_dir.has_parts
    with pytest.raises(ConfigError, match="SEED was 1, is 2.*--overwrite or another"), \
            opened(tmp_path, make(seed=2)):
        pass
    with opened(tmp_path, make(seed=2), overwrite=True) as run_dir:
        assert not run_dir.has_parts


def test_another_run_in_the_folder_has_its_own_curves(tmp_path):
    """The results of the first run were removed by hand."""
    events = tmp_path / "tensorboard" / "tuned" / "events.out.tfevents.1.host.1.0"
    for seed, has_curves in ((0, False), (0, True), (1, False)):
        with opened(tmp_path, make(seed=seed)):
            assert events.exists() == has_curves
            events.parent.mkdir(parents=True, exist_ok=True)
            events.write_bytes(b"curves")


def test_a_run_that_starts_again_has_the_defaults_that_it_began_with(tmp_path):
    """--resume does not know those of a user's own yaml of a data set."""
    began = make(changed={"TTA.STEPS": [1, 2]})
    with opened(tmp_path, began):
        pass
    with opened(tmp_path, make(changed={"TTA.STEPS": [1, 2], "TTA.SELECT": [0.1, 0.2]})) as run_dir:
        assert run_dir.record.changed == began.changed
    assert read_record(tmp_path / "record.json") == began


def test_what_was_decided_stays_decided(tmp_path):
    asked = make(**{"numerics.jacobian": "auto"})
    with opened(tmp_path, asked) as run_dir:
        run_dir.decide(Distributed(), jacobian=True)
        run_dir.write_part([4, 5, 6], one_part())
    with opened(tmp_path, asked) as run_dir:
        assert run_dir.record.numerics["jacobian"] is True
        run_dir.decide(Distributed(), jacobian=False)  # another process would find otherwise now
        assert run_dir.record.numerics["jacobian"] is True
    with pytest.raises(ConfigError, match="TTA.JACOBIAN was True, is False"), \
            opened(tmp_path, make(**{"numerics.jacobian": False})):
        pass


@pytest.mark.parametrize("computed", [False, True])
def test_a_refused_run_leaves_nothing_that_looks_unfinished(tmp_path, computed):
    with pytest.raises(UserError), opened(tmp_path / "run", make()) as run_dir:
        if computed:
            run_dir.write_part([4, 5, 6], one_part())
        raise UserError("no such weights")
    left = {path.name for path in (tmp_path / "run").glob("*")}
    expected = {"config.yaml", "log.txt", "parts", "record.json"} if computed else set()
    assert left == expected and run_dir.path.exists() == computed


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
    ["prompt_learner/model.pth.tar-50", "tensorboard/events.out.tfevents.1.host"],
    [".thesis.tex.part"],
])
@pytest.mark.parametrize("overwrite", [False, True])
def test_somebody_elses_folder_is_refused_before_anything_is_written(tmp_path, files, overwrite):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="not the folder of a run.*another --output-dir"), \
            opened(tmp_path, make(), overwrite=overwrite):
        pass
    assert contents(tmp_path) == dict.fromkeys(files, b"mine")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_under_the_name_of_the_folder_is_refused(tmp_path, overwrite):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(ConfigError, match="is not a folder: choose another --output-dir"), \
            opened(tmp_path / "run", make(), overwrite=overwrite):
        pass
    assert (tmp_path / "run").read_text() == "mine"


def test_a_locked_folder_is_not_overwritten(tmp_path):
    finished(tmp_path, make())
    with FolderLock(tmp_path).held():
        before = contents(tmp_path)
        with (
            pytest.raises(UserError, match="is in use by process"),
            opened(tmp_path, make(seed=1), overwrite=True),
        ):
            pass
        assert contents(tmp_path) == before


def test_what_a_refused_run_leaves_does_not_bar_the_folder(tmp_path):
    """Events of TensorBoard, and files that a kill left half-written."""
    for name in (
        "tensorboard/tuned/events.out.tfevents.1.host",
        "parts/listing.json", "parts/.0000000-0000063.npz.7-1f.part", ".record.json.7-1f.part",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    with opened(tmp_path, make()):
        pass
    assert not list(tmp_path.rglob("*.part"))


def test_files_that_a_run_has_not_written_stay_in_its_folders(tmp_path):
    finished(tmp_path, make())
    for name in ("prompt_learner/notes.txt", "tensorboard/run/results.json", "parts/piston.step",
                 "prompt_learner/model.pth.tar-5", "tensorboard/tuned/events.out.tfevents.1.host"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    with opened(tmp_path, make(seed=1), overwrite=True):
        pass
    left = {name for name, content in contents(tmp_path).items() if content == b"mine"}
    assert left == {
        "prompt_learner/notes.txt", "tensorboard/run/results.json", "parts/piston.step",
    }
    assert not (tmp_path / "tensorboard" / "tuned").exists()


def test_nothing_is_removed_where_no_record_says_that_a_run_was_there(tmp_path):
    """Curves of TensorBoard may be of any program."""
    events = tmp_path / "tensorboard" / "mine" / "events.out.tfevents.1.host"
    events.parent.mkdir(parents=True)
    events.write_text("mine")
    with opened(tmp_path, make(), overwrite=True):
        pass
    assert events.read_text() == "mine"


@pytest.mark.parametrize("other", [make(seed=1), make(**{"method.settings": {"TTA.STEPS": 2}})])
def test_parts_and_states_of_another_run_are_not_used(tmp_path, other):
    """Copied there from its folder, or left when record.json was exchanged."""
    indices = [4, 5, 6]
    foreign = RunDir(tmp_path, other)
    foreign.write_part(indices, one_part())
    foreign.write_state(1, {"memory": np.ones(3)})
    run_dir = RunDir(tmp_path, make())
    assert run_dir.read_part(indices) is None and run_dir.read_state(1) == (0, {})
    assert same(foreign.read_part(indices), one_part()) and foreign.read_state(1)[0] == 1


def finished(path: Path, record: RunRecord) -> None:
    """A run of three images, from its start to its results."""
    with opened(path, record) as run_dir:
        run_dir.write_part([4, 5, 6], one_part())
        run_dir.merge([[4, 5, 6]], {**LISTING, "index": np.array([4, 5, 6])}, text=np.eye(3))
        run_dir.finish({"n": 3, "bins": 20}, "SEED: 0\n")


@pytest.mark.parametrize("name", ["predictions.npz", "config.yaml", "record.json"])
@pytest.mark.parametrize("exchange", ["of another run", "removed"])
def test_files_of_a_folder_belong_together(tmp_path, name, exchange):
    finished(tmp_path / "one", make())
    finished(tmp_path / "two", make(seed=1))
    (tmp_path / "two" / "config.yaml").write_text("SEED: 1\n")
    if exchange == "removed":
        (tmp_path / "one" / name).unlink()
    else:
        (tmp_path / "two" / name).replace(tmp_path / "one" / name)
    before = contents(tmp_path / "one")
    with (
        pytest.raises(ConfigError, match=f"do not belong together: {name}"),
        opened(tmp_path / "one", make()),
    ):
        pass
    assert read_results(tmp_path / "one") is None
    assert contents(tmp_path / "one") == before


def test_a_finished_run_under_other_names_is_only_renamed(tmp_path):
    finished(tmp_path, make())
    predictions = (tmp_path / "predictions.npz").read_bytes()
    names = {"method": "SoC", "dataset": "Actions", "backbone": "ours", "prompt": ""}
    with opened(tmp_path, make(names=names)) as run_dir:
        assert run_dir.results is not None
    assert read_results(tmp_path)["record"]["names"] == names
    assert (tmp_path / "predictions.npz").read_bytes() == predictions


def test_a_kill_between_the_files_of_a_renamed_run_changes_nothing(tmp_path, monkeypatch):
    finished(tmp_path, make())
    names = {"method": "SoC", "dataset": "Actions", "backbone": "ours", "prompt": ""}

    def killed(path: Path, content: object) -> None:
        if path.name == "record.json":
            raise KeyboardInterrupt
        write_json(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(run_dir_module, "write_json", killed)
        with pytest.raises(KeyboardInterrupt), opened(tmp_path, make(names=names)):
            pass
    assert read_results(tmp_path)["record"]["names"] == names
    assert read_record(tmp_path / "record.json").names != names
    with opened(tmp_path, make(names=names)) as run_dir:
        assert run_dir.results is not None


@pytest.mark.parametrize(("key", "value"), [
    ("accuracy", 99.9),
    ("flagged", 0),
    ("skipped", []),
    ("classnames", ["x"]),
    ("record", make(names={}).to_json()),
])
def test_edited_results_are_refused(tmp_path, key, value):
    finished(tmp_path, make())
    path = tmp_path / "results.json"
    content = {**json.loads(path.read_text()), key: value}
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="results.json was edited"), opened(tmp_path, make()):
        pass
    assert json.loads(path.read_text()) == content
    with opened(tmp_path, make(), overwrite=True) as run_dir:
        assert run_dir.results is None


def test_what_changed_among_the_images_is_counted(tmp_path):
    finished(tmp_path, make(**{"data.n": 3}))
    images = LISTING["image"].copy()
    images[0] = 7
    now = {"index": np.array([4, 5, 6]), "image": images, "label": np.array([0, 1, 2])}
    asked = make(**{"data.images": "i1", "data.listing": "l1", "data.n": 3})
    with (
        pytest.raises(
            ConfigError, match="was made with other data: 1 image changed, 1 label differs"
        ),
        opened(tmp_path, asked, listing=now),
    ):
        pass


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


def test_a_finished_run_has_no_temporary_files(tmp_path):
    (tmp_path / ".config.yaml.7-1f.part").write_text("SEE")  # of a process that was killed
    finished(tmp_path, make())
    assert names(tmp_path) == RUN_FILES[:-1]  # no curves
