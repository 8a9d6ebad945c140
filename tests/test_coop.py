"""CoOp's runs: settings, results, training that continues where it was interrupted, prompts that
others start from."""
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from promptcal.datasets import build_dataset
from promptcal.datasets.utils.errors import ConfigError, DataError, UserError
from promptcal.trainers import adapt, build_cfg, build_trainer
from promptcal.trainers.base import BaseTrainer
from promptcal.trainers.coop import CoOp, epochs_of, trained_prompt
from promptcal.trainers.fewshot.training import PromptLearner
from promptcal.trainers.runs.run_dir import read_predictions
from promptcal.trainers.vlm.prompt_files import find_prompt, read_context, read_metadata
from promptcal.trainers.vlm.prompt_protocol import protocol_of_metadata
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from yacs.config import CfgNode

from common import make_image_folder, run_tool
from folders import RUN_FILES, names, results_of

SHORT = ("OPTIM.MAX_EPOCH", 3, "TRAINER.COOP.N_CTX", 4, "DATALOADER.TRAIN_X.BATCH_SIZE", 4, "DATASET.NUM_SHOTS", 2)


@pytest.fixture
def splits(tmp_path) -> Path:
    """An image folder with train and test, three and two images per class."""
    make_image_folder(tmp_path / "data" / "train")
    make_image_folder(tmp_path / "data" / "test", images=2)
    return tmp_path / "data"


@pytest.fixture
def config(splits, clip_file, tmp_path) -> Callable[..., CfgNode]:
    """The settings of a short run on that folder; the run directory is tmp_path/run."""
    return lambda *opts: build_cfg("CoOp", "image_folder", opts=[
        "DATASET.ROOT", splits, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", tmp_path / "run",
        "DATALOADER.NUM_WORKERS", 0, *SHORT, *opts])


@pytest.fixture
def coop(config) -> Callable[..., dict]:
    return lambda *opts, train=True: build_trainer(config(*opts)).run(train)


@pytest.fixture
def command(splits, clip_file, tmp_path) -> list[str]:
    return ["train.py", "--trainer", "CoOp", "--dataset-config-file", "image_folder", "--root", str(splits),
            "--backbone", str(clip_file), "--output-dir", str(tmp_path / "run"), *map(str, SHORT)]


def test_defaults_are_coops():
    epochs = {1: 50, 2: 100, 4: 100, 8: 200, -1: 200}
    for shots, expected in epochs.items():
        cfg = build_cfg("CoOp", opts=["DATASET.NUM_SHOTS", shots, "DATASET.NAME", "UCF101"])
        assert epochs_of(cfg) == expected
    assert epochs_of(build_cfg("CoOp", opts=["DATASET.NUM_SHOTS", 16, "DATASET.NAME", "ImageNet"])) == 50
    assert epochs_of(build_cfg("CoOp", opts=["OPTIM.MAX_EPOCH", 7])) == 7
    assert (cfg.OPTIM.LR, cfg.OPTIM.MOMENTUM, cfg.OPTIM.WEIGHT_DECAY) == (0.002, 0.9, 5e-4)
    assert (cfg.OPTIM.WARMUP_EPOCH, cfg.OPTIM.WARMUP_CONS_LR) == (1, 1e-5)
    assert cfg.DATALOADER.TRAIN_X.BATCH_SIZE == 32
    assert (cfg.TRAINER.COOP.N_CTX, cfg.TRAINER.COOP.CSC) == (16, False)
    assert build_cfg("CoOp").DATASET.NUM_SHOTS == 16


def test_a_finished_run_with_another_prompt_is_refused(coop, config, tmp_path):
    """An experiment would start its runs from that prompt, under the name of this one."""
    coop()
    prompt = find_prompt(tmp_path / "run")
    content = prompt.read_bytes()
    coop("SEED", 1, "OUTPUT_DIR", tmp_path / "other")
    shutil.copy(find_prompt(tmp_path / "other"), prompt)
    for call in (coop, lambda: trained_prompt(config())):
        with pytest.raises(DataError, match="is not the prompt that this run has trained.*--overwrite"):
            call()
    prompt.unlink()
    assert trained_prompt(config()) == prompt and prompt.read_bytes() == content
    coop()


def test_the_prompt_that_a_run_starts_from_is_not_removed(coop, splits, clip_file, tmp_path):
    coop()
    prompt = find_prompt(tmp_path / "run")
    done = run_tool(
        "train.py", "--trainer", "ZeroShot", "--dataset-config-file", "image_folder", "--root", splits, "--backbone",
        clip_file, "--model-dir", tmp_path / "run", "--output-dir", tmp_path / "run", "--overwrite",
    )
    assert done.returncode == 2 and "--overwrite would remove the prompt" in done.stderr
    assert prompt.is_file() and results_of(tmp_path / "run")["trainer"] == "CoOp"


@pytest.mark.parametrize(("opts", "shape"), [
    ((), (4, 64)),
    (("TRAINER.COOP.CSC", True, "TRAINER.COOP.CTX_INIT", "itap of the"), (4, 4, 64)),
    (("TRAINER.COOP.FIXED_VIEWS", True, "TRAINER.COOP.CTX_INIT", "a photo of one"), (4, 64)),
    (("MODEL.PREC", "bf16"), (4, 64)),
], ids=["random", "class-specific words", "fixed views", "amp"])
def test_results_of_a_run(coop, splits, clip_file, tmp_path, opts, shape):
    results = coop(*opts)
    run = tmp_path / "run"
    training = results["training"]
    assert (training["images"], training["shots"], training["epochs"]) == (8, 2, 3)
    fixed = "TRAINER.COOP.FIXED_VIEWS" in opts
    assert training["views"] == ("fixed plain views" if fixed else "new random crops in each epoch")
    context, *_ = read_context(run / training["checkpoint"])
    assert tuple(context.shape) == tuple(training["context"]) == shape
    assert context.dtype == torch.float32

    curves = EventAccumulator(str(run / "tensorboard" / "training")).Reload()
    assert [event.step for event in curves.Scalars("training/loss")] == [1, 2, 3]
    assert curves.Scalars("training/lr")[0].value == pytest.approx(1e-5)

    # ZeroShot from the checkpoint predicts the same; without it, CoOp's zero-shot logits.
    logits = {}
    precision = opts if "MODEL.PREC" in opts else ()
    for name, weights in (("zero_shot_logits", ""), ("logits", run / training["checkpoint"])):
        build_trainer(build_cfg("ZeroShot", "image_folder", opts=[
            "DATASET.ROOT", splits, "MODEL.BACKBONE.NAME", clip_file, "MODEL.INIT_WEIGHTS", weights,
            "OUTPUT_DIR", tmp_path / name, "DATALOADER.NUM_WORKERS", 0, *precision])).run()
        logits[name] = read_predictions(tmp_path / name)["logits"]
        np.testing.assert_allclose(read_predictions(run)[name], logits[name], atol=1e-4)
    assert np.abs(logits["logits"] - logits["zero_shot_logits"]).max() > 0.1


def test_the_command_trains_tests_and_saves(command, image_folder, tmp_path):
    done = run_tool(*command)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / "run") == sorted([*RUN_FILES, "prompt_learner"])
    assert "prompt trained on 8 images (new random crops in each epoch) in 3 epochs" in done.stdout
    assert "Zero-shot" in done.stdout and "\nCoOp " in done.stdout

    # CoOp's --eval-only: the prompt of one data set on another one, which has no training images.
    elsewhere = tmp_path / "elsewhere"
    done = run_tool(
        *command, "--root", image_folder, "OUTPUT_DIR", elsewhere, "--eval-only", "--model-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    results = results_of(elsewhere)
    assert results["init_weights"].endswith("model.pth.tar-3") and results["n"] == 12
    assert "training" not in results and not (elsewhere / "prompt_learner").exists()
    assert "no effect on a prompt that is only tested: " in done.stdout
    assert results["tag"].startswith("CoOp-2-shots") and "N_CTX" not in results["tag"]


def assert_same_run(run: Path, other: Path) -> None:
    ours = torch.load(find_prompt(run), weights_only=True)
    expected = torch.load(find_prompt(other), weights_only=True)
    results = results_of(run)
    others = results_of(other)
    for name, tensor in expected["state_dict"].items():
        assert torch.equal(ours["state_dict"][name], tensor)
    momentum = [content["optimizer"]["state"][0]["momentum_buffer"] for content in (ours, expected)]
    assert torch.equal(*momentum) and ours["scheduler"] == expected["scheduler"]
    assert results["training"] == others["training"] and results["accuracy"] == others["accuracy"]
    predictions = read_predictions(run)
    for column, expected_values in read_predictions(other).items():
        assert np.array_equal(predictions[column], expected_values)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("fixed", [False, True], ids=["crops", "fixed views"])
def test_interrupted_training_continues_bit_equal(coop, config, tmp_path, monkeypatch, fixed):
    """Interrupted after the second of three epochs, and again after training; workers change nothing either."""
    opts = ("TRAINER.COOP.FIXED_VIEWS", fixed)
    coop(*opts, "OUTPUT_DIR", tmp_path / "whole")
    cut = config(*opts, "DATALOADER.NUM_WORKERS", 2)
    real = PromptLearner.save
    saved = []

    def save_twice(learner: PromptLearner, path: Path, identity: str) -> None:
        real(learner, path, identity)
        saved.append(learner.epoch)
        if saved == [1, 2]:
            interrupt()

    monkeypatch.setattr(PromptLearner, "save", save_twice)
    with pytest.raises(KeyboardInterrupt):
        build_trainer(cut).run()
    assert not (tmp_path / "run" / "results.json").exists()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(BaseTrainer, "test", interrupt)
        build_trainer(cut).run()
    build_trainer(cut).run()
    assert saved == [1, 2, 3]  # no epoch was run twice
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert not (tmp_path / "run" / "parts").exists()


def test_training_images_that_change_during_training_stop_it(coop, splits, tmp_path, monkeypatch):
    """The state of the epochs before is kept: with the images put back the training continues."""
    images = {image: image.read_bytes() for image in (splits / "train").rglob("*.png")}
    end_epoch = PromptLearner.end_epoch

    def exchange_images(learner: PromptLearner) -> None:
        end_epoch(learner)
        if learner.epoch == 2:
            contents = list(images.values())
            for image, content in zip(images, reversed(contents), strict=True):
                image.write_bytes(content)

    coop("OUTPUT_DIR", tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(PromptLearner, "end_epoch", exchange_images)
        with pytest.raises(DataError, match="training images have changed since this run began"):
            coop()
    with pytest.raises(ConfigError, match="training images was"):
        coop()
    for image, content in images.items():
        image.write_bytes(content)
    coop()
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_other_training_is_another_run(coop, splits, tmp_path, caplog):
    results = coop()
    with caplog.at_level(logging.INFO):
        coop()
    assert "nothing to compute" in caplog.text
    for opts, difference in (
        (("DATASET.NUM_SHOTS", 1), "DATASET.NUM_SHOTS was 2, is 1"),
        (("OPTIM.LR", 0.1), "OPTIM.LR was 0.002, is 0.1"),
        (("TRAINER.COOP.N_CTX", 8), "N_CTX was 4, is 8"),
        (("OPTIM.MAX_EPOCH", 4), "OPTIM.MAX_EPOCH was 3, is 4"),
        (("TRAINER.COOP.FIXED_VIEWS", True), "FIXED_VIEWS was False, is True"),
    ):
        with pytest.raises(ConfigError, match=difference):
            coop(*opts)
    prompt = tmp_path / "run" / results["training"]["checkpoint"]
    tested = ("MODEL.INIT_WEIGHTS", prompt, "OUTPUT_DIR", tmp_path / "test")
    coop(*tested, train=False)
    with pytest.raises(ConfigError, match="training images was absent"):
        coop(*tested)
    for number in range(3):  # replaces every training image of a class
        shutil.copy(splits / "test" / "kind_a" / "0.png", splits / "train" / "kind_a" / f"{number}.png")
    with pytest.raises(ConfigError, match="training images was"):
        coop()


def test_training_starts_from_init_weights(coop, tmp_path):
    """With a tiny learning rate the context stays there. n_ctx is the file's; with CSC each class gets a copy."""
    coop("TRAINER.COOP.N_CTX", 8)
    prompt = find_prompt(tmp_path / "run")
    first, *_ = read_context(prompt)
    tiny = ("MODEL.INIT_WEIGHTS", prompt, "OPTIM.LR", 1e-12, "OPTIM.WARMUP_CONS_LR", 1e-12)
    for csc, expected in ((False, first), (True, first.expand(4, 8, 64))):
        coop(*tiny, "OUTPUT_DIR", tmp_path / f"more{csc}", "TRAINER.COOP.CSC", csc)
        second, *_ = read_context(find_prompt(tmp_path / f"more{csc}"))
        torch.testing.assert_close(expected, second, atol=1e-9, rtol=0)


def test_prompts_that_were_trained_otherwise_are_of_other_protocols(coop, splits, tmp_path):
    """Runs from them are rows of their own: their seeds must not be pooled."""
    coop()
    prompt = find_prompt(tmp_path / "run")
    trainings = {
        "another seed": ("SEED", 1),
        "batches": ("DATALOADER.TRAIN_X.BATCH_SIZE", 2),
        "start": ("MODEL.INIT_WEIGHTS", prompt),
        "precision": ("MODEL.PREC", "bf16"),
        "half of the classes": ("DATASET.SUBSAMPLE_CLASSES", "base"),
    }
    protocol = {"run": protocol_of_metadata(read_metadata(prompt)).text}
    for name, opts in trainings.items():
        coop("OUTPUT_DIR", tmp_path / name, *opts)
        metadata = read_metadata(find_prompt(tmp_path / name))
        protocol[name] = protocol_of_metadata(metadata).text
    assert protocol.pop("another seed") == protocol["run"]
    assert len(set(protocol.values())) == len(protocol), protocol


def test_unreadable_training_images_stop_the_run_or_are_listed(coop, splits, tmp_path):
    (splits / "train" / "kind_b" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"kind_b.1\.png.*ON_BAD_IMAGE skip"):
        coop("DATASET.NUM_SHOTS", -1)
    skip = ("DATASET.NUM_SHOTS", -1, "DATALOADER.ON_BAD_IMAGE", "skip", "OUTPUT_DIR", tmp_path / "skip")
    training = coop(*skip)["training"]
    assert training["images"] == 11 and "kind_b/1.png" in training["skipped"][0]


@pytest.mark.parametrize(("opts", "message"), [
    (("TRAINER.COOP.N_CTX", 0), "TRAINER.COOP.N_CTX is 0"),
    (("OPTIM.NAME", "adamw"),
     "OPTIM.NAME adamw in the command is no longer a setting: sgd is the only optimizer here"),
    (("TRAINER.COOP.CTX_INIT", "a {}"), "TRAINER.COOP.CTX_INIT is 'a {}'"),
    (("TRAINER.COOP.N_CTX", 75), "has 80 tokens, but the model takes 77"),
    (("OPTIM.LR", 1e30), "the loss is not finite in epoch"),
    (("DATASET.ROOT", "IMAGES", "DATASET.NUM_SHOTS", -1), "has no training images"),
])
def test_settings_that_cannot_work(coop, image_folder, opts, message):
    with pytest.raises(UserError, match=re.escape(message)):
        coop(*(image_folder if opt == "IMAGES" else opt for opt in opts))


def test_other_errors_get_one_line(coop, config, splits, clip_model, tmp_path, monkeypatch, caplog):
    with pytest.raises(ConfigError, match="there is no prompt to test: give --model-dir DIR"):
        coop(train=False)
    with pytest.raises(ConfigError, match="CoOp has no prompt yet"):
        adapt("CoOp", clip_model, ["cat", "dog"], torch.randn(1, 1, 3, 32, 32))
    state = tmp_path / "run" / "parts" / "training.pt"
    with monkeypatch.context() as patch:
        patch.setattr(BaseTrainer, "test", interrupt)
        with pytest.raises(KeyboardInterrupt):
            coop()
        content = torch.load(state, weights_only=True)
        torch.save({**content, "training": "another", "context": content["context"] + 1}, state)
        with pytest.raises(KeyboardInterrupt):
            coop()
    assert "training.pt belongs to another training, so training begins again" in caplog.text
    assert torch.equal(torch.load(state, weights_only=True)["context"], content["context"])
    state.write_bytes(b"half")
    with pytest.raises(ConfigError, match=r"cannot continue from .*training\.pt.*remove it to train from the start"):
        coop()
    dataset = build_dataset("ImageFolder", splits)
    (splits / "train" / "kind_c" / "2.png").unlink()
    with pytest.raises(DataError, match=r"kind_c.2\.png"):
        CoOp(config("DATASET.NUM_SHOTS", -1), dataset).record  # noqa: B018


def test_trained_prompt_trains_once(coop, config, tmp_path, caplog):
    """Trains if needed, and restores a prompt that was removed."""
    path = trained_prompt(config())
    assert path == find_prompt(tmp_path / "run")
    written_at = path.stat().st_mtime_ns
    context = read_context(path)[0]
    assert trained_prompt(config()) == path and path.stat().st_mtime_ns == written_at
    path.unlink()
    results = (tmp_path / "run" / "results.json").read_text()
    coop()  # computes nothing, but says so
    words = f"{path} was removed: runs that start from this prompt need it; to train it again"
    assert words in caplog.text
    assert not path.exists()
    assert trained_prompt(config()) == path and torch.equal(read_context(path)[0], context)
    assert (tmp_path / "run" / "results.json").read_text() == results
    assert not (tmp_path / "run" / "parts").exists()
    with pytest.raises(ConfigError, match=r"OPTIM.LR was 0.002, is 0.01"):
        trained_prompt(config("OPTIM.LR", 0.01))


def test_a_trained_prompt_predicts_the_same_when_it_is_tested_later(config, tmp_path):
    """Class-specific contexts distinguish classes of one name, in the training run and afterwards."""
    for split, images in (("train", 3), ("test", 2)):
        folder = make_image_folder(tmp_path / "twins" / split, images=images)
        (folder / "kind_d").rename(folder / "kind a")  # the tokenizer makes the same of kind_a
    opts = ["DATASET.ROOT", tmp_path / "twins", "TRAINER.COOP.CSC", True, "OPTIM.LR", 0.5]
    build_trainer(config(*opts)).run()
    trained = read_predictions(tmp_path / "run")
    prompt = find_prompt(tmp_path / "run")
    cfg = config(*opts, "MODEL.INIT_WEIGHTS", prompt, "OUTPUT_DIR", tmp_path / "later")
    build_trainer(cfg).run(train=False)
    later = read_predictions(tmp_path / "later")
    assert np.array_equal(later["logits"], trained["logits"])
    assert np.array_equal(later["zero_shot_logits"], trained["zero_shot_logits"])
    names = results_of(tmp_path / "run")["classnames"]
    twins = [label for label, name in enumerate(names) if name.replace("_", " ") == "kind a"]
    assert not np.array_equal(trained["logits"][:, twins[0]], trained["logits"][:, twins[1]])


def test_a_prompt_of_another_folder_of_images_is_said_to_be_learnt_there(coop, splits, tmp_path):
    """All folders have one reader, so the reader's name does not tell them apart."""
    coop()
    others = shutil.copytree(splits, tmp_path / "birds")
    learnt_on = {}
    for folder in (splits, others):
        cfg = build_cfg("SoC", "image_folder", opts=[
            "DATASET.ROOT", folder, "MODEL.INIT_WEIGHTS", find_prompt(tmp_path / "run"),
            "MODEL.BACKBONE.NAME", "small"])
        learnt_on[folder.name] = build_trainer(cfg).record.get("model.prompt.learnt_on")
    assert learnt_on == {"data": None, "birds": "data"}
