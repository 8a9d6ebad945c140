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
from promptcal.trainers.vlm.descriptions import read_descriptions
from promptcal.trainers.vlm.openai_clip import CLIP, clip

from common import Done
from folders import results_of

NAMES = ["cat", "annual crop land", "Yorkshire_Terrier"]
CUPL = {
    "cat": ["A cat is small.", "The cat has soft fur, and whiskers.", "A cat."],
    "Annual Crop Land": ["Fields of annual crop land seen from above.", "An aerial photo of farms."],
    "yorkshire terrier": ["A tiny dog with long hair."],
    "unused": ["An unused class."],
}
DCLIP = {
    "cat": ["four legs", "a tail", "antennae", "often grey"],
    "annual crop land": ["used for food", "may flower."],
    "Yorkshire Terrier": [],
}
TEXTS = [CUPL["cat"], CUPL["Annual Crop Land"], CUPL["yorkshire terrier"]]
PHRASES = [
    ["cat, which has four legs.", "cat, which is a tail.", "cat, which has antennae.", "cat, which often grey."],
    ["annual crop land, which is used for food.", "annual crop land, which may flower."],
    ["Yorkshire Terrier"],
]
TUNERS = []  # methods that change the context
OTHERS = []
for name in TRAINER_REGISTRY:
    trainer_class = TRAINER_REGISTRY.get(name)
    if trainer_class.tunes_context or trainer_class.trained:
        TUNERS.append(name)
    else:
        OTHERS.append(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """CuPL's descriptions."""
    path = tmp_path / "d.json"
    path.write_text(json.dumps(CUPL))
    return path


def images(count: int = 2, views: int = 1) -> torch.Tensor:
    return torch.randn(count, views, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def check_zero_shot(model: CLIP, opts: list, texts: list[list[str]], unit: bool = True) -> None:
    """Zero-shot logits are those of the mean features of each class's texts.

    Args:
        model: Whose encoders, OpenAI's, are compared with.
        opts: The settings that name the texts.
        texts: Of each class.
        unit: Whether the mean features are normalised.
    """
    means = []
    for class_texts in texts:
        features = model.encode_text(clip.tokenize(class_texts, truncate=True))
        means.append(F.normalize(features, dim=-1).mean(0))
    text = torch.stack(means)
    if unit:
        text = F.normalize(text, dim=-1)
    views = images()
    image = F.normalize(model.encode_image(views[:, 0]), dim=-1)
    expected = model.logit_scale.exp() * image @ text.T
    logits = adapt("ZeroShot", model, NAMES, views, opts).logits
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("ensemble", ["mean", "similarity"])
@pytest.mark.parametrize("texts", [TEXTS, PHRASES], ids=["CuPL", "DCLIP"])
def test_logits_are_those_of_openais_features(clip_model, file, texts, ensemble):
    if texts is PHRASES:
        file.write_text(json.dumps(DCLIP))
    opts = ["PROMPT.DESCRIPTIONS", file, "PROMPT.ENSEMBLE", ensemble]
    check_zero_shot(clip_model, opts, texts, unit=ensemble == "mean")


def test_templates_and_descriptions_are_one_unweighted_mean(clip_model, file):
    opts = ["PROMPT.DESCRIPTIONS", file, "PROMPT.TEMPLATE", "one {}.|the {}"]
    texts = [
        ["one cat.", "the cat", *TEXTS[0]],
        ["one annual crop land.", "the annual crop land", *TEXTS[1]],
        ["one Yorkshire Terrier.", "the Yorkshire Terrier", *TEXTS[2]],
    ]
    check_zero_shot(clip_model, opts, texts)


@pytest.mark.parametrize("ensemble", ["mean", "similarity"])
@pytest.mark.parametrize("trainer", OTHERS)
def test_every_method_that_keeps_the_context_uses_them(clip_model, file, trainer, ensemble):
    """Zero-shot logits are those of the texts, and the method's own depend on them."""
    views = images(3, 10)
    opts = ["PROMPT.DESCRIPTIONS", file, "PROMPT.ENSEMBLE", ensemble]
    zero_shot = adapt("ZeroShot", clip_model, NAMES, views[:, :1], opts).logits
    adapted = adapt(trainer, clip_model, NAMES, views, opts)
    without = adapt(trainer, clip_model, NAMES, views)
    torch.testing.assert_close(adapted.zero_shot_logits, zero_shot, atol=1e-4, rtol=0)
    difference = adapted.logits.softmax(-1) - without.logits.softmax(-1)
    assert difference.abs().max() > 1e-3
    mean = adapt(trainer, clip_model, NAMES, views, [*opts, "PROMPT.ENSEMBLE", "mean"])
    has_changed = (adapted.zero_shot_logits - mean.zero_shot_logits).abs().max() > 1e-3
    assert has_changed == (ensemble == "similarity")


@pytest.mark.parametrize("key", ["PROMPT.TEMPLATE", "PROMPT.DESCRIPTIONS"])
@pytest.mark.parametrize("trainer", TUNERS)
def test_methods_that_change_the_context_refuse_them(trainer, key):
    with pytest.raises(ConfigError, match=f"{key} is 'coop'; it must be empty with {trainer}"):
        build_cfg(trainer, opts=[key, "coop"])


def test_tps_keeps_a_class_temperature(clip_model, file):
    """Without a step TPS is zero-shot, also with features that are not unit."""
    opts = ["PROMPT.DESCRIPTIONS", file, "PROMPT.ENSEMBLE", "similarity", "TTA.STEPS", 0]
    adapted = adapt("TPS", clip_model, NAMES, images(2, 10), opts)
    torch.testing.assert_close(adapted.logits, adapted.zero_shot_logits)


def test_long_sentences_are_cut_and_counted(clip_model, file, caplog):
    long = ["A cat " + "and a dog " * 60, "A cat."]
    file.write_text(json.dumps({**CUPL, "cat": long}))
    check_zero_shot(clip_model, ["PROMPT.DESCRIPTIONS", file], [long, *TEXTS[1:]])
    message = "1 of 5 descriptions are longer than the model's 77 tokens and are cut there"
    assert caplog.messages.count(message) == 1


def with_cat(texts: object) -> str:
    """CuPL's file with other texts for one class."""
    return json.dumps({**CUPL, "cat": texts})


@pytest.mark.parametrize(("content", "message"), [
    ('{"cat": ["a cat"]}',
     "no texts for 2 of 3 classes: annual crop land, Yorkshire_Terrier; it has 1 names, such as"),
    (json.dumps({**CUPL, "Yorkshire_terrier": [], "Yorkshire terrier": []}), "these names twice: Yorkshire terrier"),
    (with_cat([]), "an empty list for cat"),
    (with_cat("fur"), "no list of texts for 'cat'"),
    (with_cat([1]), "no list of texts for 'cat'"),
    ("[]", "holds no names"),
    ("[" * 10**5, "is not JSON"),
    ("{", "is not JSON"),
    (with_cat(["a cat\x00"]), "control characters or broken Unicode"),
    (with_cat(["a \ud800 cat"]), "control characters or broken Unicode"),
    (with_cat(["a cat"] * 1001), "has 1001 texts for 'cat': at most 1000"),
], ids=range(11))
def test_files_that_do_not_fit(file, content, message):
    file.write_text(content)
    with pytest.raises(DataError) as error:
        read_descriptions(str(file), NAMES)
    assert message in str(error.value) and "PROMPT.DESCRIPTIONS" in str(error.value)


@pytest.mark.posix
def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    reasons = {
        "pipe": "Not a regular file",
        "absent": "No such file",
        ".": "directory|regular",
        "huge": "File too large",
    }
    for name, reason in reasons.items():
        with pytest.raises(DataError, match=f"cannot read .*{reason}"):
            read_descriptions(str(tmp_path / name), NAMES)


def test_a_run_records_the_texts_and_refuses_others(train, tmp_path):
    file = tmp_path / "cupl.json"

    def run_with(texts: dict[str, list[str]]) -> Done:
        file.write_text(json.dumps(texts))
        return train("TDA", "PROMPT.DESCRIPTIONS", file)

    texts = {"kind a": ["A."], "kind b": ["B.", "C."], "kind c": ["D."] * 3}
    done = run_with(texts)
    assert done.returncode == 2 and "no texts for 1 of 4 classes: kind" in done.stderr
    assert not (tmp_path / "run").exists()
    done = run_with({**texts, "kind d": ["E."] * 4})
    assert done.returncode == 0, done.stderr
    results = results_of(tmp_path / "run")
    assert results["texts"] == "1 to 4 sentences per class (cupl.json), mean feature"
    assert results["record"]["model"]["prompt"]["hash"] == results["descriptions_hash"]
    done = run_with({**texts, "kind d": ["F."]})
    assert done.returncode == 2 and "content of the prompt was" in done.stderr

    # The same file read in another form gives other texts; the form that `auto` finds does not.
    run_with({**texts, "kind d": ["E."] * 4})
    done = train("TDA", "PROMPT.DESCRIPTIONS", file, "PROMPT.DESCRIPTION_FORMAT", "phrases")
    assert done.returncode == 2
    assert "PROMPT.DESCRIPTION_FORMAT was 'sentences', is 'phrases'" in done.stderr
    done = train("TDA", "PROMPT.DESCRIPTIONS", file, "PROMPT.DESCRIPTION_FORMAT", "sentences")
    assert done.returncode == 0, done.stderr

    tag = build_cfg("TDA", opts=["PROMPT.DESCRIPTIONS", str(file)]).TAG
    assert tag.startswith("DESCRIPTIONS-cupl-")
    file.write_text("{}")
    assert tag != build_cfg("TDA", opts=["PROMPT.DESCRIPTIONS", str(file)]).TAG
