"""What a plan costs: operations, features counted once, disk, and the plan in words."""

import pytest
from made_runs import make_run
from promptcal.trainers.experiments import estimate
from promptcal.trainers.experiments.definition import read_experiment
from promptcal.trainers.experiments.plan import Place, expand, select
from promptcal.trainers.experiments.plan_table import show_plan
from promptcal.trainers.experiments.reproduce import make_plans, read_experiments


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
    assert sizes["dtd"] == 4 * 47 * 768 * 4 * 768  # 1,692 images: this run loses nothing by it, and the next one gains
    few = expand(read_experiment("table1"), Place(limit=100))
    assert not any(map(estimate.jacobian_bytes, few))
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
