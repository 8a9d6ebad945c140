"""Experiments as data: what their files hold, which runs they expand into, what these cost, what stands beside them."""
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run
from promptcal.datasets.utils.errors import ConfigError, UnknownNameError
from promptcal.trainers.experiments import beside, estimate, layouts
from promptcal.trainers.experiments.definition import ORDER, names, parse_experiment, read_experiment
from promptcal.trainers.experiments.layouts import complexity, scaling
from promptcal.trainers.experiments.layouts.averages import averages
from promptcal.trainers.experiments.layouts.deviations import deviations
from promptcal.trainers.experiments.layouts.results import results
from promptcal.trainers.experiments.material import Material
from promptcal.trainers.experiments.outcome import make, write_outcome
from promptcal.trainers.experiments.plan import Place, expand, select
from promptcal.trainers.experiments.reproduce import make_plans, read_experiments
from promptcal.trainers.experiments.runner import in_order
from promptcal.trainers.experiments.show import show_plan
from promptcal.trainers.report import published
from promptcal.trainers.report.measure import measure
from promptcal.trainers.report.reading import read_run

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


# --- what files may hold


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


# --- estimates


def test_operations_of_the_image_towers_are_those_of_the_literature():
    assert pytest.approx(estimate.BACKBONES["ViT-L/14"].view, rel=0.02) == 2 * 80.7e9  # 80.7 GMACs at 224 pixels
    assert pytest.approx(estimate.BACKBONES["ViT-B/16"].view, rel=0.02) == 2 * 17.6e9


def test_features_are_counted_once_and_steps_in_proportion():
    plan = expand(read_experiment("two_steps"), Place())
    work = estimate.works(plan, set(), half=True)
    dtd = [run for run in plan if run.dataset == "dtd"]
    encoding = [run for run in dtd if work[run].views]
    assert len(encoding) == 1
    assert work[encoding[0]].views == 1692 * 64
    assert work[encoding[0]].disk >= 1692 * 64 * 768 * 2
    one, two = (next(work[r] for r in dtd if r.method == "SoC" and r.variant["TTA.STEPS"] == s) for s in (1, 2))
    assert two.text == pytest.approx(2 * one.text)
    rest = estimate.works(plan, {encoding[0]}, half=True)
    assert encoding[0] not in rest and not any(rest[run].views for run in dtd if run in rest)


def test_zero_shot_reads_the_plain_view_among_the_others():
    plan = expand(read_experiment("table1"), Place())
    work = estimate.works(plan, set(), half=True)
    assert all(work[run].image == 0 for run in plan if run.method == "ZeroShot")
    alone = select(plan, ["ZeroShot"])
    assert all(estimate.works(alone, set(), half=True)[run].views == run.size[0] for run in alone)


def test_a_kept_jacobian_takes_disk_once_where_it_fits_and_pays():
    plan = expand(read_experiment("table1"), Place())
    sizes = {run.dataset: estimate.jacobian_bytes(run) for run in plan if run.method == "TPT"}
    assert sizes["stanford_cars"] == 4 * 196 * 768 * 4 * 768
    assert sizes["imagenet"] == 0  # 9.4 GB are more than TTA.JACOBIAN_GB allows
    assert sizes["dtd"] == 0  # too few images
    cars = [run for run in plan if run.dataset == "stanford_cars"]
    work = estimate.works(plan, set(), half=True)
    assert sum(work[run].disk > 1.8e9 for run in cars) == 1


def test_limit_scales_the_work():
    whole = expand(read_experiment("shift"), Place())
    few = expand(read_experiment("shift"), Place(limit=100))
    assert all(run.size[0] == 100 for run in few)
    total, part = (sum(w.image for w in estimate.works(plan, set(), half=True).values()) for plan in (whole, few))
    assert part / total == pytest.approx(400 / (7500 + 10000 + 30000 + 50889))


def test_the_plan_in_words(tmp_path):
    experiments = read_experiments("lambda")
    place = Place(output=tmp_path)
    plans = make_plans(experiments, place, ["ucf101"])
    done = next(run for run in plans["lambda"] if run.method == "TPT")
    make_run(tmp_path, "TPT", folder=str(done.folder.relative_to(tmp_path)))
    text = show_plan(plans, experiments, place)
    assert "LAMBDA 10, 20, 30, 40, 50" in text
    assert "8 runs, 1 finished, 7 to do." in text
    assert "An estimate from operation counts" in text
    row = next(line for line in text.splitlines() if " TPT " in line)
    assert "finished" in row and "3,783" in row


# --- tables beside the paper's


def made_material(tmp_path: Path, name: str, place: Place | None = None, keep=lambda run: True) -> Material:
    """An experiment whose runs are random numbers."""
    place = place or Place(output=tmp_path)
    experiment = read_experiment(name)
    found = {}
    for run in expand(experiment, place):
        if keep(run):
            make_run(tmp_path, run.method, run.dataset_name, run.seed, run.backbone, n=120, settings=dict(run.variant),
                     folder=str(run.folder.relative_to(tmp_path)), data_hash=run.dataset)
            found[run] = measure(read_run(run.folder))
    return Material(experiment, place, found)


def rows_of(table, block=0):
    return {row.label: row.entries for row in table.blocks[block].rows}


def test_results_stand_beside_the_published_ones_with_the_difference(tmp_path):
    (table,) = results(made_material(tmp_path, "table1", keep=lambda run: run.dataset in ("dtd", "eurosat")))
    assert table.columns == ["DTD", "EuroSAT", "Average"]
    rows = rows_of(table, block=1)
    ours, theirs, gap = (rows[f"SoC{suffix}"][1] for suffix in ("", " (published)", ": ours − published"))
    assert theirs.text == "3.2"
    assert gap.value == pytest.approx(float(ours.text) - 3.2)
    assert gap.text.startswith(("+", "-"))
    assert rows["SoC (published)"][2] is None  # the paper's average is over other data sets


def test_demo_tables_have_no_published_rows(tmp_path):
    place = Place(output=tmp_path, demo=True)
    (table,) = results(made_material(tmp_path, "table1", place))
    assert not any("published" in row.label for block in table.blocks for row in block.rows)


def test_runs_with_other_settings_are_not_set_beside_the_paper(tmp_path):
    place = Place(output=tmp_path, opts=("TTA.VIEWS", 16))
    experiment = read_experiment("normalisation")
    found = {}
    for run in expand(experiment, place):
        if run.dataset == "dtd":
            make_run(tmp_path, run.method, run.dataset_name, settings={**run.variant, "TTA.VIEWS": 16},
                     folder=str(run.folder.relative_to(tmp_path)))
            found[run] = measure(read_run(run.folder))
    material = Material(experiment, place, found)
    assert material.other_settings == {"TTA.VIEWS": 16} and not material.compared
    outcome = write_outcome(experiment, place, list(found), {}, dict(found))
    assert not any("published" in row.label for block in outcome.tables[0].blocks for row in block.rows)
    assert "these runs have other settings (TTA.VIEWS 16)" in outcome.page.read_text()
    assert any("are the same method" in note for note in outcome.tables[0].notes)


def test_of_a_sweep_only_the_usual_value_has_a_published_row(tmp_path):
    (table,) = results(made_material(tmp_path, "lambda", keep=lambda r: r.dataset == "ucf101"), "TRAINER.SOC.LAMBDA")
    rows = rows_of(table, block=1)
    assert rows["SoC, λ 30 (published)"][0].text == "6.5"
    assert {label for label in rows if "(published)" in label} == {
        "TPT (published)", "C-TPT (published)", "O-TPT (published)", "SoC, λ 30 (published)"}


def test_averages_use_the_sets_that_all_cells_have(tmp_path):
    def keep(run):
        return run.dataset in ("dtd", "eurosat", "ucf101") and (run.dataset, run.variant.get("TRAINER.SOC.NORM")) != (
            "ucf101", "shift")

    material = made_material(tmp_path, "normalisation", keep=keep)
    (table,) = averages(material)
    assert table.columns == ["(S - min) / (max - min)", "S / max", "S - min"]
    own = [m.metrics["ece"].value for run, m in material.found.items()
           if run.variant == {"TRAINER.SOC.NORM": "max"} and run.dataset != "ucf101"]
    assert {"SoC, flow", "SoC, flow_delta"} < set(rows_of(table, 1))
    assert rows_of(table, 1)["SoC"][1].value == pytest.approx(100 * np.mean(own))
    assert rows_of(table, 1)["SoC (published)"][1].text == "7.3"
    assert any("Left out" in note and "UCF101" in note for note in table.notes)
    assert any("do not compare" in note for note in table.notes)


def test_deviations_over_seeds(tmp_path):
    material = made_material(tmp_path, "seeds")
    (table,) = deviations(material)
    values = [100 * m.metrics["accuracy"].value for run, m in material.found.items()
              if run.method == "OTPT" and run.dataset == "dtd"]
    rows = rows_of(table)
    assert len(values) == 3
    assert rows["O-TPT"][0].value == pytest.approx(np.std(values, ddof=1))
    assert rows["O-TPT (published)"][0].text == "0.06"
    assert rows["O-TPT"][-1].value == pytest.approx(np.mean([entry.value for entry in rows["O-TPT"][:-1]]))
    assert rows["O-TPT (published)"][-1].text == "0.12"


def test_counted_operations_agree_with_the_published_ones():
    """But for a few small terms that the paper leaves out."""
    (table,) = complexity.complexity(Material(read_experiment("complexity"), Place(), {}))
    rows = rows_of(table)
    for method in ("O-TPT", "SoC"):
        for ours, theirs in zip(rows[method][1:], rows[f"{method} (published)"][1:], strict=True):
            assert ours.value == pytest.approx(theirs.value, rel=5e-3)
    closed = rows["O-TPT, closed form (used here)"]
    assert closed[-1].value < rows["O-TPT"][-1].value / 4


def test_inverse_weighting_is_the_one_that_is_felt():
    """Falling with the number of classes, as the paper's lead over O-TPT does, and far above the printed ratio."""
    sizes = [scaling.relative_gradients(scaling.simulated_prototypes(k)) for k in (10, 47, 100, 397, 1000)]
    inverse = [size["inverse"] for size in sizes]
    assert inverse == sorted(inverse, reverse=True) and 0.1 < inverse[-1] < 10
    assert all(size["ratio"] < size["inverse"] / 10 for size in sizes)
    assert all(size["live"] == pytest.approx(2 * size["ratio"]) for size in sizes)
    assert all(size["inverse, flow"] != pytest.approx(size["inverse"]) for size in sizes)


def test_every_reading_of_the_weight_has_a_row(tmp_path):
    material = made_material(tmp_path, "scaling", keep=lambda run: run.dataset == "eurosat")
    (table,) = results(material, "TRAINER.SOC.SCALE")
    own = {label for label in rows_of(table, 1) if label.startswith("SoC") and "published" not in label}
    assert own == {f"SoC, {name}" for name in scaling.READINGS}


def test_a_layout_is_one_file(tmp_path, monkeypatch):
    """Dropped into the folder, it is known by its name and makes the page of an experiment."""
    (tmp_path / "headcount.py").write_text(
        "from promptcal.trainers.report.entries import Entry, RowBlock, Table, TableRow\n"
        "def show(material):\n"
        "    row = TableRow('runs', 'SoC', [Entry(len(material.found), 0)])\n"
        "    return [Table('headcount', 'Runs', ['count'], [RowBlock('', [row])])], []\n", encoding="utf-8",
    )
    monkeypatch.setattr(layouts, "__path__", [*layouts.__path__, str(tmp_path)])
    assert "headcount" in layouts.layout_names()
    material = made_material(tmp_path / "runs", "delta", keep=lambda run: run.dataset == "eurosat")
    material = replace(material, experiment=replace(material.experiment, layout="headcount", note=""))
    (table,), pictures = make(material)
    assert table.blocks[0].rows[0].entries[0].value == len(material.found) > 0
    assert pictures == []


# --- the paper against itself


def test_slips_of_the_paper_are_told_where_its_tables_are_shown():
    notes = beside.slip_notes(["vitl_2step"])
    assert any("accuracy of SoC, ImageNet: difference printed 1.4, the printed cells give -0.8" in n for n in notes)
    assert any("EuroSAT: difference printed -0.7, the printed cells give +5.2" in note for note in notes)
    assert not any("rounding" in note for note in notes)
    assert beside.slip_notes(["complexity"]) == []


def test_published_tables_name_only_what_experiments_use():
    """Every published table of results is shown by some experiment."""
    used = {table for name in names() for table in read_experiment(name).published}
    assert used >= set(published.tables()) - {"datasets"}
    assert used <= set(published.tables_of(None))


def test_place_of_a_demo(tmp_path):
    place = Place(output=tmp_path, demo=True)
    assert place.features == tmp_path / "demo" / "cache"
    assert replace(place, cache=tmp_path / "c").features == tmp_path / "c"
    assert place.outcome("ace") == tmp_path / "demo" / "experiments" / "ace"
