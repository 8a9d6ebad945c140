"""Folders of Hugging Face's models through our towers, against transformers itself."""
from __future__ import annotations

import functools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from promptcal.datasets.utils.errors import WeightsError
from promptcal.datasets.views import ViewMaker
from promptcal.trainers import load_clip
from promptcal.trainers.vlm.hugging_face import pooled
from promptcal.trainers.vlm.image_tower import normalise_pixels
from promptcal.trainers.vlm.loading import weights_hash
from promptcal.trainers.vlm.openai_clip import VOCAB_SIZE

from made_models import (
    CONTEXT,
    NAMES,
    SIDE,
    bert_tokenizer,
    check_backbone,
    clip_tokenizer,
    livelier,
    siglip_tokenizer,
)

transformers = pytest.importorskip("transformers")

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION = {**SHAPE, "image_size": SIDE, "patch_size": 16}
END = VOCAB_SIZE - 1
KINDS = ("clip-old-eos", "clip-new-eos", "clip-gelu", "siglip", "bert", "chinese")
CLIP_PROCESSOR = {
    "size": {"shortest_edge": SIDE},
    "crop_size": SIDE,
    "resample": 3,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "do_resize": True,
    "do_normalize": True,
    "do_rescale": True,
}
SIGLIP_PROCESSOR = {
    "size": {"height": SIDE, "width": SIDE},
    "resample": 2,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "do_resize": True,
    "do_normalize": True,
    "do_rescale": True,
}


def make(folder: Path, kind: str) -> torch.nn.Module:
    """Saves a small random model with its tokenizer and image processor; returns it."""
    torch.manual_seed(0)
    bert = {**SHAPE, "vocab_size": 128, "max_position_embeddings": 40, "initializer_range": 0.2}
    processor = CLIP_PROCESSOR
    if kind.startswith("clip"):
        clip_tokenizer(folder)
        text = {
            **SHAPE, "vocab_size": END + 1, "max_position_embeddings": 77, "bos_token_id": END - 1,
            "eos_token_id": END, "hidden_act": "quick_gelu",
        }
        if kind == "clip-old-eos":
            text["eos_token_id"] = 2
        if kind == "clip-gelu":
            text["hidden_act"] = "gelu"
        config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=48)
        model = transformers.CLIPModel(config)
    elif kind == "siglip":
        processor = SIGLIP_PROCESSOR
        siglip_tokenizer(folder)
        text = {
            **SHAPE, "vocab_size": 64, "max_position_embeddings": 32, "projection_size": 64,
            "hidden_act": "gelu_pytorch_tanh",
        }
        config = transformers.SiglipConfig(text_config=text, vision_config=VISION)
        model = transformers.SiglipModel(config)
    elif kind == "chinese":
        bert_tokenizer(folder)
        config = transformers.ChineseCLIPConfig(text_config=bert, vision_config=VISION, projection_dim=48)
        model = transformers.ChineseCLIPModel(config)
    else:
        bert_tokenizer(folder)
        config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
            transformers.ViTConfig(**VISION), transformers.BertConfig(**bert), projection_dim=48)
        model = transformers.VisionTextDualEncoderModel(config)
    livelier(model, model.text_model.get_input_embeddings())
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model


@functools.lru_cache(1)
def library_tokenizer(folder: Path):
    """OpenAI's vocabulary takes half a second to read."""
    return transformers.AutoTokenizer.from_pretrained(folder)


def library_text(model: torch.nn.Module, folder: Path, context: str, kind: str) -> torch.Tensor:
    prompts = [f"{context} {name.replace('_', ' ')}." for name in NAMES]
    tokenizer = library_tokenizer(folder)
    if kind == "siglip":  # as on its card
        tokens = tokenizer(prompts, return_tensors="pt", padding="max_length", max_length=32)
        features = model.get_text_features(input_ids=tokens["input_ids"])
    else:
        tokens = tokenizer(prompts, return_tensors="pt", padding=True)
        features = model.get_text_features(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
    return F.normalize(pooled(features), dim=-1)


@pytest.mark.parametrize("kind", KINDS)
def test_features_and_gradients_are_the_librarys(kind, tmp_path):
    model = make(tmp_path, kind)
    backbone = load_clip(f"hf:{tmp_path}", "cpu")
    assert backbone.packed == kind.startswith("clip")
    check_backbone(
        backbone,
        images=lambda pixels: pooled(model.get_image_features(pixel_values=pixels)),
        text=lambda: library_text(model, tmp_path, CONTEXT, kind),
        words=model.text_model.get_input_embeddings())


def edit(path: Path, **changes: object) -> None:
    content = {}
    if path.is_file():
        content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize(("kind", "library_class"), [
    ("clip-new-eos", transformers.CLIPImageProcessor),
    ("siglip", transformers.SiglipImageProcessor),
])
def test_pixels_are_the_image_processors(kind, library_class, tmp_path):
    """Libraries round differently: a grey level is 0.008 to 0.016."""
    make(tmp_path, kind)
    pixels = load_clip(f"hf:{tmp_path}", "cpu").pixels
    noise = np.random.default_rng(0).integers(0, 256, (50, 90, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    processor = library_class.from_pretrained(tmp_path)
    expected = processor(image, return_tensors="pt").pixel_values[0]
    view = ViewMaker.of(1, pixels, False, 0)(image, 0)
    assert (normalise_pixels(view, pixels)[0] - expected).abs().max() < 0.05


def refused(folder: Path, message: str) -> None:
    with pytest.raises(WeightsError, match=message) as caught:
        load_clip(f"hf:{folder}", "cpu")
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "clip"
    folder.mkdir()
    make(folder, "clip-new-eos")
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "clip"))


CONFIG = "config.json"
PROCESSOR = "preprocessor_config.json"
INDEX = "x.safetensors.index.json"
RESIZE = "must resize images .* to squares of 32 pixels.* rescale them by 1/255"


@pytest.mark.parametrize(("file", "changes", "message"), [
    (CONFIG, {"auto_map": {"AutoModel": "evil.Model"}}, "asks for code in the model's folder to be run"),
    (CONFIG, {"model_type": "blip"}, "a model of type 'blip': supported are clip"),
    (CONFIG, {"projection_dim": 40}, "transformers cannot load|lack"),
    (CONFIG, {"attn_implementation": "hub/kernel"}, "asks for the attention 'hub/kernel': only eager and sdpa"),
    (CONFIG, {"text_config": {"_attn_implementation": "hub/kernel"}}, "asks for the attention 'hub/kernel'"),
    (CONFIG, {"vision_config": {"num_hidden_layers": 10**9}}, "num_hidden_layers 1000000000: from 1 to 1000"),
    (PROCESSOR, {"rescale_factor": 1}, RESIZE),
    (PROCESSOR, {"do_rescale": False}, RESIZE),
    (PROCESSOR, {"do_normalize": False}, RESIZE),
    (PROCESSOR, {"do_center_crop": False}, RESIZE),
    (PROCESSOR, {"size": {"longest_edge": SIDE}}, RESIZE),
    (PROCESSOR, {"crop_size": SIDE // 2}, RESIZE),
    (PROCESSOR, {"image_mean": None}, RESIZE),
    (INDEX, {"weight_map": {"x": "../model.safetensors"}}, "weights that are not in the folder"),
    (INDEX, {"weight_map": {"x": "absent.safetensors"}}, "weights that are not in the folder"),
])
def test_configs_that_are_refused(folder, file, changes, message):
    edit(folder / file, **changes)
    refused(folder, message)


def test_an_end_token_that_the_tokenizer_lacks(folder):
    """The library would read every prompt at its first token, which is the same for all classes."""
    config = json.loads((folder / "config.json").read_text())
    edit(folder / "config.json", text_config={**config["text_config"], "eos_token_id": 777})
    refused(folder, r"the eos_token_id 777, but the tokenizer ends a text with \[49407\]")


def test_a_folder_without_tokenizer_is_refused(folder):
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors", "preprocessor_config.json"):
            path.unlink()
    refused(folder, "has no tokenizer")
    bert_tokenizer(folder)
    refused(folder, "tokenizer")  # of another model


@pytest.mark.posix
@pytest.mark.parametrize("make_it", [
    os.mkfifo,
    Path.mkdir,
    lambda path: path.symlink_to("nowhere"),
    lambda path: path.symlink_to("/dev/zero"),
], ids=["pipe", "folder", "broken link", "device"])
@pytest.mark.parametrize("name", ["x.safetensors", "config.json"])
def test_only_regular_files_are_read(folder, name, make_it):
    (folder / name).unlink(missing_ok=True)
    make_it(folder / name)
    refused(folder, "is not a regular file")
    with pytest.raises(WeightsError, match="is not a regular file"):
        weights_hash(f"hf:{folder}")


def test_weights_are_neither_mapped_nor_replaced(folder, sound):
    backbone = load_clip(f"hf:{folder}", "cpu")
    before = weights_hash(f"hf:{folder}")
    values = [parameter.clone() for parameter in backbone.module.parameters()]
    weights = folder / "model.safetensors"
    with weights.open("r+b") as file:  # in place, as `cp` does
        file.seek(-4000, 2)
        file.write(bytes(4000))
    assert all(map(torch.equal, values, backbone.module.parameters()))
    with pytest.raises(WeightsError, match="changed while they were read"):
        load_clip(f"hf:{folder}", "cpu", expected_hash=before)


def test_what_else_is_refused(folder, tmp_path, monkeypatch):
    refused(tmp_path / "nowhere", "no folder at")
    (folder / "config.json").write_text("[" * 100_000)
    refused(folder, "cannot read .*config.json")
    (folder / "config.json").unlink()
    refused(folder, "has no config.json")
    (folder / "config.json").write_text('{"model_type": "clip"}')
    (folder / "preprocessor_config.json").unlink()
    (folder / "model.safetensors").unlink()
    refused(folder, r"has no \*.safetensors")
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    (folder / "model.safetensors").write_bytes(b"")
    refused(folder, r"pip install -e '\.\[hf\]'")
