"""The small CLIP: its file, its prompts, and the code that made it."""
import hashlib
import logging
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from promptcal.datasets import build_dataset
from promptcal.datasets.synthetic import CLASSNAMES
from promptcal.trainers import build_cfg, build_trainer, load_clip
from promptcal.trainers.functional.objectives import unit
from promptcal.trainers.vlm.loading import PUBLISHED_WEIGHTS, full_token_table
from promptcal.trainers.vlm.openai_clip import CLIP, clip, tokenizer
from promptcal.trainers.vlm.prompt_files import EMBEDDED
from promptcal.trainers.vlm.small import train as training
from promptcal.trainers.vlm.small.train import (
    CONDITION_WORDS,
    HELD_OUT_CLASSES,
    HELD_OUT_NAMES,
    LAND,
    draw_caption,
    normalised,
    training_tiles,
)
from safetensors.torch import load_file

from common import PROJECT
from data_roots import labels_of

SMALL = PROJECT / "trainers" / "vlm" / "small"
WEIGHTS = SMALL / "small_clip.safetensors"
CARD = (SMALL / "SMALL_CLIP.md").read_text(encoding="utf-8")


def test_the_file_is_the_one_of_the_card_in_openais_format():
    digest = hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
    assert digest == re.search(r"SHA-256.*`([0-9a-f]{64})`", CARD).group(1)
    assert PUBLISHED_WEIGHTS[digest[:16]] == "small"
    state = load_file(WEIGHTS)
    rows = state.pop("token_embedding.rows").long()
    assert torch.equal(rows, training.ROWS)
    expected = CLIP(**training.ARCHITECTURE).state_dict()
    expected["token_embedding.weight"] = torch.empty(len(rows), 128)
    assert state.keys() == expected.keys()
    for name, value in state.items():
        assert value.shape == expected[name].shape, name
    table = load_clip("small", "cpu").token_embedding.weight
    assert torch.equal(table[rows], state["token_embedding.weight"].float())
    untrained = torch.ones(len(table), dtype=torch.bool).index_fill(0, rows, False)
    assert torch.equal(table[untrained], full_token_table(rows[:0], table[:0])[untrained])


def test_the_geometry_is_that_of_clip_and_of_the_card():
    """Narrow class features far from the images, and a confidence near the accuracy."""
    model = load_clip("small", "cpu")
    data = build_dataset("LandCover", "")
    items = data.test[::5]
    tiles = torch.from_numpy(np.stack([np.asarray(data.read_image(item)) for item in items]))
    with torch.no_grad():
        images = unit(model.encode_image(normalised(tiles)))
        text = unit(model.encode_text(clip.tokenize([f"a photo of a {name}." for name in data.classnames])))
    pairs = (text @ text.T)[~torch.eye(len(text), dtype=torch.bool)]
    assert pairs.min() > 0
    assert f"mean {pairs.mean():.2f}, standard deviation {pairs.std():.3f}" in CARD
    cosines = images @ text.T
    labels = torch.tensor(labels_of(items))
    confidence, guess = (model.logit_scale.exp() * cosines).softmax(-1).max(-1)
    accuracy = (guess == labels).float().mean()
    assert cosines.gather(1, labels[:, None]).mean() < 0.5
    assert 0.55 < accuracy < 0.8 and abs(confidence.mean() - accuracy) < 0.06


def test_the_scale_that_made_the_labels_is_found_again():
    generator = torch.Generator().manual_seed(0)
    cosines = torch.rand(20000, 10, generator=generator)
    labels = torch.multinomial((30 * cosines).softmax(1), 1, generator=generator)[:, 0]
    assert training.calibrated_scale(cosines, labels) == pytest.approx(30, rel=0.03)
    assert training.calibrated_scale(cosines, cosines.argmax(1)) > 900  # always right
    assert training.calibrated_scale(cosines, cosines.argmin(1)) < 1.1  # never right


def test_what_the_card_calls_held_out_is_held_out():
    """Classes, names and the prompt of the tests; but each of their words occurs."""
    assert set(LAND) == set(CLASSNAMES) - set(HELD_OUT_CLASSES)
    rng = np.random.default_rng(0)
    drawn = set()
    for land in LAND:
        for condition in CONDITION_WORDS:
            for _ in range(30):
                drawn.add(draw_caption(rng, land, condition))
    for name in (*HELD_OUT_CLASSES, *HELD_OUT_NAMES):
        for caption in drawn:
            assert name not in caption
    prompts = {f"a photo of a {name}." for name in CLASSNAMES}
    assert not drawn & prompts
    known = set(training.ROWS.tolist())
    for text in drawn | prompts:
        assert known.issuperset(tokenizer.encode(text)), text


def test_captions_are_encoded_as_clip_would():
    short = training.new_model(training.Settings(seed=3))
    whole = CLIP(**training.ARCHITECTURE)
    state = short.state_dict()
    whole.load_state_dict({**state, "token_embedding.weight": full_token_table(
        training.ROWS, state["token_embedding.weight"])})
    texts = ["a hazy photo of a vineyard.", "an aerial photo of the sea at dusk."]
    with torch.no_grad():
        ours = training.encode_captions(short, training.caption_tokens(texts))
        torch.testing.assert_close(ours, whole.encode_text(clip.tokenize(texts)), atol=1e-5, rtol=1e-4)


def test_the_loss_is_clips_and_takes_shared_captions_and_negatives():
    images, texts = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    logits = 10 * F.normalize(images, dim=-1) @ F.normalize(texts, dim=-1).T
    target = torch.arange(6)
    expected = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    loss = training.contrastive_loss(images, texts, torch.eye(6).bool(), torch.tensor(10.0))
    torch.testing.assert_close(loss, expected)
    here, there = torch.eye(2)
    images = torch.stack([here, here])
    match = torch.tensor([[True, True, False], [True, True, False]])
    good = training.contrastive_loss(images, torch.stack([here, here, there]), match, torch.tensor(50.0))
    split = training.contrastive_loss(images, torch.stack([here, there, there]), match, torch.tensor(50.0))
    # shared evenly: log 2 is the least there is
    torch.testing.assert_close(good, torch.tensor(2.0).log())
    assert split > good + 1


def test_a_few_steps_lower_the_loss_and_repeat():
    settings = training.Settings(tiles=44, steps=12, batch=12, warmup=3)
    tiles = training_tiles(44, seed=0)
    model, losses = training.train(*tiles, settings)
    _, again = training.train(*tiles, settings)
    # the common component stays common
    assert model.ln_final.weight[-1] == 0 and model.ln_final.bias[-1] == 1
    assert model.logit_scale.exp().item() == pytest.approx(settings.scale)
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.1 and losses == again


def run_training(*arguments: object) -> subprocess.CompletedProcess:
    """The script beside the card, as its first lines print it."""
    return subprocess.run(
        [sys.executable, SMALL / "train.py", *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.slow
def test_the_tool_trains_a_file_that_loads(tmp_path):
    done = run_training(
        "--out", tmp_path / "tiny.safetensors", "--tiles", 24,
        "--batch", 8, "--validation", 1, "--steps", 2,
    )
    assert done.returncode == 0, done.stderr
    model = load_clip(str(tmp_path / "tiny.safetensors"), "cpu")
    assert model.encode_text(clip.tokenize("a photo of a river.")).shape == (1, 128)


@pytest.mark.parametrize("arguments", [["--out", "weights.pt"], ["--tiles", 10], ["--steps", 0]])
def test_the_tool_names_bad_input(arguments):
    done = run_training("--out", "w.safetensors", *arguments)
    assert done.returncode == 2 and re.search("must end in .safetensors|at least", done.stderr), done.stderr


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


def landcover(method: str, folder: Path, cache: Path, *opts: object):
    return build_trainer(
        build_cfg(
            method,
            "configs/datasets/landcover.yaml",
            opts=[
                "MODEL.BACKBONE.NAME", "small", "DATALOADER.NUM_WORKERS", 0,
                "OUTPUT_DIR", folder / "run", "CACHE.DIR", cache, *opts,
            ],
        )
    )


@pytest.mark.parametrize("name", sorted(EMBEDDED))
def test_the_embedded_prompts_fit_the_model(tmp_path, cache, name, caplog):
    with caplog.at_level(logging.WARNING):
        results = landcover("CoOp", tmp_path, cache, "MODEL.INIT_WEIGHTS", name, "TEST.LIMIT", 240).run(train=False)
    assert "another backbone" not in caplog.text
    assert results["accuracy"] > results["zero_shot_accuracy"]
