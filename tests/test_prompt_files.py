"""Prompt checkpoints: read safely, checked against model and classes, found in CoOp's layout, written, converted."""
import json
import logging
import pickle
import shutil

import numpy as np
import pytest
import torch
from promptcal.datasets.utils.errors import WeightsError
from promptcal.trainers import adapt
from promptcal.trainers.tpt import TPT
from promptcal.trainers.vlm import prompt_files
from promptcal.trainers.vlm.openai import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.prompt_files import (
    TrainingState,
    checkpoint_path,
    convert_prompt,
    find_prompt,
    load_context,
    prompt_hash,
    read_context,
    write_checkpoint,
)
from promptcal.trainers.vlm.prompts import class_tokens
from safetensors import safe_open
from safetensors.torch import save_file

from common import random_clip, run_tool
from dassl_files import PromptLearner, random_prompt, save_as_dassl

NAMES = ["kind_a", "kind_b", "kind_c", "kind_d"]
TOKENS = class_tokens(NAMES, TOKENIZER)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("classes", [0, 4], ids=["shared", "class-specific"])
def test_dassls_files_are_read_and_converted(tmp_path, clip_model, classes, dtype):
    context, backbone = random_prompt(16, classes, dtype), OpenAIBackbone(clip_model)
    source, target = save_as_dassl(tmp_path, clip_model, NAMES, context), tmp_path / "deep" / "prompt.safetensors"
    with pytest.raises(pickle.UnpicklingError):
        torch.load(source, weights_only=True)
    convert_prompt(source, target)
    for path in (source, target):
        loaded = load_context(path, backbone, TOKENS)
        assert loaded.dtype == torch.float32 and torch.equal(loaded, context.float())
    with safe_open(target, "pt") as file:
        assert set(file.keys()) == {"ctx", "token_prefix"} | ({"token_suffix"} if classes else set())
        assert file.get_tensor("ctx").dtype == dtype
    convert_prompt(target, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == target.read_bytes()


@pytest.mark.parametrize("prefix", ["module.", "prompt_learner."])
def test_names_of_modules_around_the_prompt_do_not_matter(tmp_path, clip_model, prefix):
    saved = PromptLearner(clip_model, NAMES, random_prompt()).state_dict()
    torch.save({prefix + name: value for name, value in saved.items()}, tmp_path / "bare.pt")
    context, tensors, *_ = read_context(tmp_path / "bare.pt")
    assert torch.equal(context, random_prompt()) and tensors.keys() == {"ctx", "token_prefix", "token_suffix"}


def test_class_specific_contexts_belong_to_their_classes(tmp_path, clip_model):
    path, backbone = save_as_dassl(tmp_path, clip_model, NAMES, random_prompt(classes=4)), OpenAIBackbone(clip_model)
    with pytest.raises(WeightsError, match=r"shape \(4, 4, 64\), but the data set needs \(3, n_ctx, 64\)"):
        load_context(path, backbone, TOKENS[:3])
    with pytest.raises(WeightsError, match=r"another class list or backbone \(class 2 differs\)"):
        load_context(path, backbone, class_tokens(["kind_a", "kind_b", "cat", "kind_d"], TOKENIZER))
    with pytest.raises(WeightsError, match="another class list or backbone"):
        load_context(path, OpenAIBackbone(random_clip(seed=1)), TOKENS)


def test_shared_contexts_fit_any_class_list_but_warn_of_another_backbone(tmp_path, clip_model, caplog):
    path = save_as_dassl(tmp_path, clip_model, NAMES, random_prompt())
    with caplog.at_level(logging.WARNING):
        load_context(path, OpenAIBackbone(clip_model), TOKENS[:2])
        assert not caplog.records
        load_context(path, OpenAIBackbone(random_clip(seed=1)), TOKENS)
    assert "made with another backbone" in caplog.text


@pytest.mark.parametrize(("content", "message"), [
    ({"state_dict": {"ctx": torch.ones(4, 32)}}, r"has shape \(4, 32\), but this backbone needs \(n_ctx, 64\)"),
    ({"state_dict": {"ctx": torch.ones(64)}}, r"has shape \(64,\), but this backbone needs"),
    ({"state_dict": {"ctx": torch.ones(0, 64)}}, r"has shape \(0, 64\), but this backbone needs"),
    ({"state_dict": {"ctx": torch.full((4, 64), torch.nan)}}, "not finite"),
    ({"state_dict": {f"weight{i}": torch.ones(1) for i in range(9)}}, "weight0, .*, weight4 and 4 more$"),
    ({"state_dict": [torch.ones(4, 64)]}, "holds no prompt"),
    (torch.ones(4, 64), "holds no prompt"),
    *(({"state_dict": {"ctx": torch.ones(4, 64), name: torch.ones(3)}}, f"it seems to be .*{seems}.*{name}")
      for name, seems in (("meta_net.linear1.weight", "CoCoOp's"), ("compound_prompts_text.0", "MaPLe's"),
                          ("anchor_ctx_1", "with anchors"), ("adapter.fc.0.weight", "CLIP-Adapter's"))),
])
def test_files_that_do_not_fit_get_one_line(tmp_path, clip_model, content, message):
    """Also those of other methods, whose context alone, where they have one, is not what they learnt."""
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match=message) as error:
        load_context(tmp_path / "x.pt", OpenAIBackbone(clip_model), TOKENS)
    assert "x.pt" in str(error.value) and "\n" not in str(error.value)


def test_a_prompt_that_is_overwritten_in_place(tmp_path, clip_model, monkeypatch):
    path, other, backbone = tmp_path / "p.safetensors", tmp_path / "other.safetensors", OpenAIBackbone(clip_model)
    save_file({"ctx": torch.ones(4, 64)}, path)
    save_file({"ctx": torch.zeros(4, 64)}, other)
    before, context = prompt_hash(path), load_context(path, backbone, TOKENS)
    shutil.copyfile(other, path)
    assert (context == 1).all()
    with pytest.raises(WeightsError, match="changed while it was read"):
        load_context(path, backbone, TOKENS, expected_hash=before)
    real = prompt_files.read_context
    monkeypatch.setattr(prompt_files, "read_context", lambda path: (real(path), path.write_bytes(b"x"))[0])
    with pytest.raises(WeightsError, match="changed while it was read"):
        load_context(path, backbone, TOKENS)


def test_a_prompt_that_is_replaced_during_a_run_is_reported(train, tmp_path, monkeypatch):
    path, real = tmp_path / "p.safetensors", TPT.adapt
    save_file({"ctx": random_prompt()}, path)

    def replacing(*args):
        save_file({"ctx": -random_prompt()}, path)
        return real(*args)

    monkeypatch.setattr(TPT, "adapt", replacing)
    done = train("TPT", "MODEL.INIT_WEIGHTS", path, "TTA.VIEWS", 8, "TTA.SELECT", 0.25)
    assert done.returncode == 0 and "p.safetensors has changed during the run" in done.stdout + done.stderr
    assert "20 bins; SELECT 0.25, 8 views" in done.stdout  # the settings, by the words of reports


def test_find_prompt_prefers_the_best_then_the_last(train, tmp_path, clip_model):
    for epoch in (5, 50, 100):
        save_as_dassl(tmp_path, clip_model, NAMES, random_prompt(), epoch)
    assert find_prompt(tmp_path, 50).name == "model.pth.tar-50"
    assert find_prompt(tmp_path).name == "model.pth.tar-100"
    save_as_dassl(tmp_path, clip_model, NAMES, random_prompt(), best=True)
    assert find_prompt(tmp_path).name == "model-best.pth.tar"
    with pytest.raises(WeightsError, match=r"model-best\.pth\.tar, .*model\.pth\.tar-5, model\.pth\.tar-50"):
        find_prompt(tmp_path, 7)
    with pytest.raises(WeightsError, match="no prompt at .*nowhere.* holds no checkpoint; correct --model-dir"):
        find_prompt(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match="has seed1: choose with --seed"):
        save_as_dassl(tmp_path / "several" / "seed1", clip_model, NAMES, random_prompt(), 50)
        find_prompt(tmp_path / "several")
    done = train("SoC", "MODEL.INIT_WEIGHTS", tmp_path / "nowhere.pt")
    assert done.returncode == 2 and "no prompt checkpoint at" in done.stderr and "small-coop-4shot" in done.stderr


def test_all_ways_to_name_a_prompt_give_the_same_run(train, tmp_path, clip_model):
    """The path, the folder with an epoch, the folder's best, and a converted copy; each recorded with its hash."""
    path = save_as_dassl(tmp_path / "coop", clip_model, NAMES, random_prompt(8))
    best = save_as_dassl(tmp_path / "coop", clip_model, NAMES, random_prompt(8), best=True)
    clean = tmp_path / "clean.safetensors"
    done = run_tool("convert_prompt.py", path, clean)
    assert done.returncode == 0 and "ctx (8, 64), token_prefix (1, 1, 64)" in done.stdout
    logits = []
    for used, *args in ((path, "MODEL.INIT_WEIGHTS", path), (clean, "MODEL.INIT_WEIGHTS", clean),
                        (path, "--model-dir", tmp_path / "coop", "--load-epoch", 50),
                        (best, "--model-dir", tmp_path / "coop")):
        run = tmp_path / f"run{len(logits)}"
        done = train("TPT", *args, "TTA.VIEWS", 8, "TTA.SELECT", 0.25, "OUTPUT_DIR", run)
        assert done.returncode == 0, done.stderr
        logits.append(np.load(run / "predictions.npz")["logits"])
        results = json.loads((run / "results.json").read_text())
        assert results["init_weights"] == str(used)
        assert results["init_weights_hash"] == prompt_hash(used) == results["record"]["model"]["prompt"]["hash"]
    assert all(np.array_equal(logits[0], other) for other in logits)
    done = train("TPT", "TTA.VIEWS", 8, "TTA.SELECT", 0.25, "OUTPUT_DIR", tmp_path / "run0")
    assert done.returncode == 2 and "prompt was" in done.stderr  # a run from another prompt is another run


@pytest.mark.parametrize("method", ["ZeroShot", "TPT", "SoC"])
@pytest.mark.parametrize("classes", [0, 4], ids=["shared", "class-specific"])
def test_every_method_starts_from_a_prompt(tmp_path, clip_model, method, classes):
    path, prompt = save_as_dassl(tmp_path, clip_model, NAMES, random_prompt(classes=classes)), random_prompt(4, classes)
    views = torch.randn(2, 8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    adapted = adapt(method, clip_model, NAMES, views, ["MODEL.INIT_WEIGHTS", path, "TTA.SELECT", 0.25])
    plain = adapt(method, clip_model, NAMES, views, ["TTA.SELECT", 0.25])
    moved = (adapted.ctx - prompt).abs().amax()
    assert adapted.ctx.shape == (2, *prompt.shape)
    assert moved == 0 if method == "ZeroShot" else 0.004 < moved < 0.006  # AdamW's first step, lr 0.005
    assert adapted.logits.isfinite().all() and not torch.allclose(adapted.zero_shot_logits, plain.zero_shot_logits)


@pytest.mark.parametrize("classes", [0, 4], ids=["shared", "class-specific"])
def test_our_checkpoints_are_coops(tmp_path, clip_model, classes):
    """Same folder, names, keys and tensors; and, unlike CoOp's, plain data."""
    context, path = random_prompt(8, classes=classes), checkpoint_path(tmp_path, 50)
    learner = PromptLearner(clip_model, NAMES, context)
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.002, momentum=0.9)
    state = TrainingState(50, optimizer.state_dict(), {})
    write_checkpoint(path, context, OpenAIBackbone(clip_model), TOKENS, state,
                     {"backbone": "tiny", "class_token_position": "end"})
    assert path == tmp_path / "prompt_learner" / "model.pth.tar-50" == find_prompt(tmp_path)
    assert path.with_name("checkpoint").read_text() == "model.pth.tar-50\n"
    content = torch.load(path, weights_only=True)
    assert content.keys() == {"state_dict", "epoch", "optimizer", "scheduler", "val_result", "backbone",
                              "class_token_position"}
    assert (content["epoch"], content["backbone"], content["class_token_position"]) == (50, "tiny", "end")
    expected = learner.state_dict()
    assert content["state_dict"].keys() == expected.keys()
    assert all(torch.equal(content["state_dict"][name], expected[name]) for name in expected)
    optimizer.load_state_dict(content["optimizer"])
    assert torch.equal(load_context(path, OpenAIBackbone(clip_model), TOKENS), context)


def test_a_prompt_states_its_backbone_and_class_token_position(tmp_path, clip_model):
    path, backbone = checkpoint_path(tmp_path, 3), OpenAIBackbone(clip_model)
    metadata = {"backbone": "open_clip:ViT-B-16/openai", "class_token_position": "middle"}
    write_checkpoint(path, random_prompt(), backbone, TOKENS, TrainingState(3, {}, {}), metadata)
    convert_prompt(path, tmp_path / "copy.safetensors")
    for file in (path, tmp_path / "copy.safetensors"):
        assert load_context(file, backbone, TOKENS, "middle").shape == (4, 64)
        with pytest.raises(WeightsError, match="'middle', not 'end': add TRAINER.COOP.CLASS_TOKEN_POSITION middle"):
            load_context(file, backbone, TOKENS)
        with pytest.raises(WeightsError, match=r"learnt with open_clip:ViT-B-16/openai, .* needs \(n_ctx, 128\)"):
            load_context(file, OpenAIBackbone(random_clip(width=128)), TOKENS, "middle")


def test_the_converter(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "x.safetensors")
    for source, target, message in (
        (tmp_path / "x.safetensors", "y.safetensors", "holds no context 'ctx'; tensors found: weight"),
        (tmp_path / "x.safetensors", "y.pt", "must be named .safetensors"),
        ("small-coop-8shot", "y.safetensors", "no prompt checkpoint at small-coop-8shot"),
    ):
        done = run_tool("convert_prompt.py", source, tmp_path / target)
        assert done.returncode == 2 and message in done.stderr and len(done.stderr.strip().splitlines()) == 1
        assert not (tmp_path / target).exists()
