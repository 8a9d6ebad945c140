"""Where settings come from, and what is said about those that cannot work."""
from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from promptcal.datasets import DATASET_REGISTRY
from promptcal.datasets.utils.errors import ConfigError, UnknownNameError
from promptcal.datasets.utils.registry import Registry
from promptcal.trainers import TRAINER_REGISTRY, build_cfg
from promptcal.trainers.config.build import CONFIGS
from promptcal.trainers.config.defaults import get_cfg_default
from promptcal.trainers.config.fingerprint import run_path
from promptcal.trainers.config.roles import leaves


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_every_layer_overrides_the_one_before(tmp_path: Path):
    assert build_cfg("SoC").TRAINER.SOC.LAMBDA == 30
    data = write(tmp_path / "data.yaml", "TRAINER: {SOC: {LAMBDA: 14.0, DELTA: 30.0, NORM: max, SCALE: none}}")
    extra = write(tmp_path / "extra.yaml", "TRAINER: {SOC: {DELTA: 40.0, NORM: shift, SCALE: ratio}}")
    flags, opts = ["TRAINER.SOC.NORM", "minmax", "TRAINER.SOC.SCALE", "inverse"], ["TRAINER.SOC.SCALE", "none"]
    cfg = build_cfg("SoC", str(data), str(extra), flags=flags, opts=opts)
    soc = cfg.TRAINER.SOC
    assert (soc.LAMBDA, soc.DELTA, soc.NORM, soc.SCALE) == (14, 40, "minmax", "none")


def test_the_trainers_name_comes_from_the_last_layer_that_has_one(tmp_path: Path):
    data = write(tmp_path / "data.yaml", "TRAINER: {NAME: ZeroShot}")
    extra = write(tmp_path / "config.yaml", build_cfg("TPT", opts=["TTA.STEPS", 3]).dump())  # a run's own, used again
    for trainer, files, opts, name, steps in (
        ("", [data], [], "ZeroShot", 0),
        ("", [data, extra], [], "TPT", 3),
        ("OTPT", [data, extra], [], "OTPT", 3),
        ("OTPT", [data, extra], ["TRAINER.NAME", "SoC"], "SoC", 3),
        ("ZeroShot", [], ["TRAINER.NAME", "SoC"], "SoC", 1),
        ("", [], ["TRAINER.NAME", "ZeroShot"], "ZeroShot", 0),
    ):
        cfg = build_cfg(trainer, *map(str, files), opts=opts)
        assert name == cfg.TRAINER.NAME and steps == cfg.TTA.STEPS
    assert build_cfg("OTPT", resume=str(tmp_path)).TRAINER.NAME == "OTPT"
    assert build_cfg(resume=str(tmp_path)).TTA.STEPS == 3
    with pytest.raises(ConfigError, match="unknown trainer 'Sock'"):
        build_cfg("ZeroShot", opts=["TRAINER.NAME", "Sock"])


def test_the_trainers_own_yaml_is_always_read():
    assert build_cfg("ZeroShot").TTA.STEPS == 0
    assert build_cfg("TPT").TTA.STEPS == 1


def test_shift_sets_lower_lambda_for_every_method():
    cfg = build_cfg("SoC", "configs/datasets/imagenet_a.yaml")
    assert (cfg.TRAINER.CTPT.LAMBDA, cfg.TRAINER.OTPT.LAMBDA, cfg.TRAINER.SOC.LAMBDA) == (20, 2, 14)


def test_a_config_is_frozen_and_reads_back_the_same(tmp_path: Path):
    cfg = build_cfg("SoC", opts=["TTA.STEPS", "2", "TAG", "mine"])
    with pytest.raises(AttributeError):
        cfg.SEED = 3
    write(tmp_path / "config.yaml", cfg.dump())
    assert build_cfg(resume=str(tmp_path)) == cfg


@pytest.mark.parametrize(("key", "text", "value"), [
    ("OPTIM.LR", "1", 1.0), ("OPTIM.LR", "1e-3", 0.001), ("OPTIM.LR", 2, 2.0), ("SEED", "0", 0), ("SEED", 7, 7),
    ("TTA.AUGMIX", "on", "on"), ("TTA.AUGMIX", "off", "off"), ("TEST.SALS", "True", True), ("TEST.SALS", "true", True),
    ("PROMPT.CTX_INIT", "a photo of the", "a photo of the"), ("MODEL.BACKBONE.NAME", "123", "123"),
    ("PROMPT.CTX_INIT", "10", "10"), ("MODEL.INIT_WEIGHTS", None, ""), ("DATASET.ROOT", Path("a/b"), "a/b"),
    ("DATASET.ROOT", "2024-13-45", "2024-13-45"),
])
def test_values_take_the_type_of_their_key(key: str, text: object, value: object):
    found = leaves(build_cfg("SoC", opts=[key, text]))[key]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(("opts", "message"), [
    (["TTA.STEP", 2], "unknown key 'TTA.STEP' in the command. Did you mean 'TTA.STEPS'?"),
    (["TTA.STEPS.MORE", 2], "unknown key"),
    (["OPTIM", 2], "OPTIM is a group of keys; give one of OPTIM.NAME"),
    (["TTA.STEPS"], "'TTA.STEPS' has no partner"),
    (["TTA.STEPS", 1.5], "TTA.STEPS in the command must be of type int, not 1.5"),
    (["TTA.STEPS", "many"], "must be of type int, not 'many'"),
    (["TTA.STEPS", "True"], "must be of type int, not True"),
    (["TEST.SALS", 1], "must be of type bool"),
    (["OPTIM.LR", "fast"], "must be of type float, not 'fast'"),
    (["OPTIM.LR", "2024-13-45"], "must be of type float, not '2024-13-45'"),
    (["OPTIM.LR", 10**400], "must be of type float"),
    (["TTA.STEPS", "0x_"], "must be of type int, not '0x_'"),
    (["TTA.STEPS", "[" * 1000], "must be of type int"),
    (["DATASET.ROOT", ["a"]], "must be of type str, not ['a']"),
    (["OPTIM.LR", 0], "OPTIM.LR is 0.0; it must be above 0"),
    (["OPTIM.LR", "nan"], "OPTIM.LR is nan; it must be a finite number"),
    (["TTA.STEPS", -1], "TTA.STEPS is -1; it must be 0 (zero-shot) or more"),
    (["TTA.SELECT", 0.01], "TTA.SELECT is 0.01; it must be at least 0.0157 to keep one of 64 views"),
    (["TTA.SELECT", 1.5], "a share above 0 and up to 1"),
    (["SEED", -1], "SEED is -1; it must be 0 or more"),
    (["MODEL.PREC", "fp8"], "must be one of auto, fp32, fp16, bf16"),
    (["TRAINER.SOC.DELTA", 120], "a percentile from 0 to 100"),
    (["TRAINER.SOC.SCALE", "both"], "must be one of inverse, ratio, none"),
    (["OPTIM.NAME", "lion"], "must be one of adamw"),
    (["DATASET.NAME", "UFC101"], "unknown data set 'UFC101'. Did you mean 'UCF101'?"),
    (["PROMPT.CTX_INIT", " "], "at least one word"),
    (["PROMPT.CTX_INIT", "a photo of {}"], "the class name follows"),
])
def test_bad_settings_get_one_line_with_the_remedy(opts: list, message: str):
    with pytest.raises(ConfigError) as error:
        build_cfg("SoC", opts=opts)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "text", "message"), [
    ("c.py", "import os", "is not a .yaml file; other kinds are refused because they can run code"),
    ("c.yaml", "TTA: [", "is not plain yaml"),
    ("c.yaml", "TTA: !!python/object/apply:os.getcwd []", "is not plain yaml"),
    ("c.yaml", "- 1", "must hold KEY: value pairs, not list"),
    ("c.yaml", "TTA: 3", "TTA in"),
    ("c.yaml", "TTA: {STEPZ: 3}", "unknown key 'TTA.STEPZ'"),
    ("c.yaml", "SEED: 2024-13-45", "is not plain yaml: month must be in 1..12"),
    ("c.yaml", "SEED: 0x_", "is not plain yaml"),
    ("c.yaml", "SEED: !!int ''", "is not plain yaml"),
    ("c.yaml", "[" * 1000, "is not plain yaml"),
    ("c.yaml", "TRAINER: SoC", "is a group of keys, not a value"),
    ("c.yaml", "TRAINER: {NAME: [a]}", "TRAINER.NAME in"),
])
@pytest.mark.parametrize("trainer", ["SoC", ""])
def test_bad_config_files(tmp_path: Path, trainer: str, name: str, text: str, message: str):
    with pytest.raises(ConfigError) as error:
        build_cfg(trainer, config_file=str(write(tmp_path / name, text)))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_nothing_is_empty_text_and_not_the_word_none(tmp_path: Path):
    file = write(tmp_path / "c.yaml", "OUTPUT_DIR: null\nMODEL: {INIT_WEIGHTS: }")
    cfg = build_cfg("SoC", config_file=str(file))
    assert (cfg.OUTPUT_DIR, cfg.MODEL.INIT_WEIGHTS) == ("", "")


@pytest.mark.parametrize("views", [1, 3, 7, 49, 64, 333, 1000, 4096])
def test_the_smallest_share_that_is_suggested_works(views: int):
    with pytest.raises(ConfigError) as error:
        build_cfg("SoC", opts=["TTA.VIEWS", views, "TTA.SELECT", 1e-9])
    share = float(str(error.value).split("at least ")[1].split()[0])
    assert build_cfg("SoC", opts=["TTA.VIEWS", views, "TTA.SELECT", share])


def test_a_missing_config_file():
    with pytest.raises(ConfigError, match="cannot read config file nowhere.yaml: No such file"):
        build_cfg("SoC", config_file="nowhere.yaml")


def test_unknown_and_missing_trainer():
    with pytest.raises(UnknownNameError, match="unknown trainer 'SOC'. Did you mean 'SoC'\\? Known: .*ZeroShot"):
        build_cfg("SOC")
    with pytest.raises(ConfigError, match="no trainer given: use --trainer with one of"):
        build_cfg()


def test_every_shipped_yaml_merges_and_every_trainer_has_one():
    for name in TRAINER_REGISTRY:
        assert (CONFIGS / "trainers" / f"{name.lower()}.yaml").is_file(), name
    for path in (CONFIGS / "datasets").glob("*.yaml"):
        cfg = build_cfg("SoC", str(path))
        assert cfg.DATASET.NAME in DATASET_REGISTRY and cfg.TTA.AUGMIX in ("on", "off")


def test_every_key_is_explained():
    """The defaults are the manual: each key stands on a line with a comment."""
    files = (CONFIGS.parent / "trainers").rglob("*.py")
    source = "".join(path.read_text(encoding="utf-8") for path in files).replace(" own.", " cfg.TRAINER.COOP.")
    for key in leaves(get_cfg_default()):
        lines = [line for line in source.splitlines() if line.strip().startswith(f"cfg.{key} = ")]
        assert any("  # " in line for line in lines), key


def test_run_folders_tell_settings_apart():
    data = "configs/datasets/ucf101.yaml"
    assert str(run_path(build_cfg("SoC", data))) == "output/UCF101/SoC/ViT-L-14/default/seed0"
    other = build_cfg("SoC", data, opts=["TTA.STEPS", 2, "SEED", 3, "TRAINER.CTPT.LAMBDA", 1])
    assert str(run_path(other)) == "output/UCF101/SoC/ViT-L-14/STEPS-2/seed3"
    assert str(run_path(build_cfg("SoC", data, flags=["OUTPUT_DIR", "here"]))) == "here"
    assert run_path(build_cfg("SoC", data, opts=["TEST.BINS", 10])) == run_path(build_cfg("SoC", data))


def test_registry_refuses_a_name_twice_and_shows_itself():
    registry = Registry("thing")

    @registry.register()
    class One:
        pass

    with pytest.raises(KeyError, match="registered twice"):
        registry.register()(One)
    assert registry.get("One") is One and "One" in registry and len(registry) == 1
    assert "thing" in repr(registry) and "One" in repr(registry)


def test_dumped_config_is_plain_yaml():
    assert yaml.safe_load(build_cfg("SoC").dump())["TRAINER"]["NAME"] == "SoC"
