"""The table of settings, and what is made of it: effective and changed settings, labels, help."""
import itertools
import logging
from contextlib import contextmanager
from pathlib import Path

import pytest
from promptcal.datasets.utils.errors import ConfigError
from promptcal.tools.train import main
from promptcal.trainers import TRAINER_REGISTRY, build_cfg
from promptcal.trainers.config.help import readme_lines
from promptcal.trainers.config.settings import (
    Range,
    Setting,
    changed_settings,
    effective_settings,
    find_setting,
    get_cfg_default,
    leaves,
    method_settings,
    retag,
    run_path,
    setting_title,
    setting_words,
)
from promptcal.trainers.config.table import TABLE
from promptcal.trainers.soc import SoC
from promptcal.trainers.tpt import TPT

README = Path(__file__).resolve().parents[1] / "trainers" / "config" / "README.md"
CLIP_PIXELS = ["INPUT.PIXEL_MEAN", [0.48145466, 0.4578275, 0.40821073],
               "INPUT.PIXEL_STD", [0.26862954, 0.26130258, 0.27577711]]
COOP_PROMPT = ["MODEL.INIT_WEIGHTS", "small-coop-4shot"]


# The table

def test_every_setting_has_one_row_with_help_and_a_default_that_is_allowed():
    rows = [row.key for row in TABLE]
    for name in TRAINER_REGISTRY:
        rows += [row.key for row in method_settings(TRAINER_REGISTRY.get(name))]
    keys = leaves(get_cfg_default())
    assert len(rows) == len(set(rows)) == len(keys)
    for key in keys:
        row = find_setting(key)
        assert row.help and "\n" not in row.help, key
        assert not row.problem(row.default), key
        assert row.canonical is None or row.canonical(row.default) == row.default, key


def test_help_settings_prints_the_table(capsys):
    main(["--help-settings"])
    shared = capsys.readouterr().out
    assert "TTA.RESET  [image]" in shared and "Allowed: auto, fp32, fp16, bf16" in shared
    assert "TRAINER.SOC.LAMBDA" not in shared and "--help-settings NAME" in shared
    main(["--help-settings", "SoC"])
    with_method = capsys.readouterr().out
    assert "TRAINER.SOC.LAMBDA  [30.0]" in with_method and "λ, weight of the penalty" in with_method
    main(["--trainer", "SoC", "--help-settings"])
    assert capsys.readouterr().out == with_method
    with pytest.raises(ConfigError, match="unknown trainer 'Sock'"):
        main(["--help-settings", "Sock"])


def test_the_readme_has_the_table():
    remedy = "write it again: python -m promptcal.trainers.config.help trainers/config/README.md"
    assert "\n".join(readme_lines()) in README.read_text(encoding="utf-8"), remedy


# What has an effect

@pytest.mark.parametrize(("trainer", "opts", "present", "absent"), [
    ("SoC", ["CACHE.DIR", "/x", "TEST.BINS", 5, "TTA.EPISODES", 2],
     ["TRAINER.SOC.LAMBDA", "TTA.STEPS", "TTA.AUGMIX"],
     ["CACHE.DIR", "TEST.BINS", "TTA.EPISODES", "DATASET.ROOT", "DATASET.NUM_SHOTS", "TEST.ORDER",
      "DATASET.SEVERITY", "PROMPT.ENSEMBLE", "INPUT.SIZE", "TTA.JACOBIAN", "TEST.PART", "DATASET.LABEL"]),
    ("ZeroShot", [], [], ["TTA.VIEWS", "TTA.STEPS", "TTA.SELECT", "TTA.AUGMIX", "OPTIM.LR", "TTA.RESET"]),
    ("VTE", [], ["TTA.VIEWS", "TTA.SELECT", "TTA.AUGMIX"], ["TTA.STEPS", "OPTIM.LR"]),
    ("MTA", [], ["TTA.VIEWS", "TTA.AUGMIX"], ["TTA.SELECT"]),
    ("TDA", [], ["TEST.ORDER"], ["TTA.VIEWS", "TTA.SELECT", "TEST.CORRELATION"]),
    ("TDA", ["TRAINER.TDA.VIEWS", "confident"], ["TTA.VIEWS", "TTA.SELECT"], ["TTA.STEPS"]),
    ("BoostAdapter", [], ["TTA.VIEWS", "TTA.SELECT"], ["OPTIM.LR"]),
    ("TPT", ["TTA.STEPS", 0], ["TTA.VIEWS"], ["TTA.SELECT", "OPTIM.LR"]),
    ("TPT", ["TTA.RESET", "never", "TEST.ORDER", "correlated"], ["TEST.ORDER", "TEST.CORRELATION"], []),
    ("TPT", COOP_PROMPT, ["MODEL.INIT_WEIGHTS"], ["PROMPT.CTX_INIT"]),
    ("CoOp", COOP_PROMPT, ["PROMPT.CTX_INIT", "DATASET.NUM_SHOTS", "OPTIM.LR"], ["TTA.VIEWS", "TTA.STEPS"]),
    ("ZeroShot", ["PROMPT.TEMPLATE", "coop"], ["PROMPT.ENSEMBLE"], ["PROMPT.CTX_INIT"]),
    ("TPT", ["TRAINER.REGULARISERS", "otpt:2"], ["TRAINER.OTPT.FORM", "TRAINER.REGULARISERS"],
     ["TRAINER.OTPT.LAMBDA", "TRAINER.SOC.LAMBDA"]),
])
def test_settings_without_an_effect_are_absent(trainer, opts, present, absent):
    settings = effective_settings(build_cfg(trainer, "dtd", opts=opts))
    assert set(present) <= settings.keys()
    assert not settings.keys() & set(absent)


def test_a_setting_without_an_effect_is_named_once_with_what_to_do(caplog):
    caplog.set_level(logging.INFO, "promptcal")
    cfg = build_cfg("SoC", "dtd", opts=["DATASET.NUM_SHOTS", 4, "TEST.ORDER", "sorted"])
    assert caplog.messages[0] == (
        "no effect with SoC: DATASET.NUM_SHOTS 4 (train with --trainer CoOp, then use its "
        "prompt with --model-dir)"
    )
    assert len(caplog.messages) == 2 and "TEST.ORDER" in caplog.messages[1]
    assert cfg.TAG == "default" and not changed_settings(cfg)
    caplog.clear()
    build_cfg("ZeroShot", "dtd", opts=["TTA.VIEWS", 16, "TTA.STEPS", 2])
    assert "only methods that tune by gradients, such as TPT, RTPT and TPS, use it" in caplog.text
    caplog.clear()
    build_cfg("CoOp", "dtd", opts=["DATASET.NUM_SHOTS", 4])
    assert "no effect" not in caplog.text
    build_cfg("TPT", "imagenet_a", opts=["TRAINER.SOC.LAMBDA", 3, "TTA.STEPS", 2])
    assert caplog.messages == ["no effect on TPT, because another method's: TRAINER.SOC.LAMBDA"]


# What a user changed

def test_changed_settings_state_the_default_of_the_data_set_and_the_value():
    opts = ["TTA.STEPS", 2, "TRAINER.SOC.LAMBDA", 30, "SEED", 4, "MODEL.BACKBONE.NAME", "RN50"]
    assert changed_settings(build_cfg("SoC", "imagenet_a", opts=opts)) == {
        "TTA.STEPS": (1, 2), "TRAINER.SOC.LAMBDA": (14.0, 30.0)}
    assert changed_settings(build_cfg("SoC", "dtd", opts=opts)) == {"TTA.STEPS": (1, 2)}
    assert changed_settings(build_cfg("ZERO", "dtd")) == {}


@pytest.mark.parametrize("opts", [
    [*CLIP_PIXELS, "INPUT.SIZE", 224],
    ["MODEL.PREC", "fp32", "DEVICE", "cpu"],
    ["MODEL.PREC", "fp16", "DEVICE", "cuda"],
    ["TTA.AUGMIX", "on", "TTA.RESET", "1"],
    ["TTA.AUGMIX", "auto"],
    ["PROMPT.CTX_INIT", "a_photo_of_a", "OPTIM.LR", "5e-3"],
    ["DATASET.LABEL", "Textures", "MODEL.BACKBONE.LABEL", "large", "PROMPT.LABEL", "words"],
    ["TTA.JACOBIAN_GB", 4.5, "TEST.SALS", False, "OPTIM.NAME", "adamw"],
])
def test_a_value_that_is_in_effect_anyway_counts_as_unset(opts):
    cfg = build_cfg("SoC", "dtd", opts=opts)
    default = build_cfg("SoC", "dtd", opts=["DEVICE", cfg.DEVICE])
    assert changed_settings(cfg) == {}
    assert effective_settings(cfg) == effective_settings(default)
    assert run_path(cfg) == run_path(default)


def test_coops_own_file_changes_nothing(tmp_path):
    """Its vit_b16.yaml states CLIP's pixels and the epochs that 16 shots have anyway."""
    file = tmp_path / "vit_b16.yaml"
    file.write_text(
        "INPUT:\n  SIZE: (224, 224)\n  PIXEL_MEAN: [0.48145466, 0.4578275, 0.40821073]\n"
        "  PIXEL_STD: [0.26862954, 0.26130258, 0.27577711]\n"
        "DATALOADER: {TRAIN_X: {BATCH_SIZE: 32}}\nMODEL: {BACKBONE: {NAME: ViT-B/16}}\n"
        "OPTIM: {NAME: sgd, LR: 0.002, MAX_EPOCH: 200, LR_SCHEDULER: cosine, WARMUP_EPOCH: 1}\n"
    )
    for trainer in ("SoC", "CoOp"):
        cfg = build_cfg(trainer, "dtd", str(file))
        default = build_cfg(trainer, "dtd", opts=["MODEL.BACKBONE.NAME", "ViT-B/16"])
        assert run_path(cfg) == run_path(default)
        assert effective_settings(cfg) == effective_settings(default)
    few_shots = build_cfg("CoOp", "dtd", str(file), opts=["DATASET.NUM_SHOTS", 4])
    assert few_shots.TAG == "NUM_SHOTS-4_MAX_EPOCH-200"


def test_what_only_model_and_data_tell_is_given_by_the_caller():
    pixels = {"INPUT.PIXEL_MEAN": [0.5, 0.5, 0.5], "INPUT.PIXEL_STD": [0.5, 0.5, 0.5]}
    given = [*itertools.chain(*pixels.items()), "TEST.LIMIT", 9000]
    backbone = ["MODEL.BACKBONE.NAME", "open_clip:A/B"]
    cfg = build_cfg("SoC", "dtd", opts=[*given, *backbone])
    resolved = {**pixels, "TEST.LIMIT": 1692}
    assert set(changed_settings(cfg)) == {*pixels, "TEST.LIMIT"}
    assert changed_settings(cfg, resolved) == {}
    default = build_cfg("SoC", "dtd", opts=backbone)
    assert effective_settings(cfg, resolved) == effective_settings(default, resolved)
    assert cfg.TAG != "default" and retag(cfg, resolved).TAG == "default"
    pilot = build_cfg("SoC", "dtd", opts=["TEST.LIMIT", 20])
    assert changed_settings(pilot, {"TEST.LIMIT": 1692}) == {"TEST.LIMIT": (0, 20)}
    chosen = build_cfg("SoC", "dtd", opts=["TEST.LIMIT", 9000, "TAG", "mine"])
    assert retag(chosen, resolved).TAG == "mine"


def test_a_file_is_stated_by_its_label_and_content(tmp_path):
    values = []
    for folder, content in (("here", "a.jpg\n"), ("there", "a.jpg\n"), ("there", "b.jpg\n")):
        path = tmp_path / folder / "list.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        cfg = build_cfg("SoC", "dtd", opts=["DATASET.IMAGE_LIST", path])
        values.append(effective_settings(cfg)["DATASET.IMAGE_LIST"])
    assert values[0] == values[1] != values[2] and values[0].startswith("list-")


def test_settings_of_a_resumed_run_are_changed_ones_beside_another_method(tmp_path):
    """Also its own: the trainer's yaml lies below."""
    tpt = build_cfg("TPT", "imagenet_a", opts=["TTA.STEPS", 2])
    (tmp_path / "config.yaml").write_text(tpt.dump())
    again = build_cfg(resume=str(tmp_path))
    assert again.TAG == tpt.TAG and effective_settings(again) == effective_settings(tpt)
    soc = build_cfg("SoC", resume=str(tmp_path))
    assert effective_settings(soc) == effective_settings(build_cfg("SoC", "imagenet_a", opts=["TTA.STEPS", 2]))
    assert changed_settings(soc) == {"TTA.STEPS": (1, 2)}


# Words

@pytest.mark.parametrize(("key", "value", "words"), [
    ("TRAINER.SOC.LAMBDA", 10.0, "λ 10"),
    ("TRAINER.SOC.DELTA", 20.0, "δ at 20 %"),
    ("TTA.STEPS", 2, "2 steps"),
    ("TTA.STEPS", 1, "1 step"),
    ("TTA.RESET", "10", "reset every 10 images"),
    ("MODEL.PREC", "bf16", "bf16 (coarse rounding)"),
    ("TTA.AUGMIX", "off", "no AugMix"),
    ("TRAINER.TDA.VIEWS", "confident", "TDA.VIEWS confident"),  # not TTA.VIEWS
    ("TRAINER.TDA.VALUES", "paper", "values tuned per set on test labels"),
    ("PROMPT.CTX_INIT", "itap of a", "“itap of a”"),
    ("TRAINER.NOBODYS.LAMBDA", 3.0, "λ 3"),
    ("TRAINER.NOBODYS.KEY", "", "KEY none"),
])
def test_words_of_a_row_label(key, value, words):
    assert setting_words(key, value) == words


def test_titles_of_sweeps():
    assert setting_title("TTA.STEPS") == "number of steps"
    assert setting_title("TRAINER.SOC.LAMBDA", "SoC and O-TPT") == "λ of SoC and O-TPT"
    assert setting_title("TRAINER.SOC.NORM") == "TRAINER.SOC.NORM"


# Methods' own settings

@contextmanager
def registered(cls: type):
    """The trainer of a class while it is registered."""
    TRAINER_REGISTRY.register()(cls)
    try:
        yield cls.__name__
    finally:
        del TRAINER_REGISTRY._classes[cls.__name__]


def test_a_method_declares_its_settings_in_its_own_branch():
    class Declared(SoC):
        settings = (Setting("STRENGTH", 3.0, "λ", allowed=Range(least=0), show="λ {}"),
                    Setting("SIZES", [1, 2], "of something"))

    with registered(Declared) as name:
        opts = ["TRAINER.DECLARED.STRENGTH", 5, "TRAINER.DECLARED.SIZES", "[3]"]
        cfg = build_cfg(name, opts=opts)
        assert changed_settings(cfg) == {
            "TRAINER.DECLARED.STRENGTH": (3.0, 5.0), "TRAINER.DECLARED.SIZES": ([1, 2], [3])}
        assert cfg.TAG == "STRENGTH-5.0_SIZES--3"
        with pytest.raises(ConfigError, match="TRAINER.DECLARED.STRENGTH is -1.0; it must be 0 or more"):
            build_cfg(name, opts=["TRAINER.DECLARED.STRENGTH", -1])
        derived_from = build_cfg(name, opts=["TRAINER.SOC.LAMBDA", 5])
        assert changed_settings(derived_from) == {"TRAINER.SOC.LAMBDA": (30.0, 5.0)}
    # BoostAdapter has α and β of its own, and none of TDA's.
    assert "TDA" not in build_cfg("BoostAdapter").TRAINER


def test_a_users_class_may_read_any_setting():
    """Whatever the class that it is derived from reads, unless it says itself what it reads."""
    class Reading(TRAINER_REGISTRY.get("ZeroShot")):
        pass

    class Declaring(TRAINER_REGISTRY.get("ZeroShot")):
        @classmethod
        def used_settings(cls, settings):
            return ("TTA.VIEWS",)

    for cls, keys in ((Reading, {"TTA.VIEWS", "TTA.STEPS"}), (Declaring, {"TTA.VIEWS"})):
        with registered(cls) as name:
            settings = effective_settings(build_cfg(name))
        assert settings.keys() & {"TTA.VIEWS", "TTA.STEPS"} == keys


def test_a_method_for_version_1_0_works_as_it_is():
    class Older(TPT):
        choices = {"TRAINER.OLDER.KIND": ("a", "b")}  # noqa: RUF012

        @classmethod
        def extend_defaults(cls, cfg):
            cfg.TRAINER.OLDER = type(cfg)({"LAMBDA": 10.0, "KIND": "a"})

        @classmethod
        def validate(cls, cfg):
            super().validate(cfg)
            if cfg.TRAINER.OLDER.LAMBDA == 13:
                raise ConfigError("unlucky")

    with registered(Older) as name:
        cfg = build_cfg(name, opts=["TRAINER.OLDER.LAMBDA", 5, "TRAINER.OLDER.KIND", "b"])
        assert cfg.TAG == "LAMBDA-5.0_KIND-b"
        for leaf, value, message in (("LAMBDA", -1, "0 or more"), ("KIND", "c", "one of a, b"),
                                     ("LAMBDA", 13, "unlucky")):
            with pytest.raises(ConfigError, match=message):
                build_cfg(name, opts=[f"TRAINER.OLDER.{leaf}", value])
