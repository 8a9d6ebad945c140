"""Folders of Hugging Face's models through our towers, against transformers itself."""
from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from made_models import SIDE, bert_tokenizer, clip_tokenizer, livelier, siglip_tokenizer
from PIL import Image
from promptcal.datasets.utils.errors import ConfigError, WeightsError
from promptcal.datasets.views import ViewMaker
from promptcal.trainers import load_clip
from promptcal.trainers.vlm.class_towers import ClassTowers
from promptcal.trainers.vlm.hugging_face import pooled
from promptcal.trainers.vlm.image_tower import encode_views, normalise_pixels
from promptcal.trainers.vlm.initial_prompt import InitialPrompt
from promptcal.trainers.vlm.jacobian import text_jacobian
from promptcal.trainers.vlm.loading import weights_hash
from promptcal.trainers.vlm.prompts import class_tokens, initial_context

transformers = pytest.importorskip("transformers")

NAMES = ["cat", "annual crop land", "Yorkshire_Terrier", "a very long name for single class of things", "dog"]
CONTEXT = "one two three four"
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION = {**SHAPE, "image_size": SIDE, "patch_size": 16}
END = 49407
KINDS = ("clip-old-eos", "clip-new-eos", "clip-gelu", "siglip", "bert", "chinese")
PROCESSOR = {"clip": {"size": {"shortest_edge": SIDE}, "crop_size": SIDE, "resample": 3, "do_resize": True,
                      "image_mean": [0.48145466, 0.4578275, 0.40821073],
                      "image_std": [0.26862954, 0.26130258, 0.27577711], "do_normalize": True, "do_rescale": True},
             "siglip": {"size": {"height": SIDE, "width": SIDE}, "resample": 2, "image_mean": [0.5] * 3,
                        "image_std": [0.5] * 3, "do_resize": True, "do_normalize": True, "do_rescale": True}}


def clip_model(**text) -> torch.nn.Module:
    text = {**SHAPE, "vocab_size": END + 1, "max_position_embeddings": 77, "bos_token_id": END - 1, **text}
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=48))
    return livelier(model, model.text_model.embeddings.token_embedding)


def make(folder: Path, kind: str) -> torch.nn.Module:
    """Saves a small random model with its tokenizer and image processor, as its maker would; returns it."""
    torch.manual_seed(0)
    if kind.startswith("clip"):
        clip_tokenizer(folder)
        act = "gelu" if kind == "clip-gelu" else "quick_gelu"
        model = clip_model(eos_token_id=2 if kind == "clip-old-eos" else END, hidden_act=act)
    elif kind == "siglip":
        siglip_tokenizer(folder)
        text = {**SHAPE, "vocab_size": 64, "max_position_embeddings": 32, "projection_size": 64,
                "hidden_act": "gelu_pytorch_tanh"}
        model = transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=VISION))
        livelier(model, model.text_model.embeddings.token_embedding)
    elif kind == "chinese":
        bert_tokenizer(folder)
        text = {**SHAPE, "vocab_size": 128, "max_position_embeddings": 40, "initializer_range": 0.2}
        config = transformers.ChineseCLIPConfig(text_config=text, vision_config=VISION, projection_dim=48)
        model = transformers.ChineseCLIPModel(config)
        livelier(model, model.text_model.embeddings.word_embeddings)
    else:
        bert_tokenizer(folder)
        text = transformers.BertConfig(**SHAPE, vocab_size=128, max_position_embeddings=40, initializer_range=0.2)
        vision = transformers.ViTConfig(**VISION)
        config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(vision, text, projection_dim=48)
        model = transformers.VisionTextDualEncoderModel(config)
        livelier(model, model.text_model.embeddings.word_embeddings)
    model.save_pretrained(folder)
    processor = PROCESSOR["siglip" if kind == "siglip" else "clip"]
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model


@functools.lru_cache(1)
def library_tokenizer(folder: Path):
    """OpenAI's vocabulary takes half a second to read."""
    return transformers.AutoTokenizer.from_pretrained(folder)


def library_text(model: torch.nn.Module, folder: Path, context: str, kind: str) -> torch.Tensor:
    prompts = [f"{context} {name.replace('_', ' ')}." for name in NAMES]
    tokenizer = library_tokenizer(folder)
    if kind == "siglip":  # as its model card has it
        tokens = {"input_ids": tokenizer(prompts, padding="max_length", max_length=32, return_tensors="pt").input_ids}
    else:
        tokens = tokenizer(prompts, padding=True, return_tensors="pt")
        tokens = {key: tokens[key] for key in ("input_ids", "attention_mask")}
    return F.normalize(pooled(model.get_text_features(**tokens)), dim=-1)


@pytest.mark.parametrize("kind", KINDS)
def test_features_and_gradients_are_the_librarys(kind: str, tmp_path: Path):
    model = make(tmp_path, kind)
    backbone = load_clip(f"hf:{tmp_path}", "cpu")
    assert backbone.packed == kind.startswith("clip")
    pixels = torch.randn(3, 3, SIDE, SIDE)
    expected = F.normalize(pooled(model.get_image_features(pixel_values=pixels)), dim=-1)
    torch.testing.assert_close(encode_views(backbone, pixels[None])[0], expected, atol=1e-5, rtol=0)

    tower = ClassTowers(backbone, class_tokens(NAMES, backbone.tokenizer))
    for words in ("a photo of a", CONTEXT):
        expected = library_text(model, tmp_path, words, kind)
        torch.testing.assert_close(tower.text(initial_context(backbone, words)[None])[0], expected, atol=1e-5, rtol=0)
        assert (expected[0] - expected[1]).norm() > 0.05 and expected.shape[1] == backbone.features

    embeddings = model.text_model.embeddings
    words = embeddings.word_embeddings if kind in ("bert", "chinese") else embeddings.token_embedding
    weight = words.weight.requires_grad_()
    cotangents = torch.randn(2, len(NAMES), backbone.features)
    slow = torch.stack([
        torch.autograd.grad(library_text(model, tmp_path, CONTEXT, kind), weight, each)[0] for each in cotangents
    ])[:, backbone.tokenizer.encode(CONTEXT)]
    prompt = InitialPrompt(tower, initial_context(backbone, CONTEXT))
    assert relative(prompt.gradient(cotangents), slow) < 1e-4
    prompt.jacobian = text_jacobian(tower, prompt.context)
    assert relative(prompt.gradient(cotangents), slow) < 1e-4


def relative(ours: torch.Tensor, expected: torch.Tensor) -> float:
    return ((ours - expected).norm() / expected.norm()).item()


def test_a_pickle_is_read_as_data(tmp_path: Path):
    model = make(tmp_path, "siglip")
    names = weights_hash(f"hf:{tmp_path}")
    next(tmp_path.glob("*.safetensors")).unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    backbone = load_clip(f"hf:{tmp_path}", "cpu")
    assert all(torch.equal(a, b) for a, b in zip(backbone.module.parameters(), model.parameters(), strict=True))
    assert weights_hash(f"hf:{tmp_path}") != names


def test_half_precision_stays_close(tmp_path: Path):
    make(tmp_path, "siglip")
    backbone = load_clip(f"hf:{tmp_path}", "cpu")
    tokens, context = class_tokens(NAMES, backbone.tokenizer), initial_context(backbone, CONTEXT)[None]
    exact, rounded = (ClassTowers(backbone, tokens, precision).text(context) for precision in ("fp32", "bf16"))
    assert rounded.dtype == torch.float32 and 0.99 < (exact * rounded).sum(-1).min() < 1


@pytest.mark.parametrize("kind", ["clip-new-eos", "siglip"])
def test_pixels_are_the_image_processors(kind: str, tmp_path: Path):
    make(tmp_path, kind)
    backbone = load_clip(f"hf:{tmp_path}", "cpu")
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (50, 90, 3), dtype=np.uint8))
    cls = transformers.SiglipImageProcessor if kind == "siglip" else transformers.CLIPImageProcessor
    expected = cls.from_pretrained(tmp_path)(image, return_tensors="pt").pixel_values[0]
    ours = normalise_pixels(ViewMaker.of(1, backbone.pixels, False, 0)(image, 0), backbone.pixels)[0]
    assert (ours - expected).abs().max() < 0.05  # a grey level is 0.016; libraries round differently


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(message: str, error: type = WeightsError, *how: object) -> None:
        with pytest.raises(error, match=message) as caught:
            load_clip(f"hf:{tmp_path}", "cpu", *how)
        assert "\n" not in str(caught.value)

    with pytest.raises(WeightsError, match="no folder at"):
        load_clip(f"hf:{tmp_path / 'nowhere'}", "cpu")
    refused("has no config.json")
    make(tmp_path, "clip-new-eos")
    refused("config.json has both", ConfigError, "gelu")
    names = weights_hash(f"hf:{tmp_path}")
    config = json.loads((tmp_path / "config.json").read_text())

    def with_config(**changes: object) -> None:
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))

    with_config(auto_map={"AutoModel": "evil.Model"})
    refused("asks for code in the model's folder to be run")
    with_config(model_type="blip")
    refused("a model of type 'blip': known are clip")
    (tmp_path / "config.json").write_text("{")
    refused("cannot read .*config.json")
    with_config(projection_dim=40)
    assert weights_hash(f"hf:{tmp_path}") != names
    refused("transformers cannot load|lack")
    with_config()
    (tmp_path / "preprocessor_config.json").unlink()
    refused("has no preprocessor_config.json")
    next(tmp_path.glob("*.safetensors")).unlink()
    refused(r"has neither \*.safetensors nor pytorch_model.bin")
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    (tmp_path / "model.safetensors").write_bytes(b"")
    refused(r"pip install promptcal\[hf\]")
