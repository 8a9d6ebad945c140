"""What users of CoOp bring: yaml files, flags, names of trainers and data sets, seeds, log
parsers."""
from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from promptcal.datasets.utils.errors import ConfigError
from promptcal.tools.train import main
from promptcal.trainers import build_cfg
from promptcal.trainers.config.settings import leaves

from common import PROJECT, run_tool
from data_roots import build
from folders import results_of

# A trainer yaml of CoOp's, with a few keys of MaPLe, KgCoOp and ProGrad, which are based on it.
COOPS_YAML = """
DATALOADER: {TRAIN_X: {BATCH_SIZE: 24}, TEST: {BATCH_SIZE: 100}, NUM_WORKERS: 0}
INPUT:
  SIZE: (224, 224)
  INTERPOLATION: "bicubic"
  PIXEL_MEAN: [0.48145466, 0.4578275, 0.40821073]
  PIXEL_STD: [0.26862954, 0.26130258, 0.27577711]
  TRANSFORMS: ["random_resized_crop", "random_flip", "normalize"]
OPTIM: {NAME: "sgd", LR: 0.003, MAX_EPOCH: 2, LR_SCHEDULER: "cosine", WARMUP_EPOCH: 1, WARMUP_TYPE: "constant",
        WARMUP_CONS_LR: 1e-5}
TRAIN: {PRINT_FREQ: 5}
MODEL: {BACKBONE: {NAME: "RN50"}}
TRAINER: {COOP: {PREC: "fp32", W: 8.0, CTX_INIT: True}, COCOOP: {N_CTX: 4}, MAPLE: {PROMPT_DEPTH: 9}}
LOSS: {NAME: prograd}
"""


@pytest.fixture
def coops(tmp_path: Path) -> str:
    path = tmp_path / "rn50.yaml"
    path.write_text(COOPS_YAML)
    return str(path)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "promptcal")
    return caplog


def test_coops_yaml_is_understood(coops, logged):
    cfg = build_cfg("CoOp", config_file=coops)
    assert (cfg.OPTIM.LR, cfg.OPTIM.MAX_EPOCH, cfg.OPTIM.WARMUP_CONS_LR) == (0.003, 2, 1e-5)
    assert cfg.DATALOADER.TRAIN_X.BATCH_SIZE == 24
    assert (cfg.MODEL.BACKBONE.NAME, cfg.MODEL.PREC) == ("RN50", "fp32")
    assert cfg.TRAINER.COOP.CTX_INIT == "a photo of a"
    optimizer, renamed, words, ignored = logged.messages
    assert optimizer == "OPTIM.NAME is no longer a setting; sgd is what is used"
    assert renamed == "TRAINER.COOP.PREC fp32 is MODEL.PREC fp32 here"
    assert "CTX_INIT a photo of a here" in words
    assert ignored.startswith(f"ignored, without a meaning here, from {coops}: ")
    for key in (
        "DATALOADER.TEST.BATCH_SIZE", "INPUT.SIZE", "INPUT.TRANSFORMS", "OPTIM.LR_SCHEDULER",
        "TRAIN.PRINT_FREQ", "TRAINER.COCOOP.N_CTX", "TRAINER.MAPLE.PROMPT_DEPTH",
        "TRAINER.COOP.W", "LOSS.",
    ):
        assert ignored.count(key) == 1


def test_its_schedule_is_for_methods_that_are_trained(coops, logged):
    cfg = build_cfg("SoC", config_file=coops)
    assert cfg.OPTIM == build_cfg("SoC").OPTIM
    assert cfg.MODEL.BACKBONE.NAME == "RN50"
    assert "OPTIM.NAME, OPTIM.LR, OPTIM.MAX_EPOCH" in logged.text
    assert build_cfg("SoC", config_file=coops, opts=["OPTIM.LR", "0.01"]).OPTIM.LR == 0.01


@pytest.mark.parametrize(("opts", "key", "value"), [
    (["USE_CUDA", "False"], "DEVICE", "cpu"),
    (["TRAINER.COOP.PREC", "amp"], "MODEL.PREC", "fp16"),
    (["INPUT.SIZE", "64"], "INPUT.SIZE", 64),
    (["INPUT.SIZE", "(64, 64)"], "INPUT.SIZE", 0),
    (["DATASET.SOURCE_DOMAINS", "()"], "SEED", 0),
    (["TTA.STEPS=2", "SEED", "3"], "SEED", 3),
    (["PROMPT.CTX_INIT", "a=b"], "PROMPT.CTX_INIT", "a=b"),
    (["PROMPT.CTX_INIT=a = b"], "PROMPT.CTX_INIT", "a = b"),
    (["TRAINER.COOP.CTX_INIT", True], "TRAINER.COOP.CTX_INIT", "a photo of a"),
    (["TRAINER.COOP.CTX_INIT", "False"], "TRAINER.COOP.CTX_INIT", ""),
    (["TRAINER.COOP.CTX_INIT", "on"], "TRAINER.COOP.CTX_INIT", "on"),
])
def test_values_of_coops(opts, key, value):
    assert leaves(build_cfg("CoOp", opts=opts))[key] == value


@pytest.mark.parametrize(("opts", "message"), [
    (["OPTIM.LR_SCHEDULER", "single_step"], "OPTIM.LR_SCHEDULER single_step in the command is not offered here: "),
    (["OPTIM.WARMUP_TYPE", "linear"], "it must be 'constant', or left out"),
    (["TEST.FINAL_MODEL", "best_val"], "TEST.FINAL_MODEL best_val in the command is not offered"),
    (["TEST.NO_TEST", "True"], "it must be False, or left out"),
    (["DATASET.SOURCE_DOMAINS", "['art']"], "is not offered here: it must be '', or left out"),
    (["MODEL.HEAD.NAME", "mlp"], "MODEL.HEAD.NAME mlp in the command is not offered here"),
    (["TRAINER.COOP.PREC", "int8"], "must be 'fp16' or 'amp' or 'fp32'"),
    (["USE_CUDA", "[1]"], "USE_CUDA [1] in the command is not offered here: it must be True or False"),
    (["INPUT.SIZE", "many"], "INPUT.SIZE in the command must be of type int"),
    (["TTA.STEPS="], "TTA.STEPS in the command must be of type int"),
    (["TRAINER.NAME", "MaPLe"], "MaPLe is not a promptcal trainer: run it in its own checkout"),
])
def test_what_is_not_offered_is_refused_by_name(opts, message):
    with pytest.raises(ConfigError) as error:
        build_cfg("CoOp", opts=opts)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_all_unknown_keys_are_named_at_once(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("TTA: {STEPZ: 3}\nFOO: {BAR: 1}\nDATASET: {SHOTS: 2}")
    with pytest.raises(ConfigError) as error:
        build_cfg("SoC", config_file=str(file), opts=["TTA.LR", 1, "OPTIM.LR", 0.1])
    assert str(error.value) == (
        f"unknown key 'TTA.STEPZ' in {file}. Did you mean 'TTA.STEPS'? unknown key 'FOO.BAR' in {file}. "
        f"unknown key 'DATASET.SHOTS' in {file}. Did you mean 'DATASET.NUM_SHOTS'? "
        f"unknown key 'TTA.LR' in the command. Did you mean 'OPTIM.LR'?")


def test_a_data_set_by_any_name(tmp_path, monkeypatch):
    """A yaml file of a checkout has only a name."""
    (tmp_path / "dtd").mkdir()  # the data set's own folder may be here
    (tmp_path / "imagenet_a.yaml").write_text('DATASET:\n  NAME: "ImageNetA"\n')
    monkeypatch.chdir(tmp_path)
    for name in ("configs/datasets/dtd.yaml", "configs/datasets/dtd", "dtd", "dtd.yaml", "DescribableTextures"):
        cfg = build_cfg("SoC", name)
        assert (cfg.DATASET.NAME, cfg.TTA.AUGMIX) == ("DescribableTextures", "on")
    for name in (str(tmp_path / "imagenet_a.yaml"), "imagenet_a"):
        assert build_cfg("SoC", name).TRAINER.SOC.LAMBDA == 14


ONE_YAML_EACH = "Leave it out: each trainer has its own yaml; see --backbone."


@pytest.mark.parametrize(("option", "name", "remedy"), [
    ("dataset_config_file", "configs/datasets/ucf01.yaml", "no such file. Did you mean 'ucf101'?"),
    ("dataset_config_file", "/", "data sets of a plugin: --plugin."),
    ("config_file", "configs/trainers/CoOp/vit_b17_ep50.yaml", ONE_YAML_EACH),
    ("config_file", "configs/trainers/Other/vit_b16_ep50.yaml", ONE_YAML_EACH),
    ("config_file", "configs/trainers/sco.yaml", "Did you mean 'soc'?"),
])
def test_a_file_that_is_not_here(option, name, remedy):
    with pytest.raises(ConfigError) as error:
        build_cfg("CoOp", **{option: name})
    assert str(error.value).startswith(f"cannot read config file {name}: ")
    assert str(error.value).endswith(remedy)


@pytest.mark.parametrize(("name", "backbone", "epochs", "words"), [
    ("vit_b16_ep100_ctxv1", "ViT-B/16", 100, "a photo of a"),
    ("vit_b32_ep50", "ViT-B/32", 50, ""),
    ("rn50", "RN50", 200, ""),
])
def test_names_of_coops_files_stand_for_their_settings(name, backbone, epochs, words, logged):
    file = f"configs/trainers/CoOp/{name}.yaml"
    cfg = build_cfg("CoOp", config_file=file)
    assert (backbone, epochs) == (cfg.MODEL.BACKBONE.NAME, cfg.OPTIM.MAX_EPOCH)
    assert (cfg.OPTIM.LR, cfg.DATALOADER.TRAIN_X.BATCH_SIZE) == (0.002, 32)
    assert words == cfg.TRAINER.COOP.CTX_INIT
    (line,) = logged.messages
    stands_for = f"by CoOp's naming it stands for MODEL.BACKBONE.NAME {backbone}"
    assert line.startswith(f"{file} is not here; {stands_for}")
    logged.clear()
    cfg = build_cfg("SoC", config_file=file)
    assert backbone == cfg.MODEL.BACKBONE.NAME
    assert cfg.OPTIM == build_cfg("SoC").OPTIM
    assert "ignored, without a meaning here" in logged.text


def test_a_file_of_that_name_is_read_and_other_trainers_files_are_refused(tmp_path, monkeypatch):
    folder = tmp_path / "configs" / "trainers" / "CoOp"
    folder.mkdir(parents=True)
    (folder / "vit_b16.yaml").write_text("OPTIM: {MAX_EPOCH: 7}\n")
    monkeypatch.chdir(tmp_path)
    cfg = build_cfg("CoOp", config_file="configs/trainers/CoOp/vit_b16.yaml")
    assert (cfg.OPTIM.MAX_EPOCH, cfg.MODEL.BACKBONE.NAME) == (7, "ViT-L/14")
    for trainer in ("CoOp", "CoCoOp"):
        with pytest.raises(ConfigError, match="CoCoOp is not a promptcal trainer"):
            build_cfg(trainer, config_file="configs/trainers/CoCoOp/vit_b16_c4_ep10_batch1.yaml")


@pytest.mark.slow
def test_scripts_for_coop_run_in_the_folder_tools(tmp_path, clip_file):
    """Commands as in CoOp's scripts, with paths of a CoOp checkout that are not here.

    The first one is typed as it stands there: `python` in PATH adds weights of the repository's tests.
    """
    data = tmp_path / "data"
    build("DescribableTextures", data)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    tiny = f"MODEL.BACKBONE.NAME {clip_file} OPTIM.MAX_EPOCH 1"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" {tiny}\n')
    python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}

    common = ["--root", data, "--dataset-config-file", "configs/datasets/dtd.yaml"]

    def accuracy_line(folder: Path) -> str:
        return f"* accuracy: {results_of(folder)['accuracy']:.2f}%"

    folder = tmp_path / "runs" / "vit_b16_ep50_1shots" / "seed1"
    command = [
        "python", "train.py", *common, "--output-dir", folder, "--seed", 1, "--trainer", "CoOp",
        "--config-file", "configs/trainers/CoOp/vit_b16_ep50.yaml",
        "TRAINER.COOP.N_CTX", 4, "TRAINER.COOP.CSC", False,
        "TRAINER.COOP.CLASS_TOKEN_POSITION", "end", "DATASET.NUM_SHOTS", 1,
    ]
    words = list(map(str, command))
    done = subprocess.run(words, cwd=PROJECT / "tools", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "by CoOp's naming it stands for MODEL.BACKBONE.NAME ViT-B/16" in done.stdout
    log = (folder / "log.txt").read_text().splitlines()
    assert accuracy_line(folder) in log[log.index("Finish training"):]

    folder = tmp_path / "zero" / "dtd"
    done = run_tool(
        "train.py", *common, "--output-dir", folder, "--trainer", "ZeroshotCLIP", "--eval-only",
        "--config-file", "configs/trainers/CoOp/vit_b16.yaml", "MODEL.BACKBONE.NAME", clip_file)
    assert done.returncode == 0, done.stderr
    log = (folder / "log.txt").read_text().splitlines()
    assert accuracy_line(folder) in log[log.index("=> result"):]
    record = json.loads((folder / "record.json").read_text())
    assert record["model"]["prompt"]["templates"] == ["{} texture."]


def test_coops_zero_shot_trainers_are_ours_with_templates(logged):
    cfg = build_cfg("ZeroshotCLIP")
    assert (cfg.TRAINER.NAME, cfg.PROMPT.TEMPLATE) == ("ZeroShot", "coop")
    assert logged.messages == ["TRAINER.NAME ZeroshotCLIP is TRAINER.NAME ZeroShot with PROMPT.TEMPLATE coop here"]
    cfg = build_cfg(opts=["TRAINER.NAME", "ZeroshotCLIP2"])
    assert (cfg.TRAINER.NAME, cfg.PROMPT.TEMPLATE) == ("ZeroShot", "ensemble")


def test_several_seeds_end_in_mean_and_deviation(tmp_path, train, coops):
    done = train("SoC", "--config-file", coops, "--output-dir", tmp_path / "runs", "--seed", 1, 2,
                 "--transforms", "random_flip", "normalize", "TTA.VIEWS=12", "TTA.SELECT", 0.25)
    out = done.stdout
    errors = []
    for seed in (1, 2):
        results = results_of(tmp_path / "runs" / f"seed{seed}")
        assert results["seed"] == seed
        errors.append(results["ece"])
    spread = f"{np.mean(errors):.2f} ± {np.std(errors, ddof=1):.2f}"
    assert re.search(rf"^SoC .*{spread}", out, re.MULTILINE)
    assert "over seeds 1, 2" in out

    # parse_test_res.py, CoOp's and MaPLe's, waits for one of these lines, then takes `* keyword: number%`.
    log = (tmp_path / "runs" / "seed2" / "log.txt").read_text()
    for signal in ("Finish training", "Finished training", "=> result"):
        after = log[log.index(f"\n{signal}\n"):]
        (printed,) = re.findall(r"^.*\* ece: ([\.\deE+-]+)%", after, re.MULTILINE)
        assert float(printed) == pytest.approx(errors[1], abs=0.01)
    assert "12 of 12 test images" in log  # logged before there is a folder
    assert re.search(r"^SoC +\d", log, re.MULTILINE)


@pytest.mark.parametrize(("pairs", "message"), [
    (["SEED", "5"], "SEED is in the settings and replaces all seeds of --seed"),
    (["OUTPUT_DIR", "runs"], "several runs would be in runs: leave TAG and OUTPUT_DIR out"),
])
def test_seeds_that_the_settings_make_one_run_are_refused(image_folder, tmp_path, monkeypatch, pairs, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        main(["--trainer", "ZeroShot", "--dataset-config-file", "image_folder", "--root",
              str(image_folder), "--backbone", "small", "--seed", "1", "2", *pairs])
    assert not (tmp_path / "output").exists() and not (tmp_path / "runs").exists()


def test_one_line_for_seeds_that_cannot_be(image_folder):
    with pytest.raises(ConfigError, match="leave --seed out"):
        main(["--seed", "1", "2", "--resume", str(image_folder)])
    for wrong in ("1,1", "x"):
        with pytest.raises(SystemExit):
            main(["--seed", wrong])


@pytest.mark.parametrize(("option", "answer"), [
    ("--trainr", r"unknown option --trainr\. Did you mean '--trainer'\?"),
    ("--steps", r"unknown option --steps\. Settings have no dashes, such as TTA\.STEPS 2;"),
    ("--load-epoch", r"argument --load-epoch: invalid int value: 'x'\."),
])
def test_a_wrong_option_gets_one_line(capsys, option, answer):
    with pytest.raises(SystemExit) as end:
        main(["--trainer", "SoC", option, "x"])
    message = capsys.readouterr().err
    assert end.value.code == 2 and message.count("\n") == 1
    assert re.match(f"error: {answer}.* See .*--help\\.\n", message), message
