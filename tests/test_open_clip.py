"""Models of open_clip through our towers, against open_clip itself."""
from __future__ import annotations

import json

import pytest
import torch
from promptcal.datasets.utils.errors import ConfigError, DataError, WeightsError
from promptcal.trainers import adapt, load_clip
from promptcal.trainers.vlm.backbone import initial_context
from promptcal.trainers.vlm.loading import weights_hash
from promptcal.trainers.vlm.prompts import class_tokens
from promptcal.trainers.vlm.text_encoder import TextEncoder

from made_models import (
    CONTEXT,
    NAMES,
    OPEN_CLIP_KINDS,
    SIDE,
    check_backbone,
    library_text,
    make_open_clip,
    model_folder,
    open_clip_config,
    open_clip_model,
    word_embedding,
)

open_clip = pytest.importorskip("open_clip")


@pytest.mark.parametrize("kind", OPEN_CLIP_KINDS)
def test_features_and_gradients_are_the_librarys(kind, tmp_path):
    name, model = make_open_clip(tmp_path, kind)
    backbone = load_clip(f"open_clip:{name}@{tmp_path / kind}.pt", "cpu")
    assert backbone.packed == OPEN_CLIP_KINDS[kind][0]
    check_backbone(backbone, model.encode_image, lambda: library_text(model, name, CONTEXT, NAMES),
                   word_embedding(model))


def test_activation_and_pixels_are_those_of_the_tag(monkeypatch, tmp_path):
    open_clip_config(tmp_path, "promptcal-tags")
    model = open_clip_model("promptcal-tags", force_quick_gelu=True)
    torch.save(model.state_dict(), tmp_path / "x.pt")
    half = {"file": str(tmp_path / "x.pt"), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "promptcal-tags", {
        "quick": {**half, "quick_gelu": True, "interpolation": "bilinear", "resize_mode": "squash"},
        "plain": {**half, "interpolation": "bicubic", "resize_mode": "shortest"},
    })
    backbone = load_clip("open_clip:promptcal-tags/quick", "cpu")
    pixels = backbone.pixels
    assert (pixels.size, pixels.mean) == (SIDE, (0.5,) * 3)
    assert (pixels.resize, pixels.interpolation) == ("squash", "bilinear")
    ids = open_clip.get_tokenizer("promptcal-tags")(["a photo of a cat."])
    # QuickGELU, unlike the config.
    assert torch.equal(backbone.module.encode_text(ids), model.encode_text(ids))
    plain = load_clip("open_clip:promptcal-tags/plain", "cpu")
    assert not torch.allclose(plain.module.encode_text(ids), model.encode_text(ids), atol=1e-4)
    assert weights_hash("open_clip:promptcal-tags/quick") != weights_hash("open_clip:promptcal-tags/plain")

    file = f"promptcal-tags@{tmp_path / 'x.pt'}"
    with pytest.raises(WeightsError, match="differ in activation or pixels.*/TAG@.*such as quick or plain"):
        load_clip(f"open_clip:{file}", "cpu")
    named = load_clip(f"open_clip:promptcal-tags/plain@{tmp_path / 'x.pt'}", "cpu")
    assert named.pixels == plain.pixels != pixels
    torch.save({"x": torch.ones(2)}, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match="open_clip cannot load promptcal-tags/quick") as error:
        load_clip("open_clip:promptcal-tags/quick", "cpu")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "message"), [
    ("ViT-B-17/openai", "has no model 'ViT-B-17'. Did you mean 'ViT-B-1"),
    ("ViT-B-16/laion", "has no weights 'laion' of ViT-B-16.* with TAG one of openai"),
    ("ViT-B-16", "has no weights '' of ViT-B-16. Give open_clip:ViT-B-16/TAG"),
    ("ViT-B-16@nowhere.pt", "no weight file at nowhere.pt"),
    ("local-dir:nowhere", r"open_clip cannot load local-dir:nowhere \("),
    ("ViT-B-32/laion2b_s34b_b79k", "couldn't connect.*fetch the file and give open_clip:MODEL/TAG@FILE"),
])
def test_names_that_cannot_be_loaded(name, message, monkeypatch):
    def offline(*_, **__):
        raise OSError("We couldn't connect to the hub\nand more lines")

    monkeypatch.setattr("open_clip.download_pretrained", offline)
    with pytest.raises(WeightsError, match=message) as error:
        load_clip(f"open_clip:{name}", "cpu")
    assert "\n" not in str(error.value)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "open_clip", None)
    with pytest.raises(WeightsError, match=r"pip install -e '\.\[open_clip\]'"):
        load_clip("open_clip:ViT-B-32/openai")


def test_a_folder_with_a_model_of_its_own(tmp_path):
    """As BiomedCLIP: no built-in config, a BERT with its control tokens, and pixels of its own."""
    model = model_folder(tmp_path, "bert")
    name = f"open_clip:local-dir:{tmp_path / 'bert'}"
    backbone = load_clip(name, "cpu")
    assert backbone.pixels.resize == "squash"
    assert backbone.pixels.mean == (0.5,) * 3
    assert not backbone.packed
    assert (backbone.tokenizer.start, backbone.tokenizer.end, backbone.tokenizer.pad) == (
        (2,),
        (3,),
        0,
    )
    with pytest.raises(DataError, match="control token"):
        class_tokens(["cat [SEP] dog"], backbone.tokenizer)
    tower = TextEncoder(backbone, class_tokens(NAMES, backbone.tokenizer))
    expected = library_text(model, "promptcal-bert", CONTEXT, NAMES)
    text = tower.text(initial_context(backbone, CONTEXT)[None])[0]
    torch.testing.assert_close(text, expected, atol=1e-5, rtol=0)
    before = weights_hash(name)
    config = json.loads((tmp_path / "bert" / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"]["tokenizer_kwargs"] = {"trust_remote_code": True}
    (tmp_path / "bert" / "open_clip_config.json").write_text(json.dumps(config))
    assert weights_hash(name) != before
    with pytest.raises(WeightsError, match="asks for code to be run"):
        load_clip(name, "cpu")


def test_no_code_of_a_models_folder_runs(tmp_path, monkeypatch):
    model_folder(tmp_path, "bert")
    folder = tmp_path / "bert"
    config = json.loads((folder / "config.json").read_text())
    config.update(model_type="mine", auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(WeightsError, match="open_clip cannot load"):
        load_clip(f"open_clip:local-dir:{folder}", "cpu")
    assert not (tmp_path / "ran").exists()


def test_a_model_that_load_clip_did_not_make():
    with pytest.raises(ConfigError, match="must come from load_clip, not be a Linear"):
        adapt("SoC", torch.nn.Linear(2, 2), NAMES, torch.randn(8, 3, SIDE, SIDE))
