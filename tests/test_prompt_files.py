"""Prompts from anybody's checkpoint: read safely, checked against model and classes, found in CoOp's layout."""
from __future__ import annotations

import json
import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import random_clip, run_tool
from dassl_files import PromptLearner, save_as_dassl
from promptcal.datasets.utils.errors import WeightsError
from promptcal.trainers import adapt
from promptcal.trainers.vlm.checkpoints import read_checkpoint
from promptcal.trainers.vlm.class_towers import ClassTowers
from promptcal.trainers.vlm.openai import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.openai_clip import CLIP
from promptcal.trainers.vlm.prompt_files import (
    EMBEDDED,
    checkpoint_path,
    convert_prompt,
    find_prompt,
    load_context,
    prompt_hash,
    read_context,
    write_checkpoint,
)
from promptcal.trainers.vlm.prompts import class_tokens, find_placement
from safetensors import safe_open
from safetensors.torch import save_file

NAMES = ["kind_a", "kind_b", "kind_c", "kind_d"]
SAMPLE = Path(__file__).resolve().parents[2] / "shared" / "samples" / "dassl_prompt_learner" / "model.pth.tar"


def random_prompt(n_ctx: int = 4, classes: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    shape = (classes, n_ctx, 64) if classes else (n_ctx, 64)
    return torch.randn(shape, generator=torch.Generator().manual_seed(n_ctx)).to(dtype)


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("n_ctx", [4, 8, 16])
def test_dassls_files_are_read(tmp_path: Path, clip_model: CLIP, n_ctx: int, dtype: torch.dtype, zip_format: bool):
    context = random_prompt(n_ctx, dtype=dtype)
    path = save_as_dassl(tmp_path, clip_model, NAMES, context, zip_format=zip_format)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)
    loaded = load_context(path, OpenAIBackbone(clip_model), class_tokens(NAMES, TOKENIZER))
    assert loaded.dtype == torch.float32 and torch.equal(loaded, context.float())


@pytest.mark.skipif(not SAMPLE.is_file(), reason="the real checkpoint is not beside the project")
def test_a_real_file_without_ctx_gets_one_line_with_the_names_it_has():
    assert read_checkpoint(SAMPLE)["scheduler"]["warmup_epoch"] == 1
    with pytest.raises(WeightsError) as error:
        read_context(SAMPLE)
    assert "it seems to be of prompts with anchors, with anchor_ctx_1" in str(error.value)


@pytest.mark.parametrize("prefix", ["", "module.", "prompt_learner.", "module.prompt_learner."])
def test_names_of_modules_around_the_prompt_do_not_matter(tmp_path: Path, clip_model: CLIP, prefix: str):
    saved = PromptLearner(clip_model, NAMES, random_prompt()).state_dict()
    state = {prefix + name: value for name, value in saved.items()}
    torch.save({"state_dict": state}, tmp_path / "nested.pt")
    torch.save(state, tmp_path / "bare.pt")
    for name in ("nested.pt", "bare.pt"):
        context, tensors, *_ = read_context(tmp_path / name)
        assert torch.equal(context, random_prompt())
        assert tensors.keys() == {"ctx", "token_prefix", "token_suffix"}


def test_class_specific_contexts_belong_to_their_classes(tmp_path: Path, clip_model: CLIP):
    path = save_as_dassl(tmp_path, clip_model, NAMES, random_prompt(classes=4, dtype=torch.float16))
    load_context(path, OpenAIBackbone(clip_model), class_tokens(NAMES, TOKENIZER))
    with pytest.raises(WeightsError, match=r"shape \(4, 4, 64\), but the data set needs \(3, n_ctx, 64\)"):
        load_context(path, OpenAIBackbone(clip_model), class_tokens(NAMES[:3], TOKENIZER))
    with pytest.raises(WeightsError, match=r"another class list or backbone \(class 2 differs\)"):
        load_context(path, OpenAIBackbone(clip_model), class_tokens(["kind_a", "kind_b", "cat", "kind_d"], TOKENIZER))
    with pytest.raises(WeightsError, match="another class list or backbone"):
        load_context(path, OpenAIBackbone(random_clip(seed=1)), class_tokens(NAMES, TOKENIZER))


def test_shared_contexts_serve_any_class_list_but_another_backbone_is_told(tmp_path: Path, clip_model: CLIP, caplog):
    path = save_as_dassl(tmp_path, clip_model, NAMES, random_prompt())
    with caplog.at_level(logging.WARNING):
        load_context(path, OpenAIBackbone(clip_model), class_tokens(["cat", "dog"], TOKENIZER))
        assert not caplog.records
        load_context(path, OpenAIBackbone(random_clip(seed=1)), class_tokens(NAMES, TOKENIZER))
    assert "made with another backbone" in caplog.text


@pytest.mark.parametrize(("content", "message"), [
    ({"state_dict": {"ctx": torch.ones(4, 32)}}, r"has shape \(4, 32\), but this backbone needs \(n_ctx, 64\)"),
    ({"state_dict": {"ctx": torch.ones(64)}}, r"has shape \(64,\), but this backbone needs"),
    ({"state_dict": {"ctx": torch.ones(0, 64)}}, r"has shape \(0, 64\), but this backbone needs"),
    ({"state_dict": {"ctx": torch.full((4, 64), torch.nan)}}, "not finite"),
    ({"state_dict": {f"weight{i}": torch.ones(1) for i in range(9)}}, "weight0, .*, weight4 and 4 more$"),
    ({"state_dict": {}}, "tensors found: none"),
    ({"state_dict": [torch.ones(4, 64)]}, "holds no prompt"),
    (torch.ones(4, 64), "holds no prompt"),
])
def test_files_that_do_not_fit_get_one_line(tmp_path: Path, clip_model: CLIP, content, message: str):
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match=message) as error:
        load_context(tmp_path / "x.pt", OpenAIBackbone(clip_model), class_tokens(NAMES, TOKENIZER))
    assert "x.pt" in str(error.value) and "\n" not in str(error.value)


class Hostile:
    """Would create a file if it were ever rebuilt."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
def test_a_hostile_file_changes_nothing_on_disk(tmp_path: Path, clip_model: CLIP, zip_format: bool):
    trace, path = tmp_path / "trace", tmp_path / "hostile.pt"
    state = PromptLearner(clip_model, NAMES, random_prompt()).state_dict()
    torch.save({"state_dict": {**state, "extra": Hostile(trace)}, "optimizer": Hostile(trace)}, path,
               _use_new_zipfile_serialization=zip_format)
    assert torch.equal(load_context(path, OpenAIBackbone(clip_model), class_tokens(NAMES, TOKENIZER)), random_prompt())
    convert_prompt(path, tmp_path / "clean.safetensors")
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists()  # the file is hostile indeed


def test_the_command_reads_a_hostile_prompt_without_harm(train, tmp_path: Path, clip_model: CLIP):
    path = tmp_path / "hostile.pt"
    state = PromptLearner(clip_model, NAMES, random_prompt()).state_dict()
    torch.save({"state_dict": state, "scheduler": Hostile(tmp_path / "trace")}, path)
    done = train("ZeroShot", "MODEL.INIT_WEIGHTS", path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "trace").exists()


def test_a_file_that_contains_itself_ends_with_one_line(tmp_path: Path):
    content: dict = {"epoch": 1}
    content["state_dict"] = content
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match="tensors found: none"):
        read_context(tmp_path / "x.pt")


@pytest.mark.parametrize("lost", [200, 5000, 20000])
def test_truncated_files_get_one_line(tmp_path: Path, clip_model: CLIP, lost: int):
    path = save_as_dassl(tmp_path, clip_model, NAMES, random_prompt())
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(WeightsError, match="damaged or not a PyTorch file") as error:
        load_context(path, OpenAIBackbone(clip_model), class_tokens(NAMES, TOKENIZER))
    assert "\n" not in str(error.value)


def test_a_prompt_that_is_not_there(train, tmp_path: Path):
    done = train("SoC", "MODEL.INIT_WEIGHTS", tmp_path / "nowhere.pt")
    assert done.returncode == 2 and "no prompt checkpoint at" in done.stderr and "Traceback" not in done.stderr
    assert "small-coop-4shot" in done.stderr  # what else it may be
    with pytest.raises(WeightsError, match="--model-dir .*nowhere is not there: correct the path"):
        find_prompt(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match="has no folder prompt_learner: give the folder in which CoOp's run"):
        find_prompt(tmp_path)
    (tmp_path / "prompt_learner").mkdir()
    with pytest.raises(WeightsError, match="holds no checkpoint; correct --model-dir or --load-epoch"):
        find_prompt(tmp_path)


@pytest.mark.parametrize(("name", "seems"), [
    ("meta_net.linear1.weight", "CoCoOp's"), ("compound_prompts_text.0", "MaPLe's"), ("anchor_ctx_1", "with anchors"),
    ("token_of.0", "of their own"), ("adapter.fc.0.weight", "CLIP-Adapter's"),
])
def test_a_prompt_of_another_method_is_named(tmp_path: Path, name: str, seems: str):
    """Some hold a `ctx` too, which alone is not what they have learnt."""
    path = tmp_path / "model.pth.tar-50"
    torch.save({"state_dict": {"ctx": torch.randn(4, 64), name: torch.randn(3)}, "epoch": 50}, path)
    with pytest.raises(WeightsError, match=f"it seems to be .*{seems}.*{name}"):
        read_context(path)


def test_find_prompt_prefers_the_best_then_the_last(tmp_path: Path, clip_model: CLIP):
    for epoch in (5, 50, 100):
        save_as_dassl(tmp_path, clip_model, NAMES, random_prompt(), epoch)
    assert find_prompt(tmp_path, 50).name == "model.pth.tar-50"
    assert find_prompt(tmp_path).name == "model.pth.tar-100"
    save_as_dassl(tmp_path, clip_model, NAMES, random_prompt(), best=True)
    assert find_prompt(tmp_path).name == "model-best.pth.tar"
    with pytest.raises(WeightsError, match=r"model-best\.pth\.tar, .*model\.pth\.tar-5, model\.pth\.tar-50"):
        find_prompt(tmp_path, 7)


def test_all_ways_to_name_a_prompt_give_the_same_run(train, tmp_path: Path, clip_model: CLIP):
    """The path, the folder with an epoch, the folder's best, and a clean copy; each recorded with its hash."""
    path = save_as_dassl(tmp_path / "coop", clip_model, NAMES, random_prompt(8))
    save_as_dassl(tmp_path / "coop", clip_model, NAMES, random_prompt(8), best=True)
    clean = tmp_path / "clean.safetensors"
    done = run_tool("convert_prompt.py", path, clean)
    assert done.returncode == 0 and "ctx (8, 64), token_prefix (1, 1, 64)" in done.stdout
    ways = {
        "path": ("MODEL.INIT_WEIGHTS", path), "epoch": ("--model-dir", tmp_path / "coop", "--load-epoch", 50),
        "best": ("--model-dir", tmp_path / "coop"), "clean": ("MODEL.INIT_WEIGHTS", clean),
    }
    logits = {}
    for way, args in ways.items():
        run = tmp_path / way
        done = train("TPT", *args, "TTA.VIEWS", 8, "TTA.SELECT", 0.25, "OUTPUT_DIR", run)
        assert done.returncode == 0, done.stderr
        logits[way] = np.load(run / "predictions.npz")["logits"]
        results = json.loads((run / "results.json").read_text())
        used = results["init_weights"]
        assert used == str({"best": path.with_name("model-best.pth.tar"), "clean": clean}.get(way, path))
        assert results["init_weights_hash"] == prompt_hash(used) == results["fingerprint"]["prompt"]
    assert all(np.array_equal(logits["path"], other) for other in logits.values())
    done = train("TPT", "TTA.VIEWS", 8, "TTA.SELECT", 0.25, "OUTPUT_DIR", tmp_path / "path")
    assert done.returncode == 2 and "prompt was" in done.stderr  # a run from another prompt is another run


@pytest.mark.parametrize("method", ["ZeroShot", "TPT", "CTPT", "OTPT", "SoC"])
@pytest.mark.parametrize("classes", [0, 4], ids=["shared", "class-specific"])
def test_every_method_starts_from_a_prompt(tmp_path: Path, clip_model: CLIP, method: str, classes: int):
    path = save_as_dassl(tmp_path, clip_model, NAMES, random_prompt(classes=classes))
    views = torch.rand(2, 8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    adapted = adapt(method, clip_model, NAMES, views, ["MODEL.INIT_WEIGHTS", path, "TTA.SELECT", 0.25])
    plain = adapt(method, clip_model, NAMES, views, ["TTA.SELECT", 0.25])
    moved = (adapted.ctx - random_prompt(classes=classes)).abs().amax()
    assert adapted.ctx.shape == (2, *random_prompt(classes=classes).shape)
    assert moved == 0 if method == "ZeroShot" else 0.004 < moved < 0.006  # AdamW's first step, lr 0.005
    assert adapted.logits.isfinite().all() and not torch.allclose(adapted.zero_shot_logits, plain.zero_shot_logits)


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
