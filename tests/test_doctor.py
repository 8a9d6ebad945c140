"""The doctor's verdict follows from the time of each part and the set-up."""
from __future__ import annotations

import json

import pytest
from promptcal.tools import doctor, doctor_checks
from promptcal.tools.doctor_checks import ADVICE, EPISODE, FAULT, TOWER, VIEWS, stages
from promptcal.tools.measuring import drawn_images
from promptcal.trainers.vlm.loading import as_backbone

# Seconds per image: a ViT-B/16 on two cores, and on a GPU with large photographs.
CPU = {VIEWS: 0.1, TOWER: 14.0, EPISODE: 0.45}
GPU = {VIEWS: 0.09, TOWER: 0.02, EPISODE: 0.005}


@pytest.mark.parametrize(("seconds", "threads", "gpu", "cached", "expected"), [
    (CPU, 2, False, False, [0.1 / 2 + 7 + 0.45]),
    (CPU, 2, False, True, [0.45]),
    (GPU, 1, True, False, [0.09, 0.025]),
    (GPU, 16, True, False, [0.09 / 16, 0.025]),
    (GPU, 16, True, True, [0.005]),
])
def test_parts_that_run_at_the_same_time(seconds, threads, gpu, cached, expected):
    """`expected`: the seconds of each stage."""
    totals = [sum(stage.values()) for stage in stages(seconds, threads, gpu, cached)]
    assert totals == pytest.approx(expected)


@pytest.mark.parametrize(("options", "bottlenecks"), [
    (["--workers", "1"], (VIEWS, TOWER)),
    (["--cache", "."], (EPISODE,)),
])
def test_on_this_machine(options, bottlenecks, capsys):
    assert doctor.main(["--backbone", "small", "--classes", "30", "--json", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    bottleneck = report["bottleneck"]
    assert bottleneck in bottlenecks
    assert report["verdict"].startswith(bottleneck)
    assert ADVICE[bottleneck] in report["verdict"]
    assert set(report["seconds_per_image"]) == {VIEWS, TOWER, EPISODE}
    assert min(report["seconds_per_image"].values()) > 0
    findings = {check["what"]: check["found"] for check in report["checks"]}
    assert {"versions", "GPU", "processor", "precision on cpu"} <= set(findings)
    assert findings["zero-shot on LandCover"].endswith(" % of 48 images")


def test_lost_precision_is_a_fault(clip_model, monkeypatch):
    arguments = (as_backbone(clip_model), "small", ["cat", "dog", "tree frog"], drawn_images(2))
    assert doctor_checks.precision(*arguments).state == "ok"
    monkeypatch.setattr(doctor_checks, "MAX_FLIPPED", -1.0)
    check = doctor_checks.precision(*arguments)
    assert check.state == FAULT and check.advice == "MODEL.PREC fp32"
