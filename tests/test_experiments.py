"""Experiments as data: what their files hold, the runs they expand into, and groups of runs."""
import itertools
import json
import pickle
import re
from dataclasses import fields
from pathlib import Path

import pytest
from promptcal.datasets.utils.errors import ConfigError, UserError
from promptcal.trainers import TRAINER_REGISTRY
from promptcal.trainers.experiments import definition
from promptcal.trainers.experiments.definition import (
    ORDER,
    Experiment,
    names,
    parse_experiment,
    read_experiment,
)
from promptcal.trainers.experiments.plan import Workspace, expand, select
from promptcal.trainers.experiments.planned_run import work_groups
from promptcal.trainers.experiments.reproduce import make_plans, read_experiments

from common import PROJECT, run_tool

README = (PROJECT / "configs" / "experiments" / "README.md").read_text(encoding="utf-8")


def test_faults_that_all_runs_would_share_are_reported_before_the_plan():
    faults = {
        "no backbone and no weight file 'smal'. Did you mean 'small'": Workspace(backbone="smal"),
        "data root /nowhere is not a folder": Workspace(root="/nowhere"),
    }
    for message, workspace in faults.items():
        with pytest.raises(UserError, match=message):
            make_plans(read_experiments("table1"), workspace, [])


@pytest.fixture(scope="module")
def all_plans() -> dict:
    return make_plans(read_experiments("all"), Workspace(output=Path("nowhere")), [])


def test_every_experiment_and_every_field_is_documented():
    assert names() == list(ORDER)
    documented = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    field_names = {field.name for field in fields(Experiment)}
    assert documented == {*names(), "all", *field_names} - {"name"}


def test_the_readme_has_the_number_of_runs(all_plans):
    """All runs of an experiment, and those that no experiment before it has."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|\s*(\d+) \|\s*(\d+) \|$", README, re.MULTILINE)
    seen: dict = {}
    for name, runs, new in rows[:-1]:
        plan = all_plans[name]
        assert (int(runs), int(new)) == (len(plan), len(set(plan) - set(seen))), name
        for run in plan:
            assert seen.setdefault(run, run).cfg == run.cfg, run.folder  # one folder, one config
    assert rows[-1] == ("all", str(len(seen)), str(len(seen))) and len(rows) == len(names()) + 1


def test_a_run_has_the_folder_and_settings_of_the_plain_command(all_plans):
    runs = {}
    for run in (*all_plans["lambda"], *all_plans["shift"]):
        runs[run.folder] = run
    swept = runs[Path("nowhere/UCF101/SoC/ViT-L-14/LAMBDA-50.0/seed0")]
    assert swept.variant == {"TRAINER.SOC.LAMBDA": 50} and swept.dataset == "ucf101"
    assert swept.cfg.TRAINER.SOC.LAMBDA == 50 and swept.cfg.TEST.LIMIT == 0
    shifted = runs[Path("nowhere/ImageNetA/OTPT/ViT-L-14/default/seed0")]
    assert shifted.method == "OTPT" and shifted.cfg.TRAINER.OTPT.LAMBDA == 2


def test_family_holds_every_method_and_combine_every_pair():
    methods = set(read_experiment("family").methods)
    assert methods == set(TRAINER_REGISTRY) - {"CoOp"} and len(methods) >= 13
    terms = read_experiment("combine").runs[0].sweep["TRAINER.REGULARISERS"]
    pairs = [tuple(re.findall("[a-z]+", text)) for text in terms if "," in text]
    assert sorted(pairs) == sorted(itertools.combinations(("ctpt", "otpt", "atpt", "soc"), 2))


def test_a_group_shares_view_features_and_holds_the_prompts_of_its_runs(all_plans):
    runs = dict.fromkeys(itertools.chain(*all_plans.values()))
    groups = work_groups(runs)
    grouped = list(itertools.chain(*groups))
    assert len(grouped) == len(runs) and set(grouped) == set(runs)
    for group in groups:
        assert len({run.images_key for run in group}) == 1
        methods = [run.method for run in group]
        assert methods == sorted(methods, key=lambda name: (name != "CoOp", name == "ZeroShot"))
        for run in group:
            if run.prompt:
                assert group.index(run.prompt) < group.index(run)
                assert run.shots == run.prompt.cfg.DATASET.NUM_SHOTS
                assert f"CoOp-{run.shots}-shots" in run.folder.parts[-2]
    assert pickle.loads(pickle.dumps(groups[0])) == groups[0]  # noqa: S301  for another process


def test_only_chooses_by_kind_and_keeps_needed_prompts():
    plan = expand(read_experiment("coop"), Workspace())

    def selected(*words):
        runs = select(plan, list(words))
        return {run.method for run in runs}, {run.dataset for run in runs}

    assert selected("SoC", "dtd") == ({"SoC", "CoOp"}, {"dtd"})
    assert selected("EuroSAT", "dtd")[1] == {"eurosat", "dtd"}
    assert selected("o-tpt", "DescribableTextures")[0] == {"OTPT", "CoOp"}
    with pytest.raises(ConfigError, match="--only dtdd: .* Did you mean 'dtd'"):
        select(plan, ["dtdd"])


GOOD = {
    "title": "t", "makes": "m", "layout": "results", "backbones": ["small"],
    "datasets": ["landcover"], "runs": [{"methods": ["SoC"]}], "demo": {"datasets": ["landcover"]},
}


@pytest.mark.parametrize(("change", "message"), [
    ({"title": None}, "title in experiment x.yaml must be text"),
    ({"titel": "x"}, "experiment x.yaml: got an unexpected keyword argument 'titel'"),
    ({"layout": "result"}, "layout in experiment x.yaml: 'result' is none of"),
    ({"datasets": ["landcovr"]}, "no data set 'landcovr'. Did you mean 'landcover'"),
    ({"runs": [{"methods": ["SoCC"]}]}, "unknown trainer 'SoCC'. Did you mean 'SoC'"),
    ({"runs": [{"methods": ["SoC"], "sweep": {"TTA.STEPS": 2}}]}, "TTA.STEPS must have a list of values, not 2"),
    ({"runs": {"methods": ["SoC"]}}, "runs in experiment x.yaml must be a list"),
    ({"runs": [{}]}, "runs in experiment x.yaml: missing 1 required positional argument: 'methods'"),
    ({"backbones": ["RN50", {"a": 1}]}, "backbones in experiment x.yaml must be a list of single values"),
    ({"runs": [{"methods": ["SoC"], "sweep": {"OUTPUT_DIR": ["here"]}}]}, "OUTPUT_DIR is of single runs"),
    ({"seeds": 3}, "seeds in experiment x.yaml must be a list, not 3"),
    ({"metrics": ["eece"]}, "'eece' is none of"),
    ({"published": ["tab1"]}, "'tab1' is none of vitl"),
    ({"demo": None}, "demo in experiment x.yaml: "),
    ({"layout": "averages"}, "lacks across"),
    ({"coop": {"DATASET.NUM_SHOTS": 4}}, "DATASET.NUM_SHOTS is planned for each run, by shots"),
    ({"runs": [{"methods": ["SoC"], "sweep": {"TTA.STEP": [1]}}]}, "unknown key 'TTA.STEP'"),
])
def test_bad_files_are_named_before_anything_runs(change, message):
    with pytest.raises(ConfigError) as caught:
        expand(parse_experiment("x", {**GOOD, **change}, Path("x.yaml")), Workspace())
    assert message in str(caught.value)


# --- what a plan must not mix up


def parsed(**changes) -> Experiment:
    return parse_experiment("x", {**GOOD, **changes}, Path("x.yaml"))


def test_a_sweep_over_a_setting_whose_values_are_lists():
    means = [[0.5, 0.5, 0.5], [0.4, 0.5, 0.6]]
    sweep = {"INPUT.PIXEL_MEAN": means, "INPUT.PIXEL_STD": [[0.2, 0.2, 0.2]]}
    first, second = expand(parsed(runs=[{"methods": ["SoC"], "sweep": sweep}]), Workspace())
    assert [run.cfg.INPUT.PIXEL_MEAN for run in (first, second)] == means
    assert first != second and first.folder != second.folder
    assert first.features_key != second.features_key and first.images_key == second.images_key


def test_settings_that_have_no_effect_on_a_method_do_not_multiply_its_runs():
    sweep = {"TRAINER.SOC.LAMBDA": [10, 20]}
    plan = expand(parsed(runs=[{"methods": ["TPT", "SoC"], "sweep": sweep}]), Workspace())
    assert [run.method for run in plan] == ["TPT", "SoC", "SoC"]


def test_runs_from_prompts_that_were_trained_otherwise_are_other_runs():
    """They also have other folders, so that none is taken for the other."""
    runs = [{"methods": ["SoC"], "shots": [1]}]
    plans = [
        expand(parsed(runs=runs), Workspace()),
        expand(parsed(runs=runs, coop={"OPTIM.MAX_EPOCH": 3}), Workspace()),
        expand(parsed(runs=runs), Workspace(opts=("TRAINER.COOP.N_CTX", 4))),
    ]
    for runs_of_plans in zip(*plans, strict=True):  # the prompts, then the runs that start from them
        assert len(set(runs_of_plans)) == 3
        assert len({run.folder for run in runs_of_plans}) == 3
    assert plans[0][1].folder.parts[-2] == "CoOp-1-shots"
    assert plans[1][1].folder.parts[-2] == "CoOp-1-shots_MAX_EPOCH-3"


def test_two_runs_with_one_folder_are_refused():
    catalogue = read_experiments("lambda")
    with pytest.raises(ConfigError, match="would both be written to .*mine.*: leave TAG out"):
        make_plans(catalogue, Workspace(opts=("TAG", "mine")), [])


@pytest.fixture
def bad_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of three experiments: one is good, one is no yaml, one sweeps an unknown setting."""
    folder = tmp_path / "experiments"
    folder.mkdir()
    unknown_key = {**GOOD, "runs": [{"methods": ["SoC"], "sweep": {"TTA.STEP": [1]}}]}
    (folder / "good.yaml").write_text(json.dumps({**GOOD, "runs": [{"methods": ["ZeroShot"]}]}))
    (folder / "broken.yaml").write_text("title: [")
    (folder / "misspelt.yaml").write_text(json.dumps(unknown_key))
    monkeypatch.setattr(definition, "FOLDER", folder)


def test_one_bad_file_is_named_and_the_others_are_computed(bad_file, tmp_path):
    listed = run_tool("reproduce.py", "list")
    assert listed.returncode == 0 and re.search(r"^good +t +m$", listed.stdout, re.MULTILINE)
    assert re.search(r"^broken +cannot read config file .*broken.yaml", listed.stdout, re.MULTILINE)

    args = ("--output-dir", tmp_path / "output", "--limit", 4, "--set", "DATALOADER.NUM_WORKERS", 0)
    dry = run_tool("reproduce.py", "all", "--dry-run", *args)
    assert dry.returncode == 1 and "1 run, 0 finished, 1 to do." in dry.stdout, dry
    done = run_tool("reproduce.py", "all", *args)
    assert done.returncode == 1
    assert "1 run done now; 1 of 3 outcomes written" in done.stdout
    assert re.search(r"^not written: broken: cannot read config file", done.stdout, re.MULTILINE)
    assert re.search(r"^not written: misspelt: unknown key 'TTA.STEP'", done.stdout, re.MULTILINE)
    index = tmp_path / "output" / "experiments" / "index.html"
    assert "good/report.html" in index.read_text(encoding="utf-8")
    done = run_tool("reproduce.py", "good", *args)
    assert done.returncode == 0 and "0 runs done now; 1 of 1 outcome written" in done.stdout
