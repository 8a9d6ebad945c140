"""Zero-shot with CoOp's templates, written-out ones and ensembles, against OpenAI's own text encoder."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from promptcal.datasets.base import DATASET_REGISTRY
from promptcal.datasets.utils.errors import ConfigError, DataError
from promptcal.trainers import adapt, build_cfg, build_trainer
from promptcal.trainers.runs.run_dir import RunDir
from promptcal.trainers.vlm.openai import OpenAIBackbone
from promptcal.trainers.vlm.openai_clip import CLIP, clip
from promptcal.trainers.vlm.templates import CLIP_BEST, find_templates, template_features

NAMES = ["cat", "annual crop land", "Yorkshire_Terrier", "dog"]


def openai_features(model: CLIP, templates: list[str], names: list[str]) -> torch.Tensor:
    """CLIP's prompt ensembling, as its notebook does it."""
    features = []
    for template in templates:
        prompts = [template.format(name.replace("_", " ")) for name in names]
        features.append(F.normalize(model.encode_text(clip.tokenize(prompts)), dim=-1))
    return F.normalize(torch.stack(features).mean(0), dim=-1)


@pytest.mark.parametrize("templates", [
    ["a photo of a {}."], ["{} texture."], ["a photo of a {}, a type of pet."], ["{}"], list(CLIP_BEST),
], ids=["plain", "name first", "words on both sides", "name alone", "ensemble"])
def test_features_equal_openais(clip_model: CLIP, templates: list[str]):
    ours = template_features(OpenAIBackbone(clip_model), templates, NAMES, "fp32")
    torch.testing.assert_close(ours, openai_features(clip_model, templates, NAMES), atol=2e-6, rtol=1e-5)


def test_what_the_setting_stands_for():
    pets = "a photo of a {}, a type of pet."
    assert find_templates("", "OxfordPets", pets) == []
    assert find_templates("coop", "OxfordPets", pets) == [pets]
    assert find_templates("ensemble", "OxfordPets", pets) == [*CLIP_BEST, pets]
    assert find_templates("ensemble", "ImageNet", "a photo of a {}.") == list(CLIP_BEST)
    assert find_templates("one {}. | the {} ", "OxfordPets", pets) == ["one {}.", "the {}"]


@pytest.mark.parametrize(("dataset", "template"), [
    ("OxfordPets", "a photo of a {}, a type of pet."), ("OxfordFlowers", "a photo of a {}, a type of flower."),
    ("FGVCAircraft", "a photo of a {}, a type of aircraft."), ("DescribableTextures", "{} texture."),
    ("EuroSAT", "a centered satellite photo of {}."), ("StanfordCars", "a photo of a {}."),
    ("Food101", "a photo of {}, a type of food."), ("SUN397", "a photo of a {}."), ("Caltech101", "a photo of a {}."),
    ("UCF101", "a photo of a person doing {}."), ("ImageNet", "a photo of a {}."), ("ImageNetV2", "a photo of a {}."),
    ("ImageNetSketch", "a photo of a {}."), ("ImageNetA", "a photo of a {}."), ("ImageNetR", "a photo of a {}."),
])
def test_data_sets_have_coops_templates(dataset: str, template: str):
    assert DATASET_REGISTRY.get(dataset).template == template


@pytest.mark.parametrize(("setting", "templates"), [
    ("coop", ["a photo of a {}."]), ("ensemble", [*CLIP_BEST, "a photo of a {}."]),
    ("one {}!|many {}s.", ["one {}!", "many {}s."]),
])
def test_runs_tell_their_templates(
    tmp_path: Path, clip_file: Path, image_folder: Path, setting: str, templates: list[str],
):
    def run(folder: str, *opts: str) -> tuple[dict, np.ndarray]:
        results = build_trainer(build_cfg("ZeroShot", "configs/datasets/image_folder.yaml", opts=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", tmp_path / folder,
            "DATALOADER.NUM_WORKERS", 0, *opts])).run()
        return results, RunDir(tmp_path / folder).predictions()["logits"]

    _, plain = run("plain")
    results, logits = run("templates", "PROMPT.TEMPLATE", setting)
    assert results["templates"] == templates
    same = np.allclose(plain, logits, atol=1e-4)
    assert same == (setting == "coop")  # the folder's own template is the default prompt
    with pytest.raises(ConfigError, match=r"PROMPT.TEMPLATE was ''"):
        run("plain", "PROMPT.TEMPLATE", setting)


def test_the_command_takes_templates(train, tmp_path: Path):
    done = train("ZeroShot", "PROMPT.TEMPLATE", "ensemble")
    assert done.returncode == 0, done.stderr
    assert len(json.loads((tmp_path / "run" / "results.json").read_text())["templates"]) == 8
    done = train("ZeroShot", "PROMPT.TEMPLATE", "a photo")
    assert done.returncode == 2 and "has the template 'a photo'" in done.stderr


def test_templates_work_on_tensors(clip_model: CLIP):
    views = torch.randn(2, 1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    adapted = adapt("ZeroShot", clip_model, NAMES, views, ["PROMPT.TEMPLATE", "{} texture."])
    images = F.normalize(clip_model.encode_image(views[:, 0]), dim=-1)
    expected = clip_model.logit_scale.exp() * images @ openai_features(clip_model, ["{} texture."], NAMES).T
    torch.testing.assert_close(adapted.logits, expected, atol=1e-4, rtol=1e-5)
    with pytest.raises(ConfigError, match="PROMPT.TEMPLATE coop needs a data set"):
        adapt("ZeroShot", clip_model, NAMES, views, ["PROMPT.TEMPLATE", "coop"])


@pytest.mark.parametrize(("trainer", "opts", "message"), [
    ("ZeroShot", ["PROMPT.TEMPLATE", "a photo"], "has the template 'a photo'; it must be coop, ensemble, or templates"),
    ("ZeroShot", ["PROMPT.TEMPLATE", "{} and {}"], "hold {} once each"),
    ("ZeroShot", ["PROMPT.TEMPLATE", "{} {0}"], "hold {} once each"),
    ("ZeroShot", ["PROMPT.TEMPLATE", "a {}.|"], "has the template ''"),
    ("ZeroShot", ["PROMPT.TEMPLATE", "coop", "MODEL.INIT_WEIGHTS", "x.pt"], "empty where MODEL.INIT_WEIGHTS"),
    ("SoC", ["PROMPT.TEMPLATE", "coop"], "only ZeroShot takes templates"),
])
def test_settings_that_cannot_work(trainer: str, opts: list[str], message: str):
    with pytest.raises(ConfigError) as error:
        build_cfg(trainer, opts=opts)
    assert message in str(error.value)


def test_a_template_that_is_too_long(clip_model: CLIP):
    with pytest.raises(DataError, match=r"class 0 .* has \d+ tokens, but the model takes 77"):
        template_features(OpenAIBackbone(clip_model), ["word " * 80 + "{}"], NAMES, "fp32")
