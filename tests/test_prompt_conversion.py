"""Prompts that we write: checkpoints as CoOp's, files converted there and back, and where the class name stands."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from common import random_clip, run_tool
from dassl_files import PromptLearner, random_prompt, save_as_dassl
from promptcal.datasets.utils.errors import WeightsError
from promptcal.trainers.vlm.class_towers import ClassTowers
from promptcal.trainers.vlm.openai import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.openai_clip import CLIP
from promptcal.trainers.vlm.prompt_files import (
    EMBEDDED,
    checkpoint_path,
    convert_prompt,
    find_prompt,
    load_context,
    read_context,
    write_checkpoint,
)
from promptcal.trainers.vlm.prompts import class_tokens, find_placement
from safetensors import safe_open
from safetensors.torch import save_file

NAMES = ["kind_a", "kind_b", "kind_c", "kind_d"]


@pytest.mark.parametrize("classes", [0, 4], ids=["shared", "class-specific"])
def test_our_checkpoints_are_coops(tmp_path: Path, clip_model: CLIP, classes: int):
    """Same folder, names, keys and tensors; and, unlike CoOp's, plain data."""
    context = random_prompt(8, classes=classes)
    learner = PromptLearner(clip_model, NAMES, context)
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.002, momentum=0.9)
    path = checkpoint_path(tmp_path, 50)
    tokens = class_tokens(NAMES, TOKENIZER)
    write_checkpoint(path, 50, context, OpenAIBackbone(clip_model), tokens, optimizer.state_dict(), {}, "tiny")
    assert path == tmp_path / "prompt_learner" / "model.pth.tar-50" == find_prompt(tmp_path)
    assert path.with_name("checkpoint").read_text() == "model.pth.tar-50\n"
    content = torch.load(path, weights_only=True)
    coops = {"state_dict", "epoch", "optimizer", "scheduler", "val_result"}
    assert content.keys() == {*coops, "backbone", "class_token_position"}
    assert (content["epoch"], content["backbone"], content["class_token_position"]) == (50, "tiny", "end")
    expected = learner.state_dict()
    assert content["state_dict"].keys() == expected.keys()
    assert all(torch.equal(content["state_dict"][name], expected[name]) for name in expected)
    learner.load_state_dict(content["state_dict"])
    optimizer.load_state_dict(content["optimizer"])
    assert torch.equal(load_context(path, OpenAIBackbone(clip_model), class_tokens(NAMES, TOKENIZER)), context)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("classes", [0, 4], ids=["shared", "class-specific"])
def test_round_trip_through_the_converter(tmp_path: Path, clip_model: CLIP, classes: int, dtype: torch.dtype):
    context = random_prompt(classes=classes, dtype=dtype)
    source = save_as_dassl(tmp_path, clip_model, NAMES, context)
    target = tmp_path / "deep" / "prompt.safetensors"
    convert_prompt(source, target)
    with safe_open(target, "pt") as file:
        assert set(file.keys()) == {"ctx", "token_prefix"} | ({"token_suffix"} if classes else set())
        assert torch.equal(file.get_tensor("ctx"), context)
    loaded = load_context(target, OpenAIBackbone(clip_model), class_tokens(NAMES, TOKENIZER))
    assert torch.equal(loaded, context.float())
    if classes:
        with pytest.raises(WeightsError, match="another class list"):
            load_context(target, OpenAIBackbone(clip_model), class_tokens(["cat", "dog", "cow", "hen"], TOKENIZER))
    convert_prompt(target, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == target.read_bytes()


def test_the_converter_takes_embedded_prompts(tmp_path: Path):
    done = run_tool("convert_prompt.py", "small-coop-4shot", tmp_path / "copy.safetensors")
    assert done.returncode == 0, done.stderr
    assert torch.equal(read_context(tmp_path / "copy.safetensors")[0], read_context(EMBEDDED["small-coop-4shot"])[0])
    with pytest.raises(WeightsError, match="no prompt checkpoint at small-coop-8shot: .*small-coop-4shot"):
        convert_prompt("small-coop-8shot", tmp_path / "other.safetensors")


def test_the_converter_refuses_in_one_line(tmp_path: Path):
    save_file({"weight": torch.ones(2)}, tmp_path / "x.safetensors")
    for args, message in (
        ((tmp_path / "x.safetensors", tmp_path / "y.safetensors"), "holds no context 'ctx'; tensors found: weight"),
        ((tmp_path / "x.safetensors", tmp_path / "y.pt"), "must be named .safetensors"),
    ):
        done = run_tool("convert_prompt.py", *args)
        assert done.returncode == 2 and message in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_prompt_names_its_backbone_when_it_does_not_fit(tmp_path: Path, clip_model: CLIP):
    path, tokens = checkpoint_path(tmp_path, 1), class_tokens(NAMES, TOKENIZER)
    write_checkpoint(path, 1, random_prompt(), OpenAIBackbone(clip_model), tokens, {}, {}, "open_clip:ViT-B-16/openai")
    convert_prompt(path, tmp_path / "copy.safetensors")
    wide = OpenAIBackbone(random_clip(width=128))
    for file in (path, tmp_path / "copy.safetensors"):
        with pytest.raises(WeightsError, match=r"learnt with open_clip:ViT-B-16/openai, .* needs \(n_ctx, 128\)"):
            load_context(file, wide, tokens)


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("classwise", [False, True])
def test_the_class_name_stands_where_coop_puts_it(clip_model: CLIP, position: str, classwise: bool):
    """Against the prompts laid out one by one, as CoOp does it, through the model's own transformer."""
    names = ["dog", "polar_bear", "St. Bernard", "ox", "a very long kind of fish"]
    context = torch.randn(len(names), 5, 64) if classwise else torch.randn(5, 64)
    backbone = OpenAIBackbone(clip_model)
    tokens = class_tokens(names, TOKENIZER)
    reference = []
    for k, name in enumerate(names):
        own = clip_model.token_embedding(torch.tensor([tokens[k]]))[0]
        count = len(TOKENIZER.encode(name.replace("_", " ")))
        start = clip_model.token_embedding(torch.tensor(list(TOKENIZER.start)))
        words = context[k] if classwise else context
        half = {"end": 5, "middle": 2, "front": 0}[position]
        row = torch.cat([start, words[:half], own[:count], words[half:], own[count:]])
        x = row + clip_model.positional_embedding[: len(row)]
        mask = torch.full((len(row), len(row)), -torch.inf).triu(1)
        for layer in clip_model.transformer.resblocks:
            y = layer.ln_1(x)[:, None]
            x = x + layer.attn(y, y, y, need_weights=False, attn_mask=mask)[0][:, 0]
            x = x + layer.mlp(layer.ln_2(x))
        reference.append(clip_model.ln_final(x[-1]) @ clip_model.text_projection)
    reference = torch.nn.functional.normalize(torch.stack(reference), dim=-1)
    placement = find_placement(position, names, TOKENIZER)
    for group in (0, 2):
        tower = ClassTowers(backbone, tokens, group=group, placement=placement)
        assert torch.allclose(tower.text(context[None])[0], reference, atol=1e-5)
    text, vjp = ClassTowers(backbone, tokens, placement=placement).with_vjp(context[None])
    cotangent = torch.randn_like(text)
    halves = ClassTowers(backbone, tokens, placement=placement).halved().with_vjp(context[None])[1]
    gradient = vjp(cotangent)
    assert gradient.shape == context[None].shape and torch.allclose(gradient, halves(cotangent), atol=1e-4)


def test_a_prompt_says_where_its_class_name_stands(tmp_path: Path, clip_model: CLIP):
    tokens, path = class_tokens(["dog", "cat"], TOKENIZER), tmp_path / "prompt_learner" / "model.pth.tar-3"
    backbone = OpenAIBackbone(clip_model)
    write_checkpoint(path, 3, torch.randn(4, 64), backbone, tokens, {}, {}, "tiny", "middle")
    convert_prompt(path, tmp_path / "prompt.safetensors")
    for file in (path, tmp_path / "prompt.safetensors"):
        assert load_context(file, backbone, tokens, "middle").shape == (4, 64)
        with pytest.raises(WeightsError, match="'middle', not 'end': add TRAINER.COOP.CLASS_TOKEN_POSITION middle"):
            load_context(file, backbone, tokens)
