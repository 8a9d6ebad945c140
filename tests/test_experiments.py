"""Experiments as data: what their files hold, and which runs they expand into."""
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from promptcal.datasets.utils.errors import ConfigError, UnknownNameError, UserError
from promptcal.trainers.experiments import layouts
from promptcal.trainers.experiments.definition import ORDER, names, parse_experiment, read_experiment
from promptcal.trainers.experiments.plan import Place, expand, select
from promptcal.trainers.experiments.reproduce import make_plans, read_experiments
from promptcal.trainers.experiments.runner import in_order
from promptcal.trainers.report import published

# What CLIP's notebook of prompts lists for CIFAR.
TEMPLATES = [
    f"a {kind}photo of {article} {size}{{}}."
    for article in ("a", "the")
    for kind, size in [
        *((f"{word} " if word else "", "") for word in
          ("", "blurry", "black and white", "low contrast", "high contrast", "bad", "good")),
        ("", "small "), ("", "big "),
    ]
]


@pytest.mark.parametrize(("place", "message"), [
    (Place(backbone="smal"), "no backbone and no weight file 'smal'. Did you mean 'small'"),
    (Place(root="/nowhere"), "data root /nowhere is not a folder"),
])
def test_what_all_runs_would_fail_of_is_told_before_the_plan(place: Place, message: str):
    with pytest.raises(UserError, match=message):
        make_plans(read_experiments("table1"), place, [])


@pytest.fixture(scope="module")
def all_plans() -> dict:
    place = Place(output=Path("nowhere"))
    return make_plans(read_experiments("all"), place, [])


def test_every_experiment_is_there():
    assert names() == list(ORDER)
    assert len(names()) == 22
    for name in names():
        experiment = read_experiment(name)
        assert experiment.layout in layouts.layout_names()
        assert bool(experiment.demo.datasets) == bool(experiment.datasets)


@pytest.mark.parametrize(("name", "count"), [
    ("table1", 11 * 5), ("shift", 4 * 5), ("backbones", 2 * 11 * 5), ("two_steps", 11 * 3 * 2), ("prompts", 2 * 2 * 18),
    ("coop", 11 * (4 + 2 * (1 + 4))), ("selective", 55), ("sals", 11 * 3), ("ace", 55), ("reliability", 11 * 2),
    ("class_pairs", 2), ("seeds", 6 * 3 * 3), ("normalisation", 8 * 3 * 3), ("lambda", 4 * (3 + 5)),
    ("delta", 5 * (2 + 7)), ("scaling", 5 * (2 + 4 + 2)), ("complexity", 0), ("theory", 0),
])
def test_expansion(all_plans, name, count):
    assert len(all_plans[name]) == count


def test_nothing_is_run_twice_over_all_experiments(all_plans):
    def runs(*chosen):
        return {run for name in chosen for run in all_plans[name]}

    main = runs("table1")
    assert runs("ace", "selective", "sals", "reliability", "class_pairs") <= main
    assert len(runs("two_steps") - main) == 11 * 3
    assert len(runs("lambda") - main) == 4 * 4  # λ 30 is the usual one
    assert len(runs("delta") - main) == 5 * 6
    assert len(runs("scaling") - main) == 5 * 5
    assert len(runs("normalisation") - main) == 8 * 8
    assert len(runs("prompts") - main) == 2 * 2 * 17
    assert len(runs("seeds") - main) == 6 * 3 * 2
    assert len(runs("backbones") - main) == 55
    every = [run for plan in all_plans.values() for run in plan]
    settings = {}
    for run in every:
        assert settings.setdefault(run.folder, run.cfg) == run.cfg, run.folder


def test_a_run_has_the_folder_and_settings_of_the_plain_command(all_plans):
    run = next(r for r in all_plans["lambda"] if r.variant == {"TRAINER.SOC.LAMBDA": 50} and r.dataset == "ucf101")
    assert run.folder == Path("nowhere/UCF101/SoC/ViT-L-14/LAMBDA-50.0/seed0")
    assert run.cfg.TRAINER.SOC.LAMBDA == 50 and run.cfg.TEST.LIMIT == 0
    shifted = next(r for r in all_plans["shift"] if r.method == "OTPT" and r.dataset == "imagenet_a")
    assert shifted.folder == Path("nowhere/ImageNetA/OTPT/ViT-L-14/default/seed0")
    assert shifted.cfg.TRAINER.OTPT.LAMBDA == 2


def test_the_eighteen_prompts(all_plans):
    contexts = list(dict.fromkeys(run.variant["PROMPT.CTX_INIT"] for run in all_plans["prompts"]))
    assert [f"{context} {{}}." for context in contexts] == TEMPLATES
    assert len(set(contexts)) == 18


def test_the_eight_sets_of_the_normalisation_table_are_the_only_ones_that_fit_it():
    """Table 7's first column is SoC of Table 1, averaged over eight unnamed data sets."""
    columns = [c for c in published.tables()["vitl"]["columns"] if c != published.AVERAGE]
    wanted = {m: float(published.find("ablation_norm", m, "SoC", "(S - min) / (max - min)").value)
              for m in ("accuracy", "ece")}
    values = {m: {c: float(published.find("vitl", m, "SoC", c).value) for c in columns} for m in wanted}
    fitting = [
        set(chosen) for chosen in itertools.combinations(columns, 8)
        if all(abs(np.mean([values[m][c] for c in chosen]) - wanted[m]) <= 0.05 + 1e-9 for m in wanted)
    ]
    plan = expand(read_experiment("normalisation"), Place())
    assert fitting == [{run.dataset_name for run in plan}]


def test_prompts_come_before_the_runs_that_start_from_them():
    plan = in_order(expand(read_experiment("coop"), Place(demo=True)))
    for run in plan:
        if run.prompt:
            assert plan.index(run.prompt) < plan.index(run)
            assert run.shots == run.prompt.cfg.DATASET.NUM_SHOTS
            assert f"CoOp-{run.shots}-shots" in run.folder.parts[-2]
    assert [run.method for run in plan[:2]] == ["CoOp", "CoOp"]


def test_views_are_encoded_by_a_run_that_needs_them_all():
    plan = in_order(expand(read_experiment("table1"), Place()))
    for _, group in itertools.groupby(plan, key=lambda run: run.dataset):
        assert [run.method for run in group][-1] == "ZeroShot"


def test_demo_stays_apart(all_plans):
    for name in names():
        plan = expand(read_experiment(name), Place(demo=True))
        for run in plan:
            assert run.folder.parts[:2] == ("output", "demo")
            assert run.backbone == "small" and run.dataset.startswith("landcover")
            assert run.cfg.TEST.LIMIT == 144
            assert run.folder not in {other.folder for other in all_plans[name]}


def test_only_chooses_by_kind_and_keeps_needed_prompts():
    plan = expand(read_experiment("coop"), Place())
    chosen = select(plan, ["SoC", "dtd"])
    assert {(run.method, run.dataset) for run in chosen} == {("SoC", "dtd"), ("CoOp", "dtd")}
    assert {run.dataset for run in select(plan, ["EuroSAT", "dtd"])} == {"eurosat", "dtd"}
    assert {run.method for run in select(plan, ["o-tpt", "DescribableTextures"])} == {"OTPT", "CoOp"}
    with pytest.raises(ConfigError, match="--only dtdd: .* Did you mean 'dtd'"):
        select(plan, ["dtdd"])


GOOD = {"title": "t", "makes": "m", "layout": "results", "backbones": ["small"], "datasets": ["landcover"],
        "runs": [{"methods": ["SoC"]}], "demo": {"datasets": ["landcover"]}}


@pytest.mark.parametrize(("change", "message"), [
    ({"titel": "x"}, "unknown field 'titel' in experiment x.yaml. Did you mean 'title'"),
    ({"layout": "result"}, "layout in experiment x.yaml is 'result'. Did you mean 'results'"),
    ({"datasets": ["landcovr"]}, "no data set file landcovr.yaml. Did you mean 'landcover'"),
    ({"runs": [{"methods": ["SOC"]}]}, "unknown trainer 'SOC'. Did you mean 'SoC'"),
    ({"runs": [{"methods": ["SoC"], "sweeps": {}}]}, "unknown field 'sweeps' in runs in experiment"),
    ({"runs": [{"methods": ["SoC"], "sweep": {"TTA.STEPS": 2}}]}, "TTA.STEPS must have a list of values, not 2"),
    ({"runs": {"methods": ["SoC"]}}, "runs in experiment x.yaml must be a list"),
    ({"runs": [{}]}, "runs in experiment x.yaml lacks methods"),
    ({"seeds": 3}, "seeds in experiment x.yaml must be a list, not 3"),
    ({"backbones": []}, "backbones in experiment x.yaml is empty"),
    ({"metrics": ["eece"]}, "'eece' is none of"),
    ({"published": ["tab1"]}, "'tab1' is none of vitl"),
    ({"demo": None}, "demo in experiment x.yaml must hold field: value pairs"),
    ({"title": 3}, "title in experiment x.yaml must be text"),
    ({"layout": "averages"}, "lacks across"),
])
def test_bad_files_are_named(change, message):
    with pytest.raises(ConfigError) as caught:
        parse_experiment("x", {**GOOD, **change}, Path("x.yaml"))
    assert message in str(caught.value)


def test_missing_fields_and_unknown_experiments_are_named():
    with pytest.raises(ConfigError, match="lacks title, makes"):
        parse_experiment("x", {key: GOOD[key] for key in GOOD if key not in ("title", "makes")}, Path("x.yaml"))
    with pytest.raises(UnknownNameError, match="Did you mean 'lambda'"):
        read_experiment("lamda")


def test_a_swept_key_that_does_not_exist_is_refused_before_anything_runs():
    bad = parse_experiment("x", {**GOOD, "runs": [{"methods": ["SoC"], "sweep": {"TTA.STEP": [1]}}]}, Path("x.yaml"))
    with pytest.raises(ConfigError, match="unknown key 'TTA.STEP'"):
        expand(bad, Place())


def test_place_of_a_demo(tmp_path):
    place = Place(output=tmp_path, demo=True)
    assert place.features == tmp_path / "demo" / "cache"
    assert replace(place, cache=tmp_path / "c").features == tmp_path / "c"
    assert place.outcome("ace") == tmp_path / "demo" / "experiments" / "ace"
