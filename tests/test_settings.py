"""The table of settings, and what is made of it: effective and changed settings, labels, help."""
import itertools
import logging
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
    without_effect,
)
from promptcal.trainers.config.table import TABLE
from promptcal.trainers.soc import SoC
from promptcal.trainers.tpt import TPT
from promptcal.trainers.vlm.loading import find_loader

README = Path(__file__).resolve().parents[1] / "trainers" / "config" / "README.md"
CLIP_PIXELS = ["INPUT.PIXEL_MEAN", [0.48145466, 0.4578275, 0.40821073],
               "INPUT.PIXEL_STD", [0.26862954, 0.26130258, 0.27577711]]


def all_rows() -> dict[str, Setting]:
    return {key: find_setting(key) for key in leaves(get_cfg_default())}


# The table

def test_every_setting_has_one_row_with_help_and_a_default_that_is_allowed():
    rows = [row.key for row in TABLE]
    for name in TRAINER_REGISTRY:
        rows += [row.key for row in method_settings(TRAINER_REGISTRY.get(name))]
    assert len(rows) == len(set(rows)) == len(leaves(get_cfg_default()))
    for key, row in all_rows().items():
        assert row.help and "\n" not in row.help, key
        assert not row.problem(row.default), key
        assert row.canonical is None or row.canonical(row.default) == row.default, key


@pytest.mark.parametrize("name", ["ViT-B/16", "small", "/somewhere/clip.pt"])
def test_backbones_without_a_prefix_have_openais_pixels(name):
    module, _ = find_loader(name)
    assert module is None
    assert (
        changed_settings(build_cfg("SoC", opts=[*CLIP_PIXELS, "MODEL.BACKBONE.NAME", name])) == {}
    )


def test_a_default_that_is_a_list_is_not_shared():
    get_cfg_default([]).INPUT.PIXEL_MEAN.append(1.0)
    assert get_cfg_default([]).INPUT.PIXEL_MEAN == []


# What has an effect

def test_effective_settings_are_those_that_the_predictions_depend_on():
    settings = effective_settings(
        build_cfg("SoC", "dtd", opts=["CACHE.DIR", "/x", "TEST.BINS", 5, "TTA.EPISODES", 2])
    )
    assert settings["TRAINER.SOC.LAMBDA"] == 30.0 and settings["TTA.STEPS"] == 1
    assert settings["TTA.AUGMIX"] == "on" and settings["DATASET.NAME"] == "DescribableTextures"
    for key in (
        "CACHE.DIR", "TEST.BINS", "TTA.EPISODES", "DATASET.ROOT", "DATASET.NUM_SHOTS",
        "TEST.ORDER", "DATASET.SEVERITY", "PROMPT.ENSEMBLE", "INPUT.SIZE", "TTA.JACOBIAN",
        "TEST.PART", "DATASET.LABEL",
    ):
        assert key not in settings, key


@pytest.mark.parametrize(("trainer", "opts", "present", "absent"), [
    ("ZeroShot", [], [],
     ["TTA.VIEWS", "TTA.STEPS", "TTA.SELECT", "TTA.AUGMIX", "OPTIM.LR", "TTA.RESET"]),
    ("VTE", [], ["TTA.VIEWS", "TTA.SELECT", "TTA.AUGMIX"], ["TTA.STEPS", "OPTIM.LR"]),
    ("MTA", [], ["TTA.VIEWS", "TTA.AUGMIX"], ["TTA.SELECT"]),
    ("TDA", [], ["TEST.ORDER"], ["TTA.VIEWS", "TTA.SELECT", "TEST.CORRELATION"]),
    ("TDA", ["TRAINER.TDA.VIEWS", "confident"], ["TTA.VIEWS", "TTA.SELECT"], ["TTA.STEPS"]),
    ("BoostAdapter", [], ["TTA.VIEWS", "TTA.SELECT"], ["OPTIM.LR"]),
    ("TPT", ["TTA.STEPS", 0], ["TTA.VIEWS"], ["TTA.SELECT", "OPTIM.LR"]),
    ("TPT", ["TTA.RESET", "never", "TEST.ORDER", "correlated"],
     ["TEST.ORDER", "TEST.CORRELATION"], []),
    ("TPT", ["MODEL.INIT_WEIGHTS", "small-coop-4shot"], ["MODEL.INIT_WEIGHTS"],
     ["PROMPT.CTX_INIT"]),
    ("CoOp", ["MODEL.INIT_WEIGHTS", "small-coop-4shot"],
     ["PROMPT.CTX_INIT", "DATASET.NUM_SHOTS", "OPTIM.LR"], ["TTA.VIEWS", "TTA.STEPS"]),
    ("ZeroShot", ["PROMPT.TEMPLATE", "coop"], ["PROMPT.ENSEMBLE"], ["PROMPT.CTX_INIT"]),
    ("TPT", ["TRAINER.REGULARISERS", "otpt:2"],
     ["TRAINER.OTPT.FORM", "TRAINER.REGULARISERS"],
     ["TRAINER.OTPT.LAMBDA", "TRAINER.SOC.LAMBDA"]),
])
def test_settings_without_an_effect_are_absent(trainer, opts, present, absent):
    settings = effective_settings(build_cfg(trainer, opts=opts))
    assert set(present) <= settings.keys()
    assert not settings.keys() & set(absent)


def test_a_setting_without_an_effect_is_named_once_with_what_to_do(caplog):
    caplog.set_level(logging.INFO, "promptcal")
    cfg = build_cfg("SoC", "dtd", opts=["DATASET.NUM_SHOTS", 4, "TEST.ORDER", "sorted"])
    assert caplog.messages[0] == (
        "no effect with SoC: DATASET.NUM_SHOTS 4 (train with --trainer CoOp, then use its "
        "prompt with --model-dir)"
    )
    assert [key for key, _ in without_effect(cfg)] == ["DATASET.NUM_SHOTS", "TEST.ORDER"]
    assert len(caplog.messages) == 2
    assert cfg.TAG == "default" and not changed_settings(cfg)
    caplog.clear()
    build_cfg("ZeroShot", "dtd", opts=["TTA.VIEWS", 16, "TTA.STEPS", 2])
    assert "only methods that tune by gradients, such as TPT, RTPT and TPS, use it" in caplog.text
    caplog.clear()
    build_cfg("CoOp", "dtd", opts=["DATASET.NUM_SHOTS", 4])
    assert "no effect" not in caplog.text


def test_a_users_class_may_read_any_setting():
    """Whatever the class that it is derived from reads, unless it says itself what it reads."""
    class Reading(TRAINER_REGISTRY.get("ZeroShot")):
        pass

    class Declaring(TRAINER_REGISTRY.get("ZeroShot")):
        @classmethod
        def used_settings(cls, settings):
            return ("TTA.VIEWS",)

    for cls, keys in ((Reading, {"TTA.VIEWS", "TTA.STEPS"}), (Declaring, {"TTA.VIEWS"})):
        with registered(cls):
            settings = effective_settings(build_cfg(cls.__name__))
        assert settings.keys() & {"TTA.VIEWS", "TTA.STEPS"} == keys


def test_the_settings_of_training_have_no_effect_where_a_finished_prompt_is_tested():
    opts = [
        "MODEL.INIT_WEIGHTS", "small-coop-4shot", "DATASET.NUM_SHOTS", 4, "OPTIM.LR", 0.1,
        "PROMPT.CTX_INIT", "a",
    ]
    cfg = build_cfg("CoOp", "dtd", opts=opts)
    assert {"DATASET.NUM_SHOTS", "OPTIM.LR", "PROMPT.CTX_INIT"} < changed_settings(cfg).keys()
    assert changed_settings(cfg, trains=False).keys() == {"MODEL.INIT_WEIGHTS", "PROMPT.CTX_INIT"}
    assert "TRAINER.COOP.N_CTX" not in effective_settings(cfg, trains=False)
    assert effective_settings(build_cfg("SoC"), trains=False) == effective_settings(
        build_cfg("SoC")
    )


# What a user changed

def test_changed_settings_state_the_default_of_the_data_set_and_the_value():
    opts = ["TTA.STEPS", 2, "TRAINER.SOC.LAMBDA", 30, "SEED", 4, "MODEL.BACKBONE.NAME", "RN50"]
    assert changed_settings(build_cfg("SoC", "imagenet_a", opts=opts)) == {
        "TTA.STEPS": (1, 2), "TRAINER.SOC.LAMBDA": (14.0, 30.0)}
    assert changed_settings(build_cfg("SoC", "dtd", opts=opts)) == {"TTA.STEPS": (1, 2)}
    assert changed_settings(build_cfg("ZERO", "dtd")) == {}


@pytest.mark.parametrize("opts", [
    CLIP_PIXELS,
    ["MODEL.PREC", "fp32", "DEVICE", "cpu"],
    ["MODEL.PREC", "fp16", "DEVICE", "cuda"],
    ["TTA.AUGMIX", "on"],
    ["TTA.AUGMIX", "auto"],
    ["TTA.RESET", "1"],
    ["INPUT.SIZE", 224],
    ["PROMPT.CTX_INIT", "a_photo_of_a"],
    ["OPTIM.LR", "5e-3"],
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
    same_pixels = list(itertools.chain(*pixels.items()))
    cfg = build_cfg(
        "SoC", "dtd",
        opts=[*same_pixels, "TEST.LIMIT", 9000, "MODEL.BACKBONE.NAME", "open_clip:A/B"],
    )
    resolved = {**pixels, "TEST.LIMIT": 1692}
    assert set(changed_settings(cfg)) == {*pixels, "TEST.LIMIT"}
    assert changed_settings(cfg, resolved) == {}
    default = build_cfg("SoC", "dtd", opts=["MODEL.BACKBONE.NAME", "open_clip:A/B"])
    assert effective_settings(cfg, resolved) == effective_settings(default, resolved)
    assert cfg.TAG != "default" and retag(cfg, resolved).TAG == "default"
    pilot = build_cfg("SoC", "dtd", opts=["TEST.LIMIT", 20])
    assert changed_settings(pilot, {"TEST.LIMIT": 1692}) == {"TEST.LIMIT": (0, 20)}
    chosen = build_cfg("SoC", "dtd", opts=["TEST.LIMIT", 9000, "TAG", "mine"])
    assert retag(chosen, resolved).TAG == "mine"


def test_a_file_is_stated_by_its_label_and_content(tmp_path):
    values = []
    for folder in ("here", "there"):
        path = tmp_path / folder / "list.txt"
        path.parent.mkdir()
        path.write_text("a.jpg\n")
        cfg = build_cfg("SoC", "dtd", opts=["DATASET.IMAGE_LIST", path])
        values.append(
            (effective_settings(cfg)["DATASET.IMAGE_LIST"],
             changed_settings(cfg)["DATASET.IMAGE_LIST"])
        )
    assert values[0] == values[1] and values[0][0].startswith("list-")
    path.write_text("b.jpg\n")
    assert effective_settings(cfg)["DATASET.IMAGE_LIST"] != values[0][0]
    weights = build_cfg("SoC", opts=["MODEL.BACKBONE.NAME", tmp_path / "clip.pt"])
    assert str(tmp_path) not in str(effective_settings(weights).values())


def test_terms_in_another_order_and_spelling_are_the_same():
    first, second = (effective_settings(build_cfg("TPT", opts=["TRAINER.REGULARISERS", terms]))
                     for terms in ("C-TPT:50, otpt:2", "otpt:2.0,ctpt:50"))
    assert first == second


def test_the_baseline_survives_copies_and_is_found_for_a_users_own_config():
    cfg = build_cfg("SoC", "imagenet_a", opts=["TRAINER.SOC.LAMBDA", 30])
    assert changed_settings(cfg.clone()) == changed_settings(cfg)
    tree = get_cfg_default()
    tree.TRAINER.NAME = "SoC"
    tree.DATASET.NAME = "ImageNetA"
    assert changed_settings(tree) == {"TRAINER.SOC.LAMBDA": (14.0, 30.0)}
    assert "TRAINER.CTPT.LAMBDA" not in effective_settings(tree)


def test_a_resumed_run_has_its_tag_and_the_same_effective_settings(tmp_path):
    cfg = build_cfg("SoC", "dtd", opts=["TTA.STEPS", 2])
    (tmp_path / "config.yaml").write_text(cfg.dump())
    again = build_cfg(resume=str(tmp_path))
    assert again.TAG == cfg.TAG and effective_settings(again) == effective_settings(cfg)
    assert changed_settings(again) == changed_settings(cfg) == {"TTA.STEPS": (1, 2)}


def test_settings_of_a_resumed_run_are_changed_ones_beside_another_method(tmp_path):
    """Also its own: the trainer's yaml lies below."""
    tpt = build_cfg("TPT", "imagenet_a", opts=["TTA.STEPS", 2])
    (tmp_path / "config.yaml").write_text(tpt.dump())
    soc = build_cfg("SoC", resume=str(tmp_path))
    assert effective_settings(soc) == effective_settings(
        build_cfg("SoC", "imagenet_a", opts=["TTA.STEPS", 2]))
    assert changed_settings(soc) == {"TTA.STEPS": (1, 2)}


# Words

@pytest.mark.parametrize(("key", "value", "words"), [
    ("TRAINER.SOC.LAMBDA", 10.0, "λ 10"),
    ("TRAINER.SOC.DELTA", 20.0, "δ at 20 %"),
    ("TTA.STEPS", 2, "2 steps"),
    ("TTA.STEPS", 1, "1 step"),
    ("TTA.VIEWS", 16, "16 views"),
    ("TTA.RESET", "never", "never reset"),
    ("TTA.RESET", "10", "reset every 10 images"),
    ("TTA.RESET", "image", "reset for each image"),
    ("DATASET.NUM_SHOTS", 4, "4 shots"),
    ("MODEL.PREC", "bf16", "bf16 (coarse rounding)"),
    ("TTA.AUGMIX", "off", "no AugMix"),
    ("TRAINER.SOC.STATS", "flow", "STATS flow"),
    ("TRAINER.TDA.VIEWS", "confident", "TDA.VIEWS confident"),
    ("TRAINER.FPP.STEPS", 300, "FPP.STEPS 300"),
    ("TRAINER.TDA.VALUES", "paper", "values tuned per set on test labels"),
    ("PROMPT.CTX_INIT", "itap of a", "“itap of a”"),
    ("TRAINER.NOBODYS.LAMBDA", 3.0, "λ 3"),
    ("TRAINER.NOBODYS.KEY", "", "KEY none"),
    ("OPTIM.MAX_EPOCH", 7, "MAX_EPOCH 7"),
    ("TEST.CORRELATION", 0.5, "γ 0.5"),
])
def test_words_of_a_row_label(key, value, words):
    assert setting_words(key, value) == words


def test_titles_of_sweeps():
    assert setting_title("TTA.STEPS") == "number of steps"
    assert setting_title("TRAINER.SOC.LAMBDA", "SoC and O-TPT") == "λ of SoC and O-TPT"
    assert setting_title("TRAINER.SOC.NORM") == "TRAINER.SOC.NORM"


@pytest.mark.parametrize(("allowed", "words"), [
    (Range(least=0), "0 or more"),
    (Range(above=0), "above 0"),
    (Range(least=0, most=1), "from 0 to 1"),
    (Range(above=0, most=1), "above 0 and at most 1"),
    (Range(least=0, below=1), "from 0 to below 1"),
    (Range(most=5), "at most 5"),
    (Range(above=0, below=1), "above 0 and below 1"),
])
def test_words_of_a_range(allowed, words):
    assert allowed.words == words


# Methods' own settings

class registered:
    """Registers a class for the duration of a block."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __enter__(self) -> None:
        TRAINER_REGISTRY.register()(self.cls)

    def __exit__(self, *error: object) -> None:
        del TRAINER_REGISTRY._classes[self.cls.__name__]


def test_a_method_declares_its_settings_in_its_own_branch():
    class Declared(TPT):
        settings = (Setting("LAMBDA", 3.0, "λ", allowed=Range(least=0), show="λ {}"),
                    Setting("SIZES", [1, 2], "of something"))

    with registered(Declared):
        cfg = build_cfg(
            "Declared", opts=["TRAINER.DECLARED.LAMBDA", 5, "TRAINER.DECLARED.SIZES", "[3]"]
        )
        assert changed_settings(cfg) == {
            "TRAINER.DECLARED.LAMBDA": (3.0, 5.0), "TRAINER.DECLARED.SIZES": ([1, 2], [3]),
        }
        assert cfg.TAG == "LAMBDA-5.0_SIZES--3"
        with pytest.raises(
            ConfigError, match="TRAINER.DECLARED.LAMBDA is -1.0; it must be 0 or more"
        ):
            build_cfg("Declared", opts=["TRAINER.DECLARED.LAMBDA", -1])


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

    with registered(Older):
        cfg = build_cfg("Older", opts=["TRAINER.OLDER.LAMBDA", 5, "TRAINER.OLDER.KIND", "b"])
        assert cfg.TAG == "LAMBDA-5.0_KIND-b"
        refused = (
            ("LAMBDA", -1, "0 or more"),
            ("KIND", "c", "one of a, b"),
            ("LAMBDA", 13, "unlucky"),
        )
        for leaf, value, message in refused:
            with pytest.raises(ConfigError, match=message):
                build_cfg("Older", opts=[f"TRAINER.OLDER.{leaf}", value])


def test_a_method_derived_from_another_has_its_settings_too():
    class Derived(SoC):
        settings = (Setting("EXTRA", 1.0, "of its own"),)

    with registered(Derived):
        cfg = build_cfg("Derived", opts=["TRAINER.SOC.LAMBDA", 5, "TRAINER.DERIVED.EXTRA", 2])
        assert changed_settings(cfg) == {
            "TRAINER.DERIVED.EXTRA": (1.0, 2.0), "TRAINER.SOC.LAMBDA": (30.0, 5.0),
        }
    # BoostAdapter has α and β of its own, and none of TDA's.
    assert "TDA" not in build_cfg("BoostAdapter").TRAINER


# Help

def test_help_settings_prints_the_table(capsys):
    main(["--help-settings"])
    shared = capsys.readouterr().out
    assert "TTA.RESET  [image]" in shared and "Allowed: auto, fp32, fp16, bf16" in shared
    assert "TRAINER.SOC.LAMBDA" not in shared and "--help-settings NAME" in shared
    main(["--help-settings", "SoC"])
    with_method = capsys.readouterr().out
    assert "TRAINER.SOC.LAMBDA  [30.0]" in with_method and "λ, weight of the penalty; the paper uses 14" in with_method
    main(["--trainer", "SoC", "--help-settings"])
    assert capsys.readouterr().out == with_method
    with pytest.raises(ConfigError, match="unknown trainer 'Sock'"):
        main(["--help-settings", "Sock"])


def test_the_readme_has_the_table():
    text = README.read_text(encoding="utf-8")
    tables = "\n".join(readme_lines())
    assert tables in text, (
        "write it again: python -m promptcal.trainers.config.help trainers/config/README.md"
    )
