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
from common import random_clip, run_tool
from dassl_files import PromptLearner, random_prompt, save_as_dassl
from promptcal.datasets.utils.errors import WeightsError
from promptcal.trainers import adapt
from promptcal.trainers.vlm.checkpoints import read_checkpoint
from promptcal.trainers.vlm.openai import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.openai_clip import CLIP
from promptcal.trainers.vlm.prompt_files import (
    convert_prompt,
    find_prompt,
    load_context,
    prompt_hash,
    read_context,
)
from promptcal.trainers.vlm.prompts import class_tokens

NAMES = ["kind_a", "kind_b", "kind_c", "kind_d"]
SAMPLE = Path(__file__).resolve().parents[2] / "shared" / "samples" / "dassl_prompt_learner" / "model.pth.tar"


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
