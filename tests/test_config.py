"""Where settings come from, and the messages about those that cannot work."""
from pathlib import Path

import pytest
import yaml
from promptcal.datasets import DATASET_REGISTRY
from promptcal.datasets.utils.errors import ConfigError
from promptcal.datasets.utils.files import flatten, read_yaml
from promptcal.trainers import TRAINER_REGISTRY, build_cfg
from promptcal.trainers.config.build import CONFIGS
from promptcal.trainers.config.settings import leaves, run_path
from promptcal.trainers.experiments.definition import add, read_experiment
from promptcal.trainers.experiments.plan import Workspace, expand, select


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_every_layer_overrides_the_one_before(tmp_path):
    assert build_cfg("SoC").TRAINER.SOC.LAMBDA == 30
    data = write(tmp_path / "data.yaml", "TRAINER: {SOC: {LAMBDA: 14.0, DELTA: 30.0, NORM: max, SCALE: none}}")
    extra = write(tmp_path / "extra.yaml", "TRAINER: {SOC: {DELTA: 40.0, NORM: shift, SCALE: ratio}}")
    flags = ["TRAINER.SOC.NORM", "minmax", "TRAINER.SOC.SCALE", "inverse"]
    opts = ["TRAINER.SOC.SCALE", "none"]
    soc = build_cfg("SoC", data, extra, flags=flags, opts=opts).TRAINER.SOC
    assert (soc.LAMBDA, soc.DELTA, soc.NORM, soc.SCALE) == (14, 40, "minmax", "none")
    for name, weight in (("CTPT", 20), ("OTPT", 2), ("SoC", 14)):
        assert weight == build_cfg(name, "imagenet_a").TRAINER[name.upper()].LAMBDA
    assert "CTPT" not in build_cfg("SoC", "imagenet_a").TRAINER
    # A method with views of its own has its yaml above the data set's.
    for data, opts in (("", []), ("dtd", []), ("imagenet_a", []), ("imagenet_a", ["TTA.AUGMIX", "on"])):
        cfg = build_cfg("ZERO", data, opts=opts)
        assert cfg.TTA.SELECT == 0.3
        assert (cfg.TTA.AUGMIX == "off") == (cfg.TAG == "default") == (not opts)
    assert build_cfg("MTA", "dtd").TTA.AUGMIX == "on"


def test_the_trainers_name_comes_from_the_last_layer_that_has_one(tmp_path):
    data = write(tmp_path / "data.yaml", "TRAINER: {NAME: ZeroShot}")
    # of a run
    extra = write(tmp_path / "config.yaml", build_cfg("TPT", opts=["TTA.STEPS", 3]).dump())
    for trainer, files, opts, name, steps in (
        ("", [data], [], "ZeroShot", 0),
        ("", [data, extra], [], "TPT", 3),
        ("OTPT", [data, extra], [], "OTPT", 3),
        ("OTPT", [data, extra], ["TRAINER.NAME", "SoC"], "SoC", 3),
    ):
        cfg = build_cfg(trainer, *files, opts=opts)
        assert name == cfg.TRAINER.NAME and steps == cfg.TTA.STEPS
    assert build_cfg("OTPT", resume=str(tmp_path)).TRAINER.NAME == "OTPT"


def test_the_shifted_data_sets_have_the_same_settings():
    files = ["imagenet_a", "imagenet_c", "imagenet_r", "imagenet_sketch", "imagenetv2", "landcover_shift"]
    settings = {}
    for name in files:
        values = dict(flatten(read_yaml(CONFIGS / "datasets" / f"{name}.yaml")))
        settings[name] = {key: value for key, value in values.items() if key.startswith("TRAINER.")}
    assert settings["imagenet_a"].pop("TRAINER.DPE.PREDICT") == "confident"  # the yaml says why
    for name in files:
        assert settings[name] == settings["imagenet_r"], name


def test_a_config_is_frozen_and_its_plain_yaml_reads_back_the_same(tmp_path):
    opts = ["TTA.STEPS", "2", "TAG", "010", "OPTIM.LR", 1e-5, "MODEL.BACKBONE.NAME", "1e3"]
    cfg = build_cfg("SoC", opts=opts)
    with pytest.raises(AttributeError):
        cfg.SEED = 3
    assert yaml.safe_load(cfg.dump())["TRAINER"]["NAME"] == "SoC"
    write(tmp_path / "config.yaml", cfg.dump())
    assert build_cfg(resume=str(tmp_path)) == cfg


@pytest.mark.parametrize(("key", "text", "value"), [
    ("OPTIM.LR", "1", 1.0),
    ("OPTIM.LR", "1e-3", 0.001),
    ("OPTIM.LR", 2, 2.0),
    ("SEED", "0", 0),
    ("SEED", 7, 7),
    ("SEED", "010", 10),
    ("TEST.LIMIT", "1_000", 1000),
    ("TTA.AUGMIX", "on", "on"),
    ("TTA.AUGMIX", "off", "off"),
    ("PROMPT.CTX_INIT", "10", "10"),
    ("PROMPT.CTX_INIT", "a photo of the", "a photo of the"),
    ("MODEL.BACKBONE.NAME", "123", "123"),
    ("MODEL.INIT_WEIGHTS", None, ""),
    ("DATASET.ROOT", "2024-13-45", "2024-13-45"),
])
def test_values_take_the_type_of_their_key(tmp_path, key, text, value):
    """On the command line and in a file, where yaml alone would read 010 as 8, and on and off as
    truth values."""
    group, _, leaf = key.rpartition(".")
    line = f"{leaf}: {'' if text is None else text}"
    for name in reversed(group.split(".") if group else []):
        line = f"{name}: {{{line}}}"
    file = write(tmp_path / "c.yaml", line)
    for cfg in (build_cfg("SoC", opts=[key, text]), build_cfg("SoC", config_file=file)):
        assert leaves(cfg)[key] == value and type(leaves(cfg)[key]) is type(value)
    assert build_cfg("SoC", opts=["DATASET.ROOT", Path("a/b")]).DATASET.ROOT == "a/b"


@pytest.mark.parametrize(("opts", "message"), [
    (["TTA.STEP", 2], "unknown key 'TTA.STEP' in the command. Did you mean 'TTA.STEPS'?"),
    (["OPTIM", 2], "unknown key 'OPTIM' in the command. Did you mean 'OPTIM.LR'?"),
    (["TTA.STEPS"], "'TTA.STEPS' has no value"),
    (["TTA.STEPS", 1.5], "TTA.STEPS in the command must be of type int, not 1.5"),
    (["TTA.STEPS", "many"], "must be of type int, not 'many'"),
    (["TTA.STEPS", "[" * 1000], "must be of type int"),
    (["TEST.LIMIT", "1:30"], "TEST.LIMIT in the command must be of type int, not '1:30'"),
    (["OPTIM.LR", "1:30"], "must be of type float, not '1:30'"),
    (["OPTIM.LR", 10**400], "must be of type float"),
    (["TTA.VIEWS", 10**15], "TTA.VIEWS is 1000000000000000; it must be a whole number from 1 to"),
    (["DATASET.ROOT", ["a"]], "must be of type str, not ['a']"),
    (["TRAINER.NAME", ""], "no trainer given: use --trainer with one of"),
    (["TRAINER.NAME", "[" * 1000], "unknown trainer"),  # no file has such a name
    (["OPTIM.LR", 0], "OPTIM.LR is 0.0; it must be above 0"),
    (["OPTIM.LR", "nan"], "OPTIM.LR is nan; it must be a finite number"),
    (["TTA.SELECT", 0.01], "TTA.SELECT is 0.01; it must be at least 0.0157 to keep one of 64 views"),
    (["TTA.SELECT", 1.5], "a share above 0 and up to 1"),
    (["SEED", -1], "SEED is -1; it must be 0 or more"),
    (["TRAINER.SOC.SCALE", "both"], "must be one of inverse, ratio, none"),
    (["OPTIM.NAME", "lion"],
     "OPTIM.NAME lion in the command is no longer a setting: adamw is the only optimizer here"),
    (["TEST.SALS", "True"], "is no longer a setting: the report measures SaLS for every run"),
    (["TTA.JACOBIAN_GB", 10],
     "is no longer a setting: use TTA.JACOBIAN on, which has no limit of memory, or off"),
    (["DATASET.LABEL", "   "], "without spaces at its ends"),
    (["DATASET.LABEL", "a\nb"], "it must be a name of up to 80 printable characters"),
    (["DATASET.LABEL", "Average"], "not Average"),
    (["DATASET.NAME", "UFC101"], "unknown data set 'UFC101'. Did you mean 'UCF101'?"),
    (["PROMPT.CTX_INIT", "a photo of {}"], "the class name follows"),
    (["TRAINER.NAME", "Sock"], "unknown trainer 'Sock'. Did you mean 'SoC'?"),
])
def test_bad_settings_get_one_line_with_the_remedy(opts, message):
    with pytest.raises(ConfigError) as error:
        build_cfg("SoC", opts=opts)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "text", "message"), [
    ("c.py", "import os", "is not a .yaml file; other kinds are refused because they can run code"),
    ("c.yaml", "TTA: [", "cannot read config file"),
    ("c.yaml", "TTA: !!python/object/apply:os.getcwd []", "cannot read config file"),
    ("", "", "cannot read config file nowhere.yaml: no such file"),
    ("c.yaml", "- 1", "must hold KEY: value pairs, not list"),
    ("c.yaml", "TTA: {STEPZ: 3}", "unknown key 'TTA.STEPZ'"),
    ("c.yaml", "SEED: 2024-13-45", "must be of type int, not '2024-13-45'"),
    ("c.yaml", "TEST: {LIMIT: 1:30}", "must be of type int, not '1:30'"),
    ("c.yaml", "SEED: !!int ''", "cannot read config file"),
    ("c.yaml", "[" * 1000, "cannot read config file"),
    ("c.yaml", "TRAINER: SoC", "unknown key 'TRAINER'"),
    ("c.yaml", "TTA: &a {STEPS: 1}\nOPTIM: *a", "it has aliases (*name): write the values out"),
    ("c.yaml", "TRAINER: {NAME: [a]}", "TRAINER.NAME in"),
    ("c.yaml", "TTA: {VIEWS: 8}\nSEED: 1\nTTA: {STEPS: 2}", ": 'TTA' is there twice, in lines 1 and 3"),
    ("c.yaml", "TTA.STEPS: 1\nTTA: {STEPS: 2}", "it has a key twice, as one name with dots and in a group"),
    ("c.yaml", "TTA:\n  STEPS: 1\n  VIEWS: 8\n  STEPS: 2", "'STEPS' is there twice, in lines 2 and 4"),
])
@pytest.mark.parametrize("trainer", ["SoC", ""])
def test_bad_config_files(tmp_path, trainer, name, text, message):
    file = write(tmp_path / name, text) if name else "nowhere.yaml"
    with pytest.raises(ConfigError) as error:
        build_cfg(trainer, config_file=file)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("views", [1, 49, 333])
def test_the_smallest_share_that_is_suggested_works(views):
    with pytest.raises(ConfigError) as error:
        build_cfg("SoC", opts=["TTA.VIEWS", views, "TTA.SELECT", 1e-9])
    share = float(str(error.value).split("at least ")[1].split()[0])
    assert build_cfg("SoC", opts=["TTA.VIEWS", views, "TTA.SELECT", share])


def test_every_shipped_yaml_merges_and_every_trainer_has_one():
    for name in TRAINER_REGISTRY:
        assert (CONFIGS / "trainers" / f"{name.lower()}.yaml").is_file(), name
    for path in (CONFIGS / "datasets").glob("*.yaml"):
        corruption = "fog" if path.stem.endswith("_c") else ""
        cfg = build_cfg("SoC", str(path), opts=["DATASET.CORRUPTION", corruption])
        assert cfg.DATASET.NAME in DATASET_REGISTRY and cfg.TTA.AUGMIX in ("on", "off")


@pytest.mark.parametrize(("spelling", "name"), [
    ("soc", "SoC"), ("O-TPT", "OTPT"), ("c_tpt", "CTPT"), ("zero-shot", "ZeroShot"), ("SoC", "SoC"),
])
def test_methods_are_known_in_any_spelling(spelling, name, caplog):
    with caplog.at_level("INFO"):
        cfg = build_cfg(spelling, "dtd", opts=["TRAINER.SOC.LAMBDA", 30.0])
    assert name == cfg.TRAINER.NAME
    assert cfg.TAG == "default" and run_path(cfg).parts[2] == name
    assert (f"trainer {spelling} is {name}" in caplog.text) == (spelling != name)


def test_experiments_take_any_spelling(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("title: t\nlayout: results\nbackbones: [small]\ndatasets: [landcover]\n"
                    "runs:\n  - methods: [soc, O-TPT]\n")
    runs = expand(add(read_experiment(str(file)), ["c_tpt", "o-tpt"]), Workspace())
    assert [run.method for run in runs] == ["SoC", "OTPT", "CTPT"]
    assert [run.method for run in select(runs, ["o_tpt"])] == ["OTPT"]
