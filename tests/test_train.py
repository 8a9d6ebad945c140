"""The real command as a user types it: the run folder of every trainer, and messages about what is
wrong."""
import copy
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from promptcal.datasets.base import run_name
from promptcal.trainers.engine.adapted import Adapted
from promptcal.trainers.functional.calibration import ace, ece, top_class
from promptcal.trainers.runs.run_dir import read_predictions
from promptcal.trainers.runs.summary import seeds_table, sweep_table

from common import openai_state, random_clip, run_tool
from folders import RUN_FILES, contents, names, results_of

FEW_VIEWS = ("TTA.VIEWS", 12, "TTA.SELECT", 0.25)


@pytest.mark.parametrize(("trainer", "label"), [("ZeroShot", "Zero-shot"), ("CTPT", "C-TPT"), ("SoC", "SoC")])
def test_a_run_end_to_end(train, image_folder, tmp_path, trainer, label):
    done = train(trainer, *FEW_VIEWS)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    assert names(run) == RUN_FILES
    results = results_of(run)
    predictions = read_predictions(run)
    tuned = set() if trainer == "ZeroShot" else {"loss", "penalty", "cots_tau", "strong_log_p"}
    assert set(predictions) == {
        "index", "filename", "label", "logits", "zero_shot_logits", "flagged", "text", "image",
        "cluster", "record", *tuned,
    }
    assert predictions["index"].tolist() == list(range(12))
    assert predictions["label"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    confidence, correct = top_class(predictions["logits"], predictions["label"])
    assert results["accuracy"] == pytest.approx(100 * correct.mean())
    assert results["ece"] == pytest.approx(100 * ece(confidence, correct, 20))
    assert results["ace"] == pytest.approx(100 * ace(confidence, correct, 20))
    assert results["trainer"] == trainer
    assert results["dataset"] == run_name("ImageFolder", image_folder)
    assert (results["seed"], results["n"], results["classes"]) == (0, 12, 4)
    is_zero_shot = np.array_equal(predictions["logits"], predictions["zero_shot_logits"])
    assert is_zero_shot == (trainer == "ZeroShot")
    row = next(line for line in done.stdout.splitlines() if line.startswith(label))
    assert f"{results['accuracy']:.2f}" in row and f"{results['ece']:.2f}" in row
    assert "12 test images of 4 classes" in done.stdout and "20 bins" in done.stdout


def test_a_finished_run_prints_its_table_and_computes_nothing(train, tmp_path):
    first = train("SoC", *FEW_VIEWS)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.npz")}
    again = train("SoC", *FEW_VIEWS, "TEST.PART", 5)  # however it would be cut into parts now
    assert again.returncode == 0 and "nothing to compute" in again.stdout
    assert again.stdout.partition("method")[2] == first.stdout.partition("method")[2] != ""
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.npz")} == before
    done = run_tool("train.py", "--resume", tmp_path / "run")
    assert done.returncode == 0 and "nothing to compute" in done.stdout
    done = run_tool("train.py", "--resume", tmp_path / "nowhere")
    assert done.returncode == 2 and "nowhere: it is not a run folder" in done.stderr
    rebinned = train("SoC", *FEW_VIEWS, "TEST.BINS", 5)
    assert rebinned.returncode == 0 and "5 bins" in rebinned.stdout
    assert results_of(tmp_path / "run")["bins"] == 5
    again = train("SoC", *FEW_VIEWS, "TEST.BINS", 5)
    assert again.returncode == 0 and "nothing to compute" in again.stdout


def test_a_run_that_cannot_start_overwrites_nothing_and_other_bins_need_the_predictions(train, tmp_path):
    assert train("ZeroShot").returncode == 0
    before = contents(tmp_path / "run")
    (tmp_path / "damaged.pt").write_bytes(b"no weights")
    done = train("ZeroShot", "--overwrite", "--backbone", tmp_path / "damaged.pt")
    assert done.returncode == 2 and "damaged.pt" in done.stderr
    assert contents(tmp_path / "run") == before
    predictions = tmp_path / "run" / "predictions.npz"
    predictions.write_bytes(predictions.read_bytes()[:500])
    for what in ("not the one", "missing"):
        done = train("ZeroShot", "TEST.BINS", 5)
        assert done.returncode == 2 and "--overwrite" in done.stderr
        assert f"do not belong together: predictions.npz is {what}" in done.stderr
        predictions.unlink(missing_ok=True)
    assert train("ZeroShot", "TEST.BINS", 5, "--overwrite").returncode == 0


def test_other_circumstances_are_refused_by_name(train, tmp_path, image_folder):
    torch.save(openai_state(random_clip(seed=1)), tmp_path / "other.pt")
    assert train("ZeroShot").returncode == 0
    for words, message in (
        (["SEED", 1], "SEED was 0, is 1"),
        (["TEST.LIMIT", 3], "was made with other data: 12 images then, now 3"),
        (["PROMPT.CTX_INIT", "a"], "PROMPT.CTX_INIT was 'a photo of a', is 'a'"),
        (["TRAINER.NAME", "TPT", *FEW_VIEWS], "TRAINER.NAME was 'ZeroShot', is 'TPT'"),
        (["--backbone", tmp_path / "other.pt"], "weights was"),
        ([], "other data: 12 images then, now 13"),
    ):
        if not words:
            shutil.copy(image_folder / "kind_a" / "0.png", image_folder / "kind_b" / "9.png")
        done = train("ZeroShot", *words)
        assert done.returncode == 2 and message in done.stderr, done.stderr
        assert f"error: {tmp_path / 'run'} " in done.stderr
        assert done.stderr.endswith("Use TAG (without --output-dir), --overwrite or another --output-dir.\n")
        assert "edited" not in done.stderr  # another method is not an edit of this one
    (image_folder / "kind_b" / "9.png").unlink()
    Image.new("RGB", (48, 40)).save(image_folder / "kind_b" / "0.png")
    assert "other data: 1 image changed." in train("ZeroShot").stderr
    (image_folder / "kind_a").rename(image_folder / "kind_z")
    assert "other data: 1 image changed, 11 labels differ, class names differ." in train("ZeroShot").stderr


def test_a_sweep_is_a_run_per_value_and_a_table_of_all(train, tmp_path):
    sweep = [*FEW_VIEWS, "--sweep", "OPTIM.LR", "0.001", "0.02"]
    done = train("TPT", *sweep)
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("\n\n")[-1]
    runs = []
    for lr in ("0.001", "0.02"):
        results = results_of(tmp_path / "run" / f"LR-{lr}")
        assert results["record"]["method"]["settings"]["OPTIM.LR"] == float(lr)
        numbers = f"{results['accuracy']:.2f} +{results['ece']:.2f}"
        assert re.search(rf"^TPT, learning rate {lr} +{numbers}", table, re.M)
        runs.append(results)
    assert table.count("Zero-shot") == 1
    # What the values share stands in the caption.
    assert table.strip().splitlines()[-1].endswith("20 bins; SELECT 0.25, 12 views")
    failed = {**runs[1], "flagged": 3, "skipped": ["a.png: broken"]}
    lines = sweep_table("OPTIM.LR", [0.001, 0.02], [runs[0], failed]).splitlines()
    assert lines[-2].startswith("learning rate 0.02, seed 0: 3 images have their zero-shot")
    assert lines[-1] == "learning rate 0.02, seed 0: 1 unreadable image skipped"
    assert train("TPT", *sweep).stdout.count("finished before; nothing to compute") == 2


def test_seeds_that_differ_in_more_than_the_seed_have_no_mean(train, tmp_path):
    """Such as with prompts of two trainings, or images that were exchanged between the seeds."""
    done = train("TPT", *FEW_VIEWS, "--seed", 0, 2)  # 0 is a seed
    assert done.returncode == 0 and "±" in done.stdout, done.stderr
    folders = [tmp_path / "run" / f"seed{seed}" for seed in (0, 2)]
    first, second = map(results_of, folders)
    assert (first["seed"], second["seed"]) == (0, 2)
    logits = [read_predictions(folder)["logits"] for folder in folders]
    assert not np.array_equal(*logits)  # another seed makes other views
    failed = seeds_table([first, {**second, "flagged": 3}]).splitlines()
    assert failed[-1].startswith("seed 2: 3 images have their zero-shot prediction")
    other = copy.deepcopy(second)
    other["record"]["data"]["images"] = "exchanged"
    for table in (seeds_table([first, other]), sweep_table("OPTIM.LR", [0.1, 0.1], [first, other])):
        assert "±" not in table and "whose runs differ: images or labels was" in table


def test_a_sweep_over_methods_or_splits_names_what_each_row_is(train, tmp_path):
    done = train("ZeroShot", *FEW_VIEWS, "--sweep", "TRAINER.NAME", "ZeroShot", "TPT", "SoC")
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("\n\n")[-1]
    for method in ("TPT", "SoC"):
        results = results_of(tmp_path / "run" / f"NAME-{method}")
        assert re.search(rf"^{method}, NAME {method} +{results['accuracy']:.2f}", table, re.M)
    first = results_of(tmp_path / "run" / "NAME-TPT")
    second = {**first, "split": "val", "backbone": "tiny2", "n": 5, "classes": 2}
    caption = sweep_table("TEST.SPLIT", ["test", "val"], [first, second]).splitlines()[-1]
    assert f"5 to {first['n']} test and val images of 2 to {first['classes']} classes" in caption
    caption = sweep_table("SEED", [0, 5], [first, {**first, "seed": 5}]).splitlines()[-1]
    assert ", seed 0, seed 5;" in caption


@pytest.mark.parametrize(("words", "message"), [
    (["OPTIM.LR", "0.1", "1e-1"], "two values of --sweep are the same run"),
    (["PROMPT.CTX_INIT", "a photo of a", "a_photo_of_a"], "two values of --sweep are the same run"),
    (["DATASET.NUM_SHOTS", "2", "4"], "or the setting has no effect here"),
    (["TEST.LIMIT", "20", "30"], "two values of --sweep are the same run"),  # of 12 images
    (["TEST.LIMIT", "11", "0"], ""),
    (["TTA.STEPS", "1", "-2"], "TTA.STEPS is -2; it must be 0 or more"),
    (["OPTIM.LR", "0.1"], ""), (["OPTIM.LR"], "it needs a setting and its values"),
    (["OPTIM.LR", "0.1", "0.1"], "a value of OPTIM.LR is given twice"),
    (["MODEL.BACKBONE.NAME", "RN1", "small"], "no backbone and no weight file 'RN1'"),
])
def test_values_of_a_sweep_are_checked_before_the_first_run(train, tmp_path, words, message):
    done = train("TPT", *FEW_VIEWS, "--sweep", *words, "--no-train")
    assert done.returncode == (2 if message else 0) and message in done.stderr
    assert not (tmp_path / "run").exists()


def test_workers_do_not_change_a_bit(train, tmp_path):
    logits = []
    for workers in (0, 1, 3):
        run = tmp_path / f"workers{workers}"
        done = train("SoC", *FEW_VIEWS, "TEST.LIMIT", 4, "OUTPUT_DIR", run, "DATALOADER.NUM_WORKERS", workers)
        assert done.returncode == 0, done.stderr
        predictions = read_predictions(run)
        assert predictions["label"].tolist() == [0, 1, 2, 3]  # a limit spreads over the set
        logits.append(predictions["logits"])
    assert np.array_equal(logits[0], logits[1]) and np.array_equal(logits[0], logits[2])


def test_bad_images_stop_the_run_or_are_listed(train, tmp_path, image_folder):
    (image_folder / "kind_b" / "1.png").write_bytes(b"no image")
    done = train("ZeroShot")
    assert done.returncode == 2 and "kind_b/1.png" in done.stderr and "ON_BAD_IMAGE skip" in done.stderr
    done = train("ZeroShot", "DATALOADER.ON_BAD_IMAGE", "skip", "OUTPUT_DIR", tmp_path / "skip")
    assert done.returncode == 0 and "1 unreadable image skipped" in done.stdout
    results = results_of(tmp_path / "skip")
    assert results["n"] == 11 and "kind_b/1.png" in results["skipped"][0]
    assert 4 not in read_predictions(tmp_path / "skip")["index"]


@pytest.mark.parametrize("trainer", ["SoC", "CoOp"])
def test_no_train_checks_and_writes_nothing(train, tmp_path, image_folder, trainer):
    """Neither a run folder nor a few-shot list in the data root, nor a cached Jacobian."""
    shutil.copytree(image_folder, tmp_path / "both" / "train")
    image_folder.rename(tmp_path / "both" / "test")
    before = sorted(tmp_path.rglob("*"))
    done = train(
        trainer, "--no-train", "--root", tmp_path / "both", "DATASET.NUM_SHOTS", 2,
        "TTA.JACOBIAN", "on", "CACHE.DIR", tmp_path / "cache",
    )
    assert done.returncode == 0, done.stderr
    assert "on cpu in fp32" in done.stdout and "; nothing was run. Without" in done.stdout
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("args", "message"), [
    (["--trainer", "Sock"], "unknown trainer 'Sock'. Did you mean 'SoC'?"),
    (["--trainer", "SoC"], "no data set given"),
    (["--trainer", "SoC", "OPTIM.LR", "1e38"], "OPTIM.LR is 1e+38; it must be above 0 and at most 1e30"),
    (["--trainer", "SoC", "--load-epoch", "50"], "--load-epoch names an epoch of the prompt in --model-dir DIR"),
    (["--trainer", "SoC", "--dataset-config-file", "ucf101", "--root", "/nowhere"],
     "data root /nowhere is not a folder"),
    (["--trainer", "SoC", "--dataset-config-file", "cub"], "no such file. Data sets: caltech101, cifar10, "),
])
def test_bad_input_gets_one_line_and_status_2(args, message):
    done = run_tool("train.py", *args)
    assert done.returncode == 2 and message in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_not_a_number_falls_back_to_zero_shot_and_is_flagged(train, tmp_path, monkeypatch):
    """An image whose numbers are lost keeps its zero-shot prediction; the others of its batch keep
    theirs."""
    real = Adapted.check_shapes

    def lose_the_second(self, *args):
        self.logits[1] = float("nan")
        real(self, *args)

    monkeypatch.setattr(Adapted, "check_shapes", lose_the_second)
    done = train("TPT", *FEW_VIEWS)
    predictions = read_predictions(tmp_path / "run")
    assert done.returncode == 0 and predictions["flagged"].nonzero()[0].tolist() == [1, 9]
    for row in (1, 9):
        assert np.array_equal(predictions["logits"][row], predictions["zero_shot_logits"][row])
    assert "TPT: 2 images have their zero-shot prediction" in done.stdout


def test_a_learning_rate_that_loses_all_numbers(train, tmp_path):
    assert train("SoC", *FEW_VIEWS, "OPTIM.LR", 1e30).returncode == 0
    predictions = read_predictions(tmp_path / "run")
    assert predictions["flagged"].all()
    assert np.array_equal(predictions["logits"], predictions["zero_shot_logits"])
    assert np.isfinite(predictions["logits"]).all()
