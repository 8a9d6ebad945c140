"""Small models of each kind that open_clip has, and what the library itself computes with them."""
from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from made_models import (
    SIDE,
    TEXT,
    VISION,
    bert_tokenizer,
    open_clip_config,
    open_clip_model,
    siglip_tokenizer,
)

open_clip = pytest.importorskip("open_clip")

RESNET = {"image_size": SIDE, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None}
SIGLIP = {"context_length": 32, "vocab_size": 64, "width": 64, "heads": 2, "layers": 2, "no_causal_mask": True,
          "pool_type": "last", "proj_bias": True, "norm_kwargs": {"eps": 1e-6}, "act_kwargs": {"approximate": "tanh"}}
COCA = {
    "text": {**TEXT, "context_length": 76, "embed_cls": True, "output_tokens": True},
    "vision": {**VISION, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
    "multimodal_cfg": {"width": 64, "heads": 2, "layers": 1, "context_length": 76}, "custom_text": True,
}
KINDS = {  # name -> (whether its text tower is packed, config)
    "gelu": (True, {}), "quick": (True, {"quick_gelu": True}), "resnet": (True, {"vision": RESNET}),
    "eos": (True, {"custom_text": True, "text": {**TEXT, "context_length": 32, "pool_type": "eos", "eos_id": 49407,
                                                 "proj_bias": True, "act_kwargs": {"approximate": "tanh"}}}),
    "scaled": (False, {"text": {**TEXT, "ls_init_value": 0.5}}),
    "siglip": (False, {"text": SIGLIP, "custom_text": True, "init_logit_bias": -10.0}),
    "bert": (False, {}), "coca": (False, COCA),
}


def make(folder: Path, kind: str) -> tuple[str, torch.nn.Module]:
    """The model's name and open_clip's own random model, whose weights lie at <folder>/<kind>.pt."""
    _, config = KINDS[kind]
    config = dict(config)
    if kind == "siglip":
        config["text"] = {**SIGLIP, "hf_tokenizer_name": str(siglip_tokenizer(folder / "siglip"))}
    if kind == "bert":
        from transformers import BertConfig

        bert = bert_tokenizer(folder / "bert")
        BertConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96,
                   max_position_embeddings=40, pad_token_id=0).save_pretrained(bert)
        config["text"] = {"hf_model_name": str(bert), "hf_tokenizer_name": str(bert), "hf_proj_type": "mlp",
                          "hf_pooler_type": "mean_pooler", "context_length": 40}
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
    name, model = make(folder, kind)
    config = {"model_cfg": open_clip.get_model_config(name), "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3,
              "interpolation": "bicubic", "resize_mode": "squash"}}
    (folder / kind / "open_clip_config.json").write_text(json.dumps(config))
    torch.save(model.state_dict(), folder / kind / "open_clip_pytorch_model.bin")
    return model
