"""The doctor: its verdict follows from what each part takes and from the set-up, and its table is whole."""
from __future__ import annotations

import json
import re

import pytest
import torch
from promptcal.datasets.utils import cli
from promptcal.datasets.utils.errors import UserError
from promptcal.tools import doctor
from promptcal.tools.checkup import checkup, sight
from promptcal.tools.checkup.checkup import Wishes
from promptcal.tools.checkup.findings import FAULT, Check, Diagnosis
from promptcal.tools.checkup.pace import DECODE, EPISODE, TOWER, VIEWS, SetUp
from promptcal.trainers.vlm.loading import as_backbone

# Seconds an image: a ViT-B/16 on two cores, and on a data-centre GPU with large photographs.
CPU = {DECODE: 0.005, VIEWS: 0.1, TOWER: 14.0, EPISODE: 0.45}
GPU = {DECODE: 0.05, VIEWS: 0.004, TOWER: 0.02, EPISODE: 0.005}


@pytest.mark.parametrize(("seconds", "set_up", "bottleneck", "advice"), [
    (CPU, SetUp(1, 2, on_gpu=False, cached=False), TOWER, "CACHE.DIR"),
    (CPU, SetUp(2, 2, on_gpu=False, cached=False), TOWER, "CACHE.DIR"),
    (CPU, SetUp(2, 2, on_gpu=False, cached=True), EPISODE, "TTA.JACOBIAN on"),
    (GPU, SetUp(1, 16, on_gpu=True, cached=False), DECODE, r"NUM_WORKERS auto \(16 here\)"),
    (GPU, SetUp(16, 16, on_gpu=True, cached=False), TOWER, "CACHE.DIR"),
    (GPU, SetUp(1, 1, on_gpu=True, cached=False), DECODE, "more cores"),
    (GPU, SetUp(1, 16, on_gpu=True, cached=True), EPISODE, "TTA.EPISODES"),
])
def test_verdicts(seconds: dict, set_up: SetUp, bottleneck: str, advice: str):
    assert set_up.bottleneck(seconds) == bottleneck
    assert set_up.images_a_second(seconds) > 0
    assert re.search(advice, set_up.advice(bottleneck, 8, jacobian=False))


def test_more_workers_never_make_it_slower():
    rates = [SetUp(n, 16, on_gpu=True, cached=False).images_a_second(GPU) for n in (1, 2, 4, 16)]
    assert rates == sorted(rates) and rates[0] == pytest.approx(20) and rates[-1] == pytest.approx(1 / 0.029)


@pytest.mark.parametrize(("options", "bottlenecks"), [
    (["--workers", "1"], (VIEWS, TOWER)), (["--cache", "."], (EPISODE,)),
    pytest.param(["--workers", "auto"], (VIEWS, TOWER), marks=pytest.mark.slow),
])
def test_on_this_machine(options: list[str], bottlenecks: tuple[str, ...], capsys):
    """One worker, cached, all workers."""
    assert doctor.main(["--backbone", "small", "--classes", "30", "--json", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["bottleneck"] in bottlenecks and report["verdict"].startswith(report["bottleneck"])
    assert set(report["seconds_per_image"]) == {DECODE, VIEWS, TOWER, EPISODE}
    assert min(report["seconds_per_image"].values()) > 0
    found = {finding["what"]: finding["found"] for finding in report["findings"]}
    assert {"versions", "memory", "disk", "precision on cpu", "zero-shot on LandCover"} <= set(found)
    assert re.fullmatch(r"\d+ % of 48 images; published: \d+\.\d % of all", found["zero-shot on LandCover"])


def test_standard_output_is_the_json_alone(monkeypatch, capsys):
    """Whatever is logged or printed on the way, by an earlier command's handler too, goes to standard error."""
    monkeypatch.setattr(cli.LOGGER, "handlers", [cli.TerminalHandler()])
    found = Diagnosis([Check("GPU", "1")], {}, DECODE, f"{DECODE} is the bottleneck")

    def talkative(_: Wishes) -> Diagnosis:
        cli.LOGGER.warning("a remark on the way")
        print("and a word of some library")
        return found

    monkeypatch.setattr(checkup, "check_up", talkative)
    assert doctor.main(["--backbone", "small", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == found.as_dict()
    assert "a remark" in said.err and "and a word" in said.err


def test_the_table_fits_a_terminal():
    long = "what is to be done about it " * 20
    table = Diagnosis([Check("data: ImageNet", "something found " * 20, FAULT, long)], {}, "", "").table()
    assert max(map(len, table.splitlines())) <= 145 and " ".join(table.split()).count("done") == 20


def test_lost_precision_is_a_fault(clip_model, monkeypatch):
    views = torch.randint(0, 256, (2, 8, 3, 32, 32), dtype=torch.uint8)
    names = ["cat", "dog", "tree frog"]
    assert sight.precision(as_backbone(clip_model), names, views).state == "ok"
    monkeypatch.setattr(sight, "MOST_TURNED", -1.0)
    found = sight.precision(as_backbone(clip_model), names, views)
    assert found.state == FAULT and found.advice == "MODEL.PREC fp32"


def test_a_fault_is_the_exit_status():
    assert Diagnosis([Check("GPU", "1"), Check("ranks", "2 on 1 GPUs", FAULT, "fewer")], {}, "", "").faulty
    assert not Diagnosis([Check("GPU", "1")], {}, "", "").faulty


@pytest.mark.parametrize("wrong", [["--workers", "many"], ["--classes", "1"]])
def test_wrong_commands(wrong: list[str], capsys):
    with pytest.raises(SystemExit) as ended:
        doctor.main(wrong)
    assert ended.value.code == 2 and wrong[0] in capsys.readouterr().err


def test_a_root_that_is_none():
    with pytest.raises(UserError, match="/nowhere is not a folder"):
        doctor.main(["--root", "/nowhere"])


def test_an_unknown_backbone_is_one_line():
    with pytest.raises(UserError, match="ViT-Z"):
        doctor.main(["--backbone", "ViT-Z/99"])
