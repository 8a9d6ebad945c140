"""`import promptcal as pc`: what is there, and `evaluate`, which is a run like any other."""
from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import promptcal as pc
import pytest
import torch
from promptcal.datasets.image_folder import ImageFolder
from promptcal.datasets.landcover import LandCover
from promptcal.datasets.utils.errors import ConfigError, UnknownNameError, UserError
from promptcal.trainers.engine.adapted import Adapted
from promptcal.trainers.vlm.loading import OpenAIBackbone

from common import PROJECT, random_clip, run_tool
from folders import results_of

NAMES = {
    "Adapter", "adapt", "build_dataset", "evaluate", "list_backbones", "list_datasets",
    "list_methods", "load_clip", "make_views",
}
FEW_VIEWS = ["TTA.VIEWS", 8, "TTA.SELECT", 0.25, "DATALOADER.NUM_WORKERS", 0]


def test_names_are_there_without_torch():
    lines = ("import sys, promptcal as pc\n"
             "print(sorted(name for name in dir(pc) if name[0] != '_'), pc.list_methods()[:2], "
             "'LandCover' in pc.list_datasets(), 'torch' in sys.modules)")
    done = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, timeout=60, check=True,
        env={"PYTHONPATH": str(PROJECT / ".package"), "PATH": ""})
    assert done.stdout.strip() == f"{sorted(NAMES)} ['ATPT', 'BCA'] True False"
    for name in NAMES:
        assert callable(getattr(pc, name))
    assert pc.list_backbones()[0] == "small" and "ViT-L/14" in pc.list_backbones()
    with pytest.raises(AttributeError, match="no attribute 'adpat'"):
        _ = pc.adpat


@pytest.fixture
def evaluate(image_folder: Path, clip_file: Path):
    """SoC on the image folder with the tiny CLIP of a file, in memory."""
    model = pc.load_clip(str(clip_file))

    def run(method: str = "soc", **changes):
        arguments = {"model": model, "dataset": "ImageFolder", "root": image_folder}
        arguments["opts"] = FEW_VIEWS
        arguments.update(changes)
        return pc.evaluate(method, **arguments)

    return run


def test_it_is_the_run_of_the_command(evaluate, train, tmp_path, image_folder):
    """Also where the data set is an object: its folder gives it the name in tables."""
    result = evaluate(output=tmp_path / "here")
    dataset = pc.build_dataset("ImageFolder", image_folder)
    evaluate(dataset=dataset, root=None, output=tmp_path / "object")
    assert train("SoC", *FEW_VIEWS).returncode == 0
    theirs = results_of(tmp_path / "run")
    for name in ("here", "object"):  # the same weights: those of the file
        assert results_of(tmp_path / name)["record"] == theirs["record"]
    assert (result.accuracy, result.ece, result.over_confidence) == pytest.approx(
        (theirs["accuracy"], theirs["ece"], theirs["over_confidence"]))
    predictions = np.load(tmp_path / "run" / "predictions.npz")
    assert np.array_equal(result.predictions["logits"], predictions["logits"])
    assert "SoC" in result.table() and "12 test images of 4 classes" in result.table()
    assert result.folder == tmp_path / "here" and f"run folder: {tmp_path / 'here'}" in str(result)


def test_print_is_five_lines(evaluate):
    lines = str(evaluate("zero_shot")).splitlines()
    assert len(lines) == 5 and lines[0].startswith("Zero-shot on")
    assert [line.split()[0] for line in lines[1:4]] == ["accuracy", "ECE", "over-confidence"]
    assert "not kept" in lines[4]


def test_a_kept_run_is_not_computed_again(evaluate, tmp_path, monkeypatch):
    first = evaluate(output=tmp_path / "kept")
    monkeypatch.setattr(Adapted, "check_shapes", lambda *_: pytest.fail("computed again"))
    again = evaluate("SOC", output=tmp_path / "kept")
    assert json.dumps(again.results) == json.dumps(first.results)
    with pytest.raises(ConfigError, match="TTA.STEPS was 1, is 2"):
        evaluate(output=tmp_path / "kept", opts=[*FEW_VIEWS, "TTA.STEPS", 2])


def test_an_interrupted_run_continues(evaluate, tmp_path, monkeypatch):
    opts = [*FEW_VIEWS, "TEST.PART", 4, "TTA.EPISODES", 4]
    calls = []
    real = Adapted.check_shapes

    def stopping(self, *args):
        calls.append(len(self.logits))
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(self, *args)

    monkeypatch.setattr(Adapted, "check_shapes", stopping)
    with pytest.raises(KeyboardInterrupt):
        evaluate(output=tmp_path / "run", opts=opts)
    result = evaluate(output=tmp_path / "run", opts=opts)
    assert calls == [4, 4, 4, 4]  # the first part was kept
    assert np.array_equal(result.predictions["logits"], evaluate(opts=opts).predictions["logits"])


def test_other_weights_in_memory_are_another_model(evaluate, clip_file):
    model = pc.load_clip(str(clip_file))
    as_loaded = evaluate("ZeroShot", model=model).results["record"]["model"]["weights"]
    changed = deepcopy(model)
    with torch.no_grad():
        changed.logit_scale += 0.1
    other = evaluate("ZeroShot", model=changed).results["record"]["model"]["weights"]
    nameless = OpenAIBackbone(random_clip())
    unnamed = evaluate("ZeroShot", model=nameless).results
    assert len({as_loaded, other, unnamed["record"]["model"]["weights"]}) == 3
    assert unnamed["backbone"] == "model"
    by_name = evaluate("ZeroShot", model=str(clip_file)).results
    assert by_name["record"]["model"]["weights"] == as_loaded


def test_a_data_set_as_an_object(evaluate, image_folder):
    dataset = pc.build_dataset("ImageFolder", image_folder)
    dataset.test = dataset.test[:6]
    result = evaluate(dataset=dataset)
    assert len(result.predictions["label"]) == result.results["n"] == 6
    by_name = evaluate(dataset="image_folder")
    assert np.array_equal(by_name.predictions["logits"][:6], result.predictions["logits"])


@pytest.mark.parametrize(("option", "value"), [
    ("subsample_classes", "base"), ("num_shots", 2), ("severity", 3), ("corruption", "fog"),
])
def test_labels_of_an_object_are_those_of_the_images_that_it_holds(evaluate, tmp_path, option, value):
    """By what it was read with; settings of the call cannot change that any more."""
    opts = ["TEST.LIMIT", 4, "OPTIM.MAX_EPOCH", 1, "DATASET.FEWSHOT_DIR", tmp_path / "shots"]
    setting = [f"DATASET.{option.upper()}", value]
    method = "CoOp" if option == "num_shots" else "ZeroShot"
    common = {"method": method, "root": None}
    tiles = pc.build_dataset("LandCover", fewshot_dir=str(tmp_path / "shots"), **{option: value})
    of_object = evaluate(dataset=tiles, opts=opts, **common)
    by_name = evaluate(dataset="LandCover", opts=[*opts, *setting], **common)
    assert of_object.results["record"] == by_name.results["record"]
    assert of_object.results["dataset"] == by_name.results["dataset"]
    with pytest.raises(ConfigError, match=f"{setting[0]} .*the data set is an argument"):
        evaluate(dataset=pc.build_dataset("LandCover"), opts=[*opts, *setting], **common)


def test_an_object_that_a_class_made_has_its_corruption(evaluate):
    tiles = LandCover(corruption="fog", severity=3)
    results = evaluate("ZeroShot", dataset=tiles, root=None, opts=["TEST.LIMIT", 4]).results
    assert results["dataset"] == "LandCover-fog-3"


def test_a_class_that_is_not_registered_is_reported_under_its_name(evaluate, tmp_path, image_folder):
    class Darkened(ImageFolder):
        def read_image(self, datum):
            return super().read_image(datum).point(lambda value: value // 2)

    evaluate(dataset=Darkened(image_folder), root=None, output=tmp_path / "runs")
    assert results_of(tmp_path / "runs")["dataset"] == "Darkened"
    done = run_tool("report.py", tmp_path / "runs", "--no-figures")
    assert done.returncode == 0 and "Darkened" in done.stdout


@pytest.mark.parametrize("of_class", [False, True])
def test_pictures_that_an_object_or_a_script_replaces_are_refused(
    evaluate, tmp_path, image_folder, monkeypatch, of_class
):
    """The files, by which images are known, are not what the method would see."""
    dataset = pc.build_dataset("ImageFolder", image_folder)
    picture = dataset.read_image(dataset.test[0])
    owner = ImageFolder if of_class else dataset
    monkeypatch.setattr(owner, "read_image", lambda *_: picture, raising=False)
    with pytest.raises(UserError, match="read_image was replaced .* derive a class from ImageFolder"):
        evaluate(dataset=dataset, output=tmp_path / "run")


def test_what_cannot_work(evaluate, clip_file):
    with pytest.raises(UnknownNameError, match="unknown trainer 'Sock'"):
        evaluate("Sock")
    with pytest.raises(ConfigError, match="nowhere"):
        evaluate(dataset="nowhere")
    for dataset in (None, 5):
        with pytest.raises(ConfigError, match="dataset must be the name of a data set, or one"):
            evaluate(dataset=dataset)
    with pytest.raises(UnknownNameError, match="unknown data set 'None'"):
        pc.build_dataset(None)
    with pytest.raises(TypeError, match=r"give model.float\(\)"):
        evaluate(model=pc.load_clip(str(clip_file)).half())


@pytest.mark.parametrize(("opts", "message"), [
    ({"MODEL.BACKBONE.NAME": "ViT-B/16"}, "MODEL.BACKBONE.NAME 'ViT-B/16' cannot be given"),
    ({"TRAINER.NAME": "TPT"}, "TRAINER.NAME 'TPT' cannot be given"),
    ({"DATASET.NAME": "DTD"}, "DATASET.NAME 'DTD' cannot be given"),
    ({"OUTPUT_DIR": "runs"}, "the folder `output` is an argument of its own"),
])
def test_settings_that_contradict_an_argument_are_refused(clip_model, image_folder, opts, message):
    with pytest.raises(ConfigError, match=message):
        pc.evaluate("ZeroShot", clip_model, "ImageFolder", image_folder, opts=opts)
    same = {"TRAINER.NAME": "zero_shot", "DATASET.NAME": "ImageFolder"}
    assert pc.evaluate("ZeroShot", clip_model, "ImageFolder", image_folder, opts=same).accuracy >= 0
