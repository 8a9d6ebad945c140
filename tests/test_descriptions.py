"""Descriptions per class, in CuPL's and DCLIP's formats, against OpenAI's own text encoder."""
from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from promptcal.datasets.utils.errors import ConfigError, DataError
from promptcal.trainers import adapt, build_cfg
from promptcal.trainers.registry import TRAINER_REGISTRY
from promptcal.trainers.vlm.descriptions import from_phrase, read_descriptions
from promptcal.trainers.vlm.openai_clip import CLIP, clip

NAMES = ["cat", "annual crop land", "Yorkshire_Terrier"]
CUPL = {
    "cat": ["A cat is small.", "The cat has soft fur, and whiskers.", "A cat."],
    "Annual Crop Land": ["Fields of annual crop land seen from above.", "An aerial photo of farms."],
    "yorkshire terrier": ["A tiny dog with long hair."], "unused": ["An unused class."],
}
DCLIP = {"cat": ["four legs", "a tail", "antennae", "often grey"], "annual crop land": ["used for food"],
         "Yorkshire Terrier": []}
PHRASES = [
    ["cat, which has four legs.", "cat, which is a tail.", "cat, which has antennae.", "cat, which often grey."],
    ["annual crop land, which is used for food."], ["Yorkshire Terrier"],
]
TEXTS = [CUPL["cat"], CUPL["Annual Crop Land"], CUPL["yorkshire terrier"]]
TUNERS = [name for name in TRAINER_REGISTRY
          if TRAINER_REGISTRY.get(name).tunes_context or TRAINER_REGISTRY.get(name).trained]
OTHERS = [name for name in TRAINER_REGISTRY if name not in TUNERS]


def written(path: Path, content: object) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def mean_features(model: CLIP, texts: list[list[str]]) -> torch.Tensor:
    """(K, d), not unit."""
    return torch.stack([F.normalize(model.encode_text(clip.tokenize(own, truncate=True)), dim=-1).mean(0)
                        for own in texts])


def images(count: int = 2, views: int = 1) -> torch.Tensor:
    return torch.randn(count, views, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("ensemble", ["mean", "similarity"])
@pytest.mark.parametrize(("content", "texts"), [(CUPL, TEXTS), (DCLIP, PHRASES)], ids=["CuPL", "DCLIP"])
def test_logits_are_those_of_openais_features(clip_model: CLIP, tmp_path: Path, content, texts, ensemble: str):
    opts = ["PROMPT.DESCRIPTIONS", written(tmp_path / "d.json", content), "PROMPT.ENSEMBLE", ensemble]
    views = images()
    text = mean_features(clip_model, texts)
    if ensemble == "mean":
        text = F.normalize(text, dim=-1)
    expected = clip_model.logit_scale.exp() * F.normalize(clip_model.encode_image(views[:, 0]), dim=-1) @ text.T
    torch.testing.assert_close(adapt("ZeroShot", clip_model, NAMES, views, opts).logits, expected, atol=1e-4, rtol=1e-5)


def test_templates_and_descriptions_are_one_unweighted_mean(clip_model: CLIP, tmp_path: Path):
    opts = ["PROMPT.DESCRIPTIONS", written(tmp_path / "d.json", CUPL), "PROMPT.TEMPLATE", "one {}.|the {}"]
    names = [name.replace("_", " ") for name in NAMES]
    texts = [[f"one {name}.", f"the {name}", *own] for name, own in zip(names, TEXTS, strict=True)]
    text = F.normalize(mean_features(clip_model, texts), dim=-1)
    views = images()
    expected = clip_model.logit_scale.exp() * F.normalize(clip_model.encode_image(views[:, 0]), dim=-1) @ text.T
    torch.testing.assert_close(adapt("ZeroShot", clip_model, NAMES, views, opts).logits, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("ensemble", ["mean", "similarity"])
@pytest.mark.parametrize("trainer", OTHERS)
def test_every_method_that_keeps_the_context_uses_them(clip_model: CLIP, tmp_path: Path, trainer: str, ensemble: str):
    """Zero-shot logits are those of the texts, and the method's own depend on them."""
    views = images(3, 10)
    opts = ["PROMPT.DESCRIPTIONS", written(tmp_path / "d.json", CUPL), "PROMPT.ENSEMBLE", ensemble]
    zero_shot = adapt("ZeroShot", clip_model, NAMES, views[:, :1], opts).logits
    found, without = adapt(trainer, clip_model, NAMES, views, opts), adapt(trainer, clip_model, NAMES, views)
    torch.testing.assert_close(found.zero_shot_logits, zero_shot, atol=1e-4, rtol=1e-5)
    assert (found.logits.softmax(-1) - without.logits.softmax(-1)).abs().max() > 1e-3
    other = adapt(trainer, clip_model, NAMES, views, [*opts, "PROMPT.ENSEMBLE", "mean"])
    changed = (found.zero_shot_logits - other.zero_shot_logits).abs().max() > 1e-3
    assert changed == (ensemble == "similarity")


@pytest.mark.parametrize("key", ["PROMPT.TEMPLATE", "PROMPT.DESCRIPTIONS"])
@pytest.mark.parametrize("trainer", TUNERS)
def test_methods_that_change_the_context_refuse_them(trainer: str, key: str):
    with pytest.raises(ConfigError, match=f"{key} is 'coop'; it must be empty with {trainer}"):
        build_cfg(trainer, opts=[key, "coop"])


def test_tps_keeps_a_class_temperature(clip_model: CLIP, tmp_path: Path):
    """Without a step TPS is zero-shot, also with features that are not unit."""
    opts = ["PROMPT.DESCRIPTIONS", written(tmp_path / "d.json", CUPL), "PROMPT.ENSEMBLE", "similarity", "TTA.STEPS", 0]
    found = adapt("TPS", clip_model, NAMES, images(2, 10), opts)
    torch.testing.assert_close(found.logits, found.zero_shot_logits)


def test_long_sentences_are_cut_and_counted(clip_model: CLIP, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    content = {**CUPL, "cat": ["A cat " + "and a dog " * 60, "A cat."]}
    views = images()
    found = adapt("ZeroShot", clip_model, NAMES, views, ["PROMPT.DESCRIPTIONS", written(tmp_path / "d.json", content)])
    text = F.normalize(mean_features(clip_model, [content["cat"], *TEXTS[1:]]), dim=-1)
    expected = clip_model.logit_scale.exp() * F.normalize(clip_model.encode_image(views[:, 0]), dim=-1) @ text.T
    torch.testing.assert_close(found.logits, expected, atol=1e-4, rtol=1e-5)
    assert caplog.messages.count("1 of 5 descriptions are longer than the model's 77 tokens and are cut there") == 1


def test_the_format_is_what_most_texts_are(tmp_path: Path):
    for content, form in ((CUPL, "sentences"), (DCLIP, "phrases")):
        assert read_descriptions(written(tmp_path / "d.json", content), NAMES).form == form
    given = read_descriptions(written(tmp_path / "d.json", CUPL), NAMES, "phrases")
    assert given.texts[2] == ["Yorkshire Terrier, which is A tiny dog with long hair."]
    assert from_phrase("bee", "may sting.") == "bee, which may sting."


@pytest.mark.parametrize(("content", "message"), [
    ({"cat": ["a cat"]}, "no texts for 2 of 3 classes: annual crop land, Yorkshire_Terrier; it has 1 names, such as"),
    ({**CUPL, "Yorkshire_terrier": [], "Yorkshire terrier": []}, "these names twice: Yorkshire terrier"),
    ({**CUPL, "cat": []}, "an empty list for cat"), ({**CUPL, "cat": "fur"}, "no list of texts for 'cat'"),
    ({**CUPL, "cat": [1]}, "no list of texts for 'cat'"), ([], "holds no names"), ("[" * 10**5, "is not JSON"),
    ("{", "is not JSON"), ({**CUPL, "cat": ["a cat\x00"]}, "control characters or broken Unicode"),
    ({**CUPL, "cat": ["a \ud800 cat"]}, "control characters or broken Unicode"),
    ({**CUPL, "cat": ["a cat"] * 1001}, "has 1001 texts for 'cat': at most 1000"),
], ids=str)
def test_files_that_do_not_fit(tmp_path: Path, content: object, message: str):
    file = tmp_path / "d.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError) as error:
        read_descriptions(str(file), NAMES)
    assert message in str(error.value) and "PROMPT.DESCRIPTIONS" in str(error.value)


@pytest.mark.posix
def test_what_is_no_file(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    for name, reason in (("pipe", "Not a regular file"), ("absent", "No such file"), (".", "directory|regular"),
                         ("huge", "File too large")):
        with pytest.raises(DataError, match=f"cannot read .*{reason}"):
            read_descriptions(str(tmp_path / name), NAMES)


def test_a_run_records_the_texts_and_refuses_others(train, tmp_path: Path):
    file = tmp_path / "cupl.json"
    names = [f"kind {letter}" for letter in "abcd"]
    written(file, {name: [f"A {name}."] for name in names[:-1]})
    done = train("TDA", "PROMPT.DESCRIPTIONS", file)
    assert done.returncode == 2 and "no texts for 1 of 4 classes: kind" in done.stderr
    assert not (tmp_path / "run").exists()
    written(file, {name: [f"A {name}."] * (k + 1) for k, name in enumerate(names)})
    done = train("TDA", "PROMPT.DESCRIPTIONS", file)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["texts"] == "1 to 4 sentences per class (cupl.json), mean feature"
    assert results["record"]["model"]["prompt"]["hash"] == results["descriptions_hash"]
    written(file, {name: [f"A big {name}."] for name in names})
    done = train("TDA", "PROMPT.DESCRIPTIONS", file)
    assert done.returncode == 2 and "content of the prompt was" in done.stderr
    tags = [build_cfg("TDA", opts=["PROMPT.DESCRIPTIONS", str(file)]).TAG]
    written(file, {})
    tags.append(build_cfg("TDA", opts=["PROMPT.DESCRIPTIONS", str(file)]).TAG)
    assert tags[0] != tags[1] and tags[0].startswith("DESCRIPTIONS-cupl-")
