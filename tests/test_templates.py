"""Zero-shot with CoOp's templates, written-out ones and ensembles, against OpenAI's own text
encoder."""

import pytest
import torch
import torch.nn.functional as F
from promptcal.datasets.base import DATASET_REGISTRY
from promptcal.datasets.utils.errors import ConfigError, DataError
from promptcal.trainers import adapt, build_cfg
from promptcal.trainers.vlm.class_texts import CLIP_BEST, ClassTexts, find_templates
from promptcal.trainers.vlm.loading import OpenAIBackbone
from promptcal.trainers.vlm.openai_clip import CLIP, clip

from folders import results_of

NAMES = ["cat", "annual crop land", "Yorkshire_Terrier", "dog"]


def openai_features(model: CLIP, templates: list[str], names: list[str]) -> torch.Tensor:
    """CLIP's prompt ensembling, as its notebook does it."""
    features = []
    for template in templates:
        prompts = [template.format(name.replace("_", " ")) for name in names]
        features.append(F.normalize(model.encode_text(clip.tokenize(prompts)), dim=-1))
    return F.normalize(torch.stack(features).mean(0), dim=-1)


@pytest.mark.parametrize(
    "templates",
    [["{} texture."], ["a photo of a {}, a type of pet."], ["{}"], list(CLIP_BEST)],
    ids=["name first", "words on both sides", "name alone", "ensemble"],
)
def test_features_equal_openais(clip_model, templates):
    ours = ClassTexts(templates, None, NAMES).features(OpenAIBackbone(clip_model), "fp32").unit
    torch.testing.assert_close(ours, openai_features(clip_model, templates, NAMES), atol=2e-6, rtol=1e-5)


def test_what_the_setting_stands_for():
    pets = "a photo of a {}, a type of pet."
    assert find_templates("", "OxfordPets", pets) == []
    assert find_templates("coop", "OxfordPets", pets) == [pets]
    assert find_templates("ensemble", "OxfordPets", pets) == [*CLIP_BEST, pets]
    assert find_templates("ensemble", "ImageNet", "a photo of a {}.") == list(CLIP_BEST)
    assert find_templates("one {}. | the {} ", "OxfordPets", pets) == ["one {}.", "the {}"]


def test_data_sets_have_coops_templates():
    plain = "a photo of a {}."
    expected = {
        "OxfordPets": "a photo of a {}, a type of pet.",
        "OxfordFlowers": "a photo of a {}, a type of flower.",
        "FGVCAircraft": "a photo of a {}, a type of aircraft.",
        "DescribableTextures": "{} texture.", "EuroSAT": "a centered satellite photo of {}.",
        "Food101": "a photo of {}, a type of food.", "UCF101": "a photo of a person doing {}.",
        "StanfordCars": plain, "SUN397": plain, "Caltech101": plain, "ImageNet": plain,
        "ImageNetV2": plain, "ImageNetSketch": plain, "ImageNetA": plain, "ImageNetR": plain,
    }
    assert {dataset: DATASET_REGISTRY.get(dataset).template for dataset in expected} == expected


def test_the_command_takes_templates_and_records_them(train, tmp_path):
    done = train("ZeroShot", "PROMPT.TEMPLATE", "one {}!|many {}s.")
    assert done.returncode == 0, done.stderr
    assert results_of(tmp_path / "run")["templates"] == ["one {}!", "many {}s."]
    done = train("ZeroShot", "PROMPT.TEMPLATE", "ensemble")
    assert done.returncode == 2 and "PROMPT.TEMPLATE was ['one {}!', 'many {}s.']" in done.stderr


def test_templates_that_fit_no_call(clip_model):
    views = torch.zeros(2, 1, 3, 32, 32)
    with pytest.raises(ConfigError, match="PROMPT.TEMPLATE coop needs a data set"):
        adapt("ZeroShot", clip_model, NAMES, views, ["PROMPT.TEMPLATE", "coop"])
    with pytest.raises(DataError, match=r"class 0 .* has \d+ tokens, but the model takes 77"):
        adapt("ZeroShot", clip_model, NAMES, views, ["PROMPT.TEMPLATE", "word " * 80 + "{}"])


@pytest.mark.parametrize(("trainer", "opts", "message"), [
    ("ZeroShot", ["PROMPT.TEMPLATE", "a photo"],
     "has the template 'a photo'; it must be coop, ensemble, or templates"),
    ("ZeroShot", ["PROMPT.TEMPLATE", "{} {0}"], "hold {} once each"),
    ("ZeroShot", ["PROMPT.TEMPLATE", "a {}.|"], "has the template ''"),
    ("ZeroShot", ["PROMPT.TEMPLATE", "coop", "MODEL.INIT_WEIGHTS", "x.pt"], "empty where MODEL.INIT_WEIGHTS"),
    ("SoC", ["PROMPT.TEMPLATE", "coop"], "empty with SoC, which changes the words"),
])
def test_settings_that_cannot_work(trainer, opts, message):
    with pytest.raises(ConfigError) as error:
        build_cfg(trainer, opts=opts)
    assert message in str(error.value)
