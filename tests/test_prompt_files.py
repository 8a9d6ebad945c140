"""Prompt checkpoints: read safely, checked against model and classes, found in CoOp's layout,
written, converted."""
import logging
import pickle
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from promptcal.datasets.utils.errors import WeightsError
from promptcal.trainers import adapt
from promptcal.trainers.engine.adapted import Adapted
from promptcal.trainers.vlm import prompt_files
from promptcal.trainers.vlm.loading import TOKENIZER, OpenAIBackbone
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
from folders import results_of

NAMES = ["kind_a", "kind_b", "kind_c", "kind_d"]
TOKENS = class_tokens(NAMES, TOKENIZER)
FEW_VIEWS = ("TTA.VIEWS", 8, "TTA.SELECT", 0.25)
shared_or_class_specific = pytest.mark.parametrize("classes", [0, 4], ids=["shared", "class-specific"])


@pytest.fixture
def backbone(clip_model):
    return OpenAIBackbone(clip_model)


@pytest.fixture
def save(clip_model):
    """Writes a prompt as Dassl does, by folder and context."""
    return partial(save_as_dassl, model=clip_model, classnames=NAMES)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@shared_or_class_specific
def test_dassls_files_are_read_and_converted(tmp_path, save, backbone, classes, dtype):
    context = random_prompt(16, classes, dtype)
    source = save(tmp_path, context=context)
    target = tmp_path / "deep" / "prompt.safetensors"
    with pytest.raises(pickle.UnpicklingError):
        torch.load(source, weights_only=True)
    convert_prompt(source, target)
    for path in (source, target):
        loaded = load_context(path, backbone, TOKENS)
        assert loaded.dtype == torch.float32 and torch.equal(loaded, context.float())
    with safe_open(target, "pt") as file:
        assert ("token_suffix" in file.keys()) == (classes > 0)  # noqa: SIM118 - not a dict
        assert file.get_tensor("ctx").dtype == dtype
    convert_prompt(target, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == target.read_bytes()


@pytest.mark.parametrize("prefix", ["module.", "prompt_learner."])
def test_names_of_modules_around_the_prompt_do_not_matter(tmp_path, clip_model, prefix):
    state = {}
    for name, value in PromptLearner(clip_model, NAMES, random_prompt()).state_dict().items():
        state[prefix + name] = value
    torch.save(state, tmp_path / "bare.pt")
    context, tensors, *_ = read_context(tmp_path / "bare.pt")
    assert torch.equal(context, random_prompt())
    assert tensors.keys() == {"ctx", "token_prefix", "token_suffix"}


def test_class_specific_contexts_belong_to_their_classes(tmp_path, save, backbone):
    path = save(tmp_path, context=random_prompt(classes=4))
    with pytest.raises(WeightsError, match=r"shape \(4, 4, 64\), but the data set needs \(3, n_ctx, 64\)"):
        load_context(path, backbone, TOKENS[:3])
    other_tokens = class_tokens(["kind_a", "kind_b", "cat", "kind_d"], TOKENIZER)
    with pytest.raises(WeightsError, match=r"another class list or backbone \(class 2 differs\)"):
        load_context(path, backbone, other_tokens)
    with pytest.raises(WeightsError, match="another class list or backbone"):
        load_context(path, OpenAIBackbone(random_clip(seed=1)), TOKENS)


def test_shared_contexts_fit_any_class_list_but_warn_of_another_backbone(tmp_path, save, backbone, caplog):
    path = save(tmp_path, context=random_prompt())
    with caplog.at_level(logging.WARNING):
        load_context(path, backbone, TOKENS[:2])
        assert not caplog.records
        load_context(path, OpenAIBackbone(random_clip(seed=1)), TOKENS)
    assert "made with another backbone" in caplog.text


@pytest.mark.parametrize(("content", "message"), [
    ({"ctx": torch.ones(4, 32)}, r"has shape \(4, 32\), but this backbone needs \(n_ctx, 64\)"),
    ({"ctx": torch.ones(64)}, r"has shape \(64,\), but this backbone needs"),
    ({"ctx": torch.ones(0, 64)}, r"has shape \(0, 64\), but this backbone needs"),
    ({"ctx": torch.full((4, 64), torch.nan)}, "not finite"),
    (dict.fromkeys("abcdefghi", torch.ones(1)), "found: a, b, c, d, e and 4 more$"),
    ([torch.ones(4, 64)], "holds no prompt"),
    ({"ctx": torch.ones(4, 64), "meta_net.linear1.weight": torch.ones(3)}, "it seems to be .*CoCoOp's"),
    ({"ctx": torch.ones(4, 64), "compound_prompts_text.0": torch.ones(3)}, "it seems to be .*MaPLe's"),
    ({"ctx": torch.ones(4, 64), "anchor_ctx_1": torch.ones(3)}, "it seems to be .*with anchors"),
    ({"ctx": torch.ones(4, 64), "adapter.fc.0.weight": torch.ones(3)}, "it seems to be .*CLIP-Adapter's"),
])
def test_files_that_do_not_fit_get_one_line(tmp_path, backbone, content, message):
    """Also those of other methods: the context alone is not what they learnt."""
    torch.save({"state_dict": content}, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match=message) as error:
        load_context(tmp_path / "x.pt", backbone, TOKENS)
    assert "x.pt" in str(error.value) and "\n" not in str(error.value)


def test_a_prompt_that_is_overwritten_in_place(tmp_path, backbone, monkeypatch):
    path = tmp_path / "p.safetensors"
    other = tmp_path / "other.safetensors"
    save_file({"ctx": torch.ones(4, 64)}, path)
    save_file({"ctx": torch.zeros(4, 64)}, other)
    before = prompt_hash(path)
    context = load_context(path, backbone, TOKENS)
    shutil.copyfile(other, path)
    assert (context == 1).all()
    with pytest.raises(WeightsError, match="changed while it was read"):
        load_context(path, backbone, TOKENS, expected_hash=before)

    real = prompt_files.read_context

    def read_then_overwrite(path):
        context = real(path)
        path.write_bytes(b"x")
        return context

    monkeypatch.setattr(prompt_files, "read_context", read_then_overwrite)
    with pytest.raises(WeightsError, match="changed while it was read"):
        load_context(path, backbone, TOKENS)


def test_a_prompt_that_is_replaced_during_a_run_is_reported(train, tmp_path, monkeypatch):
    path = tmp_path / "p.safetensors"
    save_file({"ctx": random_prompt()}, path)
    real = Adapted.check_shapes

    def adapt_and_replace(*args):
        save_file({"ctx": -random_prompt()}, path)
        real(*args)

    monkeypatch.setattr(Adapted, "check_shapes", adapt_and_replace)
    done = train("TPT", "MODEL.INIT_WEIGHTS", path, *FEW_VIEWS)
    assert done.returncode == 0
    assert "p.safetensors has changed during the run" in done.stdout + done.stderr
    assert "20 bins; SELECT 0.25, 8 views" in done.stdout  # the settings, by the words of reports


def test_find_prompt_prefers_the_best_then_the_last(train, tmp_path, save):
    for epoch in (5, 50, 100):
        save(tmp_path, context=random_prompt(), epoch=epoch)
    assert find_prompt(tmp_path, 50).name == "model.pth.tar-50"
    assert find_prompt(tmp_path).name == "model.pth.tar-100"
    (tmp_path / "prompt_learner" / "checkpoint").write_text("model.pth.tar-50\n")  # trained later
    assert find_prompt(tmp_path).name == "model.pth.tar-50"
    for name in ("../model.pth.tar-50", "model.pth.tar-7", "\udcff", ""):
        path = tmp_path / "prompt_learner" / "checkpoint"
        path.write_bytes(name.encode(errors="surrogateescape"))
        assert find_prompt(tmp_path).name == "model.pth.tar-100"
    save(tmp_path, context=random_prompt(), best=True)
    assert find_prompt(tmp_path).name == "model-best.pth.tar"
    with pytest.raises(WeightsError, match=r"model-best\.pth\.tar, .*model\.pth\.tar-5, model\.pth\.tar-50"):
        find_prompt(tmp_path, 7)
    with pytest.raises(WeightsError, match="no prompt at .*nowhere.* holds no checkpoint; correct --model-dir"):
        find_prompt(tmp_path / "nowhere")
    save(tmp_path / "several" / "seed1", context=random_prompt())
    with pytest.raises(WeightsError, match="has seed1: choose with --seed"):
        find_prompt(tmp_path / "several")
    done = train("SoC", "MODEL.INIT_WEIGHTS", tmp_path / "nowhere.pt")
    assert done.returncode == 2
    assert "no prompt checkpoint at" in done.stderr and "small-coop-4shot" in done.stderr


def test_all_ways_to_name_a_prompt_give_the_same_run(train, tmp_path, save):
    """The path, the folder with an epoch, the folder's best, and a converted copy; each with its
    hash."""
    folder = tmp_path / "coop"
    path = save(folder, context=random_prompt(8))
    best = save(folder, context=random_prompt(8), best=True)
    copy = tmp_path / "copy.safetensors"
    done = run_tool("convert_prompt.py", path, copy)
    assert done.returncode == 0 and "ctx (8, 64), token_prefix (1, 1, 64)" in done.stdout
    ways = [
        (path, "MODEL.INIT_WEIGHTS", path),
        (copy, "MODEL.INIT_WEIGHTS", copy),
        (path, "--model-dir", folder, "--load-epoch", 50),
        (best, "--model-dir", folder),
    ]
    logits = []
    for number, (prompt_path, *args) in enumerate(ways):
        run = tmp_path / f"run{number}"
        done = train("TPT", *args, *FEW_VIEWS, "OUTPUT_DIR", run)
        assert done.returncode == 0, done.stderr
        logits.append(np.load(run / "predictions.npz")["logits"])
        assert np.array_equal(logits[0], logits[-1])
        results = results_of(run)
        assert results["init_weights"] == str(prompt_path)
        assert results["init_weights_hash"] == prompt_hash(prompt_path)
        assert results["record"]["model"]["prompt"]["hash"] == prompt_hash(prompt_path)
    done = train("TPT", *FEW_VIEWS, "OUTPUT_DIR", tmp_path / "run0")
    # a run from another prompt is another run
    assert done.returncode == 2 and "prompt was" in done.stderr


@pytest.mark.parametrize("method", ["ZeroShot", "TPT", "SoC"])
@shared_or_class_specific
def test_every_method_starts_from_a_prompt(tmp_path, clip_model, save, method, classes):
    prompt = random_prompt(4, classes)
    path = save(tmp_path, context=random_prompt(4, classes))
    views = torch.randn(2, 8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    options = ["TTA.SELECT", 0.25]
    plain = adapt(method, clip_model, NAMES, views, options)
    adapted = adapt(method, clip_model, NAMES, views, [*options, "MODEL.INIT_WEIGHTS", path])
    moved = (adapted.ctx - prompt).abs().amax()
    assert adapted.ctx.shape == (2, *prompt.shape)
    if method == "ZeroShot":
        assert moved == 0
    else:
        assert 0.004 < moved < 0.006  # AdamW's first step, lr 0.005
    assert adapted.logits.isfinite().all()
    assert not torch.allclose(adapted.zero_shot_logits, plain.zero_shot_logits)


@shared_or_class_specific
def test_our_checkpoints_are_coops(tmp_path, clip_model, backbone, classes):
    """Same folder, names, keys and tensors; and, unlike CoOp's, plain data."""
    context = random_prompt(8, classes=classes)
    path = checkpoint_path(tmp_path, 50)
    learner = PromptLearner(clip_model, NAMES, context)
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.002, momentum=0.9)
    state = TrainingState(50, optimizer.state_dict(), {})
    metadata = {"backbone": "tiny", "class_token_position": "end"}
    write_checkpoint(path, context, backbone, TOKENS, state, metadata)
    assert path == tmp_path / "prompt_learner" / "model.pth.tar-50" == find_prompt(tmp_path)
    assert path.with_name("checkpoint").read_text() == "model.pth.tar-50\n"
    content = torch.load(path, weights_only=True)
    assert content.keys() == {
        "state_dict", "epoch", "optimizer", "scheduler", "val_result", "backbone",
        "class_token_position",
    }
    assert content["epoch"] == 50
    assert (content["backbone"], content["class_token_position"]) == ("tiny", "end")
    expected = learner.state_dict()
    assert content["state_dict"].keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(content["state_dict"][name], tensor), name
    optimizer.load_state_dict(content["optimizer"])
    assert torch.equal(load_context(path, backbone, TOKENS), context)


def test_a_prompt_states_its_backbone_and_class_token_position(tmp_path, backbone):
    path = checkpoint_path(tmp_path, 3)
    copy = tmp_path / "copy.safetensors"
    metadata = {"backbone": "open_clip:ViT-B-16/openai", "class_token_position": "middle"}
    write_checkpoint(path, random_prompt(), backbone, TOKENS, TrainingState(3, {}, {}), metadata)
    convert_prompt(path, copy)
    for file in (path, copy):
        assert load_context(file, backbone, TOKENS, "middle").shape == (4, 64)
        with pytest.raises(WeightsError, match="'middle', not 'end': add TRAINER.COOP.CLASS_TOKEN_POSITION middle"):
            load_context(file, backbone, TOKENS)
        with pytest.raises(WeightsError, match=r"learnt with open_clip:ViT-B-16/openai, .* needs \(n_ctx, 128\)"):
            load_context(file, OpenAIBackbone(random_clip(width=128)), TOKENS, "middle")


@pytest.mark.parametrize(("source", "target", "message"), [
    ("x.safetensors", "y.safetensors", "holds no context 'ctx'; tensors found: weight"),
    ("x.safetensors", "y.pt", "must be named .safetensors"),
    ("small-coop-8shot", "y.safetensors", "no prompt checkpoint at "),
])
def test_the_converter_refuses(tmp_path, source, target, message):
    save_file({"weight": torch.ones(2)}, tmp_path / "x.safetensors")
    done = run_tool("convert_prompt.py", tmp_path / source, tmp_path / target)
    assert done.returncode == 2 and message in done.stderr and done.stderr.strip().count("\n") == 0
    assert not (tmp_path / target).exists()


def test_the_converter_writes_no_text_that_is_not_utf_8(tmp_path):
    save_file({"ctx": torch.ones(4, 8)}, tmp_path / "x.safetensors")
    copy = tmp_path / "y.safetensors"
    done = run_tool("convert_prompt.py", tmp_path / "x.safetensors", copy, "--method", "a\udcff")
    assert done.returncode == 2 and "--method writes another" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not copy.exists()
