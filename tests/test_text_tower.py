"""The packed text tower against OpenAI's own text encoder, in value and gradient; words, tokens and
their order."""

import pytest
import torch
from promptcal.datasets.utils.errors import ConfigError, DataError, WeightsError
from promptcal.trainers.vlm.backbone import check_lengths, initial_context
from promptcal.trainers.vlm.loading import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.openai_clip import CLIP, clip
from promptcal.trainers.vlm.prompted_clip import PromptedCLIP
from promptcal.trainers.vlm.prompts import ClassTokenPosition, class_tokens
from promptcal.trainers.vlm.text_encoder import TextEncoder
from promptcal.trainers.vlm.text_tower import TextTower

from common import classes_at_once, random_clip

NAMES = [
    "cat", "annual crop land", "Yorkshire_Terrier",
    "a very long name for one single class of things", "dog", "naïve façade",
    "2012 Tesla Model S", "x",
]


def tower_of(model: CLIP, names: list[str], precision: str = "fp32") -> TextTower:
    return TextTower(OpenAIBackbone(model).text, class_tokens(names, TOKENIZER), precision)


def prompts(ctx_init: str, names: list[str]) -> torch.Tensor:
    """Tokens of whole prompts, by OpenAI's function."""
    return clip.tokenize([f"{ctx_init} {name.replace('_', ' ')}." for name in names])


MANY = [f"thing {k} of {'many ' * (k % 7)}end" for k in range(200)]


@pytest.mark.parametrize("ctx_init", ["a photo of a", "a", "one two three four five six seven eight"])
@pytest.mark.parametrize("names", [NAMES, MANY], ids=["lengths", "many"])
def test_features_equal_openais(clip_model, ctx_init, names):
    context = initial_context(OpenAIBackbone(clip_model), ctx_init)[None]
    ours = tower_of(clip_model, names)(context)[0]
    theirs = torch.nn.functional.normalize(clip_model.encode_text(prompts(ctx_init, names)), dim=-1)
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)
    rounded = tower_of(clip_model, names, "bf16")(context)[0]
    assert rounded.dtype == torch.float32 and (ours * rounded).sum(-1).min() > 0.999


def test_episodes_and_class_specific_contexts_do_not_mix(clip_model):
    tower = tower_of(clip_model, NAMES)
    shared = initial_context(OpenAIBackbone(clip_model), "a photo of a")
    contexts = shared + torch.randn(3, 4, 64)
    for context, features in zip(contexts, tower(contexts), strict=True):
        torch.testing.assert_close(tower(context[None])[0], features)
    equal = shared.expand(1, len(NAMES), -1, -1)
    torch.testing.assert_close(tower(equal), tower(shared[None]), atol=2e-6, rtol=1e-5)
    contexts = equal + torch.randn(2, len(NAMES), 4, 64)
    features = tower(contexts)
    for k, name in enumerate(NAMES):
        alone = tower_of(clip_model, [name])(contexts[:, k])
        torch.testing.assert_close(features[:, k], alone[:, 0], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("class_specific", [False, True])
def test_the_class_name_stands_where_coop_puts_it(clip_model, position, class_specific):
    """Against the prompts laid out one by one, as CoOp does it, through the model's own
    transformer."""
    context = torch.randn(len(NAMES), 5, 64) if class_specific else torch.randn(5, 64)
    tokens = class_tokens(NAMES, TOKENIZER)
    features = []
    for k, name in enumerate(NAMES):
        name_embeddings = clip_model.token_embedding(torch.tensor(tokens[k]))
        count = len(TOKENIZER.encode(name.replace("_", " ")))
        start = clip_model.token_embedding(torch.tensor(TOKENIZER.start))
        words = context[k] if class_specific else context
        half = {"end": 5, "middle": 2, "front": 0}[position]
        row = torch.cat([start, words[:half], name_embeddings[:count], words[half:], name_embeddings[count:]])
        x = row + clip_model.positional_embedding[: len(row)]
        mask = torch.full((len(row), len(row)), -torch.inf).triu(1)
        for layer in clip_model.transformer.resblocks:
            y = layer.ln_1(x)[:, None]
            x = x + layer.attn(y, y, y, need_weights=False, attn_mask=mask)[0][:, 0]
            x = x + layer.mlp(layer.ln_2(x))
        features.append(clip_model.ln_final(x[-1]) @ clip_model.text_projection)
    expected = torch.nn.functional.normalize(torch.stack(features), dim=-1)
    find = ClassTokenPosition.find(position, NAMES, TOKENIZER)
    grad_text = torch.randn(1, len(NAMES), 48)
    gradients = []
    for group in (0, 2):
        encoder = TextEncoder(OpenAIBackbone(clip_model), tokens, position=find, budget=classes_at_once(group))
        text, vjp = encoder.with_vjp(context[None])
        assert torch.allclose(text[0], expected, atol=1e-5)
        gradients.append(vjp(grad_text))
    assert gradients[0].shape == context[None].shape and torch.allclose(*gradients, atol=1e-4)


@pytest.mark.parametrize("position", ["end", "middle"])
def test_padding_changes_nothing(clip_model, monkeypatch, position):
    """As on a GPU, with two blocks for all prompts: in value and gradient, alone and fused."""
    context = initial_context(OpenAIBackbone(clip_model), "a photo of a").expand(2, -1, -1)
    tokens = class_tokens(NAMES, TOKENIZER)
    find = ClassTokenPosition.find(position, NAMES, TOKENIZER)
    grad_text = torch.randn(2, len(NAMES), 48)
    results = []
    for is_gpu in (False, True):
        monkeypatch.setattr("promptcal.trainers.vlm.text_tower.is_gpu", lambda _, is_gpu=is_gpu: is_gpu)
        monkeypatch.setattr("promptcal.trainers.vlm.text_tower.BLOCKS_ON_GPU", 2)
        tower = TextTower(OpenAIBackbone(clip_model).text, tokens, position=find)
        assert (tower.tokens > sum(map(len, tokens))) == is_gpu
        leaf = context.clone().requires_grad_()
        text = tower(leaf)
        (gradient,) = torch.autograd.grad(text, leaf, grad_text)
        with torch.no_grad():
            results.append((text, tower(context), gradient))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-4)


def test_prompts_that_cannot_work():
    for names, message in (
        (["cat", " _ "], "class 1 has an empty name"),
        ([], "at least one class"),
        (["cat", "dog <|endoftext|> cow"], "holds a control token of the tokenizer"),
    ):
        with pytest.raises(DataError, match=message):
            class_tokens(names, TOKENIZER)
    backbone = OpenAIBackbone(random_clip(layers=1))
    with pytest.raises(ConfigError, match="no words"):
        initial_context(backbone, "  ")
    long = ["word " * 80]
    with pytest.raises(DataError, match=r"has \d+ tokens, but the model takes 77"):
        check_lengths(long, class_tokens(long, TOKENIZER), 4, backbone)


def test_distinct_names_with_equal_features_are_refused(clip_model):
    """A text tower that does not read the names; names that are the same to the tokenizer are
    allowed."""
    backbone = OpenAIBackbone(clip_model)
    context = initial_context(backbone, "a photo of a")
    names = ["cat", "dog", "Cat"]
    clip = PromptedCLIP(names, TextEncoder(backbone, class_tokens(names, TOKENIZER)), context)
    assert clip.first_of_name == [0, 1, 0]
    assert clip.with_context(context.expand(3, -1, -1)).first_of_name is None
    blind = random_clip()
    blind.positional_embedding.data.zero_()
    blind.token_embedding.weight[:] = blind.token_embedding.weight[0]
    backbone = OpenAIBackbone(blind)
    with pytest.raises(
        WeightsError,
        match="classes 0 and 1 .* get the same text features, though their names differ",
    ):
        PromptedCLIP(names[:2], TextEncoder(backbone, class_tokens(names[:2], TOKENIZER)), context)
