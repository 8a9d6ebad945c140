"""Small models with random weights, built by open_clip and transformers, and small tokenizers."""
from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from promptcal.trainers.engine.jacobian import text_jacobian
from promptcal.trainers.vlm.backbone import Backbone, initial_context
from promptcal.trainers.vlm.budget import Budget
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.openai_clip import tokenizer as openai_tokenizer
from promptcal.trainers.vlm.prompted_clip import PromptedCLIP
from promptcal.trainers.vlm.prompts import class_tokens
from promptcal.trainers.vlm.text_encoder import TextEncoder
from torch import Tensor, nn

open_clip = pytest.importorskip("open_clip")

SIDE = 32
VISION = {"image_size": SIDE, "layers": 2, "width": 64, "patch_size": 16}
# Heads of 32, not of 64.
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 3}
NAMES = ["cat", "annual crop land", "Yorkshire_Terrier", "a very long name for single class of things", "dog"]
CONTEXT = "one two three four"  # words of one token each, all different, that no class name has
WORDS = (
    "a", "photo", "of", "one", "two", "three", "four", "cat", "dog", "annual", "crop", "land",
    "yorkshire", "terrier", "very", "long", "name", "for", "single", "class", "things",
)
RESNET = {"image_size": SIDE, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None}
END_OF_TEXT = {
    **TEXT, "context_length": 32, "pool_type": "eos", "eos_id": 49407, "proj_bias": True,
    "act_kwargs": {"approximate": "tanh"},
}
SIGLIP = {
    "context_length": 32, "vocab_size": 64, "width": 64, "heads": 2, "layers": 2,
    "no_causal_mask": True, "pool_type": "last", "proj_bias": True, "norm_kwargs": {"eps": 1e-6},
    "act_kwargs": {"approximate": "tanh"},
}
COCA = {
    "text": {**TEXT, "context_length": 76, "embed_cls": True, "output_tokens": True},
    "vision": {**VISION, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
    "multimodal_cfg": {"width": 64, "heads": 2, "layers": 1, "context_length": 76},
    "custom_text": True,
}
OPEN_CLIP_KINDS = {  # name -> (whether its text tower is packed, config)
    "gelu": (True, {}),
    "quick": (True, {"quick_gelu": True}),
    "resnet": (True, {"vision": RESNET}),
    "eos": (True, {"text": END_OF_TEXT, "custom_text": True}),
    "scaled": (False, {"text": {**TEXT, "ls_init_value": 0.5}}),
    "siglip": (False, {"text": SIGLIP, "custom_text": True, "init_logit_bias": -10.0}),
    "bert": (False, {}),
    "coca": (False, COCA),
}


def livelier(model: nn.Module, *embeddings: nn.Module) -> nn.Module:
    """Random weights whose text features differ between classes; frozen."""
    with torch.no_grad():
        for embedding in embeddings:
            embedding.weight.mul_(20)
        for parameter in model.parameters():
            if parameter.dim() == 1 and parameter.numel() > 1:
                parameter.add_(0.05 * torch.randn_like(parameter))  # biases and norms that count
    return model.eval().requires_grad_(False)


def check_backbone(
    backbone: Backbone, images: Callable[[Tensor], Tensor], text: Callable[[], Tensor],
    words: nn.Embedding,
) -> None:
    """Compares features and gradients of a backbone with its library's.

    Args:
        backbone: Ours.
        images: The library's features of pixels.
        text: The library's features of CONTEXT and NAMES.
        words: The embedding within `text`.
    """
    pixels = torch.randn(3, 3, SIDE, SIDE)
    expected = F.normalize(images(pixels), dim=-1)
    torch.testing.assert_close(encode_views(backbone, pixels[None])[0], expected, atol=1e-5, rtol=0)
    encoder = TextEncoder(backbone, class_tokens(NAMES, backbone.tokenizer))
    prompt = PromptedCLIP(NAMES, encoder, initial_context(backbone, CONTEXT))
    expected = text()
    torch.testing.assert_close(prompt.text, expected, atol=1e-5, rtol=0)
    assert (expected[0] - expected[1]).norm() > 0.05  # classes that do differ
    assert expected.shape[1] == backbone.features

    weight = words.weight.requires_grad_()
    grad_text = torch.randn(2, *expected.shape)
    slow = torch.stack([torch.autograd.grad(text(), weight, each)[0] for each in grad_text])
    slow = slow[:, backbone.tokenizer.encode(CONTEXT)]
    weight.requires_grad_(False)
    through_one_graph = prompt.gradient(grad_text)
    with_jacobian = prompt.with_jacobian(text_jacobian(encoder, prompt.context)).gradient(grad_text)
    in_groups = TextEncoder(backbone, encoder.class_tokens, budget=Budget(1, classes=2, views=1))
    _, vjp = in_groups.with_vjp(prompt.context.expand(2, -1, -1))
    for gradient in (through_one_graph, with_jacobian, vjp(grad_text)):
        assert (gradient - slow).norm() < 1e-4 * slow.norm()


def bert_tokenizer(folder: Path) -> Path:
    """A WordPiece tokenizer in BERT's layout."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, ".", *letters, *(f"##{letter}" for letter in letters), *WORDS[1:]]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]")
    tokenizer.save_pretrained(folder)
    return folder


def siglip_tokenizer(folder: Path) -> Path:
    """SigLIP's own tokenizer with a SentencePiece model trained on a few words.

    Punctuation is removed and letters are small.
    """
    import sentencepiece
    from transformers import SiglipTokenizer

    folder.mkdir(exist_ok=True)
    (folder / "words").write_text("\n".join([*[" ".join(WORDS)] * 20, *WORDS * 5]))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "words"), model_prefix=str(folder / "spiece"), vocab_size=60,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2)
    tokenizer = SiglipTokenizer(vocab_file=str(folder / "spiece.model"), pad_token="</s>")
    tokenizer.save_pretrained(folder)
    return folder


def clip_tokenizer(folder: Path) -> Path:
    """OpenAI's own vocabulary as transformers keeps it."""
    from transformers import CLIPTokenizer

    merges = sorted(openai_tokenizer.bpe_ranks, key=openai_tokenizer.bpe_ranks.get)
    CLIPTokenizer(vocab=dict(openai_tokenizer.encoder), merges=merges).save_pretrained(folder)
    return folder


def open_clip_config(folder: Path, name: str, text: dict | None = None, vision: dict | None = None, **more) -> None:
    """Makes a small model known to open_clip by name."""
    config = {"embed_dim": 48, "vision_cfg": vision or VISION, "text_cfg": text or TEXT, **more}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    open_clip.add_model_config(path)


def open_clip_model(name: str, **how) -> nn.Module:
    torch.manual_seed(0)
    model = open_clip.create_model(name, pretrained_text=False, **how)
    return livelier(model, word_embedding(model))


def word_embedding(model: nn.Module) -> nn.Embedding:
    """Of one of open_clip's models."""
    text = getattr(model, "text", model)
    if hasattr(text.transformer, "get_input_embeddings"):  # one of Hugging Face's
        return text.transformer.get_input_embeddings()
    return text.token_embedding


def make_open_clip(folder: Path, kind: str) -> tuple[str, torch.nn.Module]:
    """The model's name and open_clip's own random model, whose weights lie at
    <folder>/<kind>.pt."""
    _, config = OPEN_CLIP_KINDS[kind]
    config = dict(config)
    if kind == "siglip":
        config["text"] = {**SIGLIP, "hf_tokenizer_name": str(siglip_tokenizer(folder / "siglip"))}
    if kind == "bert":
        from transformers import BertConfig

        bert = bert_tokenizer(folder / "bert")
        bert_config = BertConfig(
            vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=96, max_position_embeddings=40, pad_token_id=0)
        bert_config.save_pretrained(bert)
        config["text"] = {
            "hf_model_name": str(bert),
            "hf_tokenizer_name": str(bert),
            "hf_proj_type": "mlp",
            "hf_pooler_type": "mean_pooler",
            "context_length": 40,
        }
    name = f"promptcal-{kind}"
    open_clip_config(folder, name, **config)
    model = open_clip_model(name)
    torch.save(model.state_dict(), folder / f"{kind}.pt")
    return name, model


def library_text(model: torch.nn.Module, name: str, context: str, names: list[str]) -> torch.Tensor:
    prompts = [f"{context} {each.replace('_', ' ')}." for each in names]
    config = json.dumps(open_clip.get_model_config(name)["text_cfg"])
    return F.normalize(model.encode_text(library_tokenizer(name, config)(prompts)), dim=-1)


@functools.lru_cache(1)
def library_tokenizer(name: str, config: str):
    """Of a model with this text config; OpenAI's vocabulary takes a while to read."""
    return open_clip.get_tokenizer(name)


def model_folder(folder: Path, kind: str) -> torch.nn.Module:
    """A model as it lies on the hub: config, weights and tokenizer side by side."""
    name, model = make_open_clip(folder, kind)
    preprocessing = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "squash"}
    config = {"model_cfg": open_clip.get_model_config(name), "preprocess_cfg": preprocessing}
    (folder / kind / "open_clip_config.json").write_text(json.dumps(config))
    torch.save(model.state_dict(), folder / kind / "open_clip_pytorch_model.bin")
    return model
