"""The shared-prefix text tower against OpenAI's own text encoder, in value and gradient."""
from __future__ import annotations

from pathlib import Path

import pytest
import reference
import torch
from common import random_clip
from promptcal.datasets.utils.errors import ConfigError, DataError
from promptcal.trainers.vlm.openai import TOKENIZER, OpenAIBackbone, text_weights
from promptcal.trainers.vlm.openai_clip import CLIP, clip
from promptcal.trainers.vlm.prompts import check_lengths, class_tokens, context_tokens, initial_context
from promptcal.trainers.vlm.text_tower import TextTower

NAMES = ["cat", "annual crop land", "Yorkshire_Terrier", "a very long name for one single class of things", "dog",
         "naïve façade", "2012 Tesla Model S", "x"]
CLASSNAMES = Path(__file__).resolve().parents[2] / "shared" / "splits" / "imagenet_classnames.txt"


def openai_features(model: CLIP, ctx_init: str, names: list[str]) -> torch.Tensor:
    prompts = [f"{ctx_init} {name.replace('_', ' ')}." for name in names]
    features = model.encode_text(clip.tokenize(prompts))
    return features / features.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("ctx_init", ["a photo of a", "itap of the", "a", "one two three four five six seven eight"])
@pytest.mark.parametrize("names", [NAMES, NAMES[:1], NAMES[1:3]])
def test_features_equal_openais(clip_model: CLIP, ctx_init: str, names: list[str]):
    tower = TextTower(text_weights(clip_model), class_tokens(names, TOKENIZER))
    ours = tower(initial_context(OpenAIBackbone(clip_model), ctx_init)[None])[0]
    torch.testing.assert_close(ours, openai_features(clip_model, ctx_init, names), atol=2e-6, rtol=1e-5)


def test_gradient_equals_the_plain_path(clip_model: CLIP):
    tokens = clip.tokenize([f"a photo of a {name.replace('_', ' ')}." for name in NAMES])
    context = initial_context(OpenAIBackbone(clip_model), "a photo of a").requires_grad_()
    cotangent = torch.randn(len(NAMES), 48, generator=torch.Generator().manual_seed(1))
    plain = torch.autograd.grad(reference.encode_prompts(clip_model, tokens, context), context, cotangent)[0]
    tower = TextTower(text_weights(clip_model), class_tokens(NAMES, TOKENIZER))
    ours = torch.autograd.grad(tower(context[None])[0], context, cotangent)[0]
    assert ((ours - plain).norm() / plain.norm()).item() < 1e-5


def test_episodes_of_a_batch_do_not_mix(clip_model: CLIP):
    tower = TextTower(text_weights(clip_model), class_tokens(NAMES, TOKENIZER))
    contexts = initial_context(OpenAIBackbone(clip_model), "a photo of a") + torch.randn(3, 4, 64)
    together = tower(contexts)
    for context, features in zip(contexts, together, strict=True):
        torch.testing.assert_close(tower(context[None])[0], features)


def test_class_specific_contexts(clip_model: CLIP):
    tower = TextTower(text_weights(clip_model), class_tokens(NAMES, TOKENIZER))
    shared = initial_context(OpenAIBackbone(clip_model), "a photo of a")
    alike = shared.expand(1, len(NAMES), -1, -1)
    torch.testing.assert_close(tower(alike), tower(shared[None]), atol=2e-6, rtol=1e-5)
    own = alike + torch.randn(2, len(NAMES), 4, 64)
    features = tower(own)
    for k, name in enumerate(NAMES):
        alone = TextTower(text_weights(clip_model), class_tokens([name], TOKENIZER))(own[:, k])
        torch.testing.assert_close(features[:, k], alone[:, 0], atol=2e-6, rtol=1e-5)


def test_half_precision_stays_close(clip_model: CLIP):
    context = initial_context(OpenAIBackbone(clip_model), "a photo of a")[None]
    exact = TextTower(text_weights(clip_model), class_tokens(NAMES, TOKENIZER))(context)
    rounded = TextTower(text_weights(clip_model), class_tokens(NAMES, TOKENIZER), "bf16")(context)
    assert rounded.dtype == torch.float32
    assert (exact * rounded).sum(-1).min() > 0.999


def test_a_thousand_classes():
    model = random_clip(layers=2)
    names = [f"thing number {k} of {'many ' * (k % 7)}" for k in range(1000)]
    context = initial_context(OpenAIBackbone(model), "a photo of a")
    features = TextTower(text_weights(model), class_tokens(names, TOKENIZER))(context[None])[0]
    picks = [0, 6, 500, 999]
    expected = openai_features(model, "a photo of a", [names[k].strip() for k in picks])
    torch.testing.assert_close(features[picks], expected, atol=2e-6, rtol=1e-5)


@pytest.mark.skipif(not CLASSNAMES.is_file(), reason="ImageNet's class names are not beside the project")
def test_tokens_of_name_and_context_join_as_in_the_whole_prompt():
    names = [line.split(" ", 1)[1] for line in CLASSNAMES.read_text().splitlines()]
    for name, own in zip(names, class_tokens(names, TOKENIZER), strict=True):
        whole = clip.tokenize(f"a photo of a {name}.")[0]
        ours = [whole[0].item(), *context_tokens("a photo of a", TOKENIZER), *own]
        assert whole[: len(ours)].tolist() == ours and not whole[len(ours) :].any()


def test_underscores_become_spaces_and_a_full_stop_is_added():
    assert class_tokens(["annual_crop_land"], TOKENIZER) == class_tokens(["annual crop land"], TOKENIZER)
    assert clip.clip._tokenizer.decode(class_tokens(["dog"], TOKENIZER)[0]) == "dog . <|endoftext|>"


def test_prompts_that_cannot_work():
    with pytest.raises(DataError, match="class 1 has an empty name"):
        class_tokens(["cat", " _ "], TOKENIZER)
    with pytest.raises(DataError, match="at least one class"):
        class_tokens([], TOKENIZER)
    with pytest.raises(ConfigError, match="no words"):
        context_tokens("  ", TOKENIZER)
    long = ["word " * 80]
    with pytest.raises(DataError, match=r"has \d+ tokens, but the model takes 77"):
        check_lengths(long, class_tokens(long, TOKENIZER), 4, OpenAIBackbone(random_clip(layers=1)))


def test_control_tokens_are_no_words():
    with pytest.raises(DataError, match="holds a control token of the tokenizer"):
        class_tokens(["cat", "dog <|endoftext|> cow"], TOKENIZER)
    with pytest.raises(DataError, match="control token"):
        context_tokens("a <|startoftext|> of", TOKENIZER)
