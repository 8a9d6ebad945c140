"""The embedded model: the file, and the code that made it."""
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from common import run_tool
from PIL import Image
from promptcal.datasets import build_dataset
from promptcal.datasets.synthetic.tiles import CLASSNAMES
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import load_clip
from promptcal.trainers.functional.objectives import unit
from promptcal.trainers.vlm.openai_clip import CLIP, clip, tokenizer
from promptcal.trainers.vlm.small import training as training
from promptcal.trainers.vlm.small.captions import (
    CONDITION_WORDS,
    HELD_OUT_CLASSES,
    HELD_OUT_NAMES,
    LAND,
    all_words,
    draw_caption,
)
from promptcal.trainers.vlm.small.geometry import calibrated_scale, measure_geometry
from promptcal.trainers.vlm.small.training_tiles import TrainingTiles, draw_one, labels, normalised, random_crops
from promptcal.trainers.vlm.token_table import full_token_table
from safetensors.torch import load_file

REPOSITORY = Path(__file__).resolve().parents[1]
WEIGHTS = REPOSITORY / "trainers/vlm/small/small_clip.safetensors"
CARD = REPOSITORY / "trainers/vlm/small/SMALL_CLIP.md"


def test_file_is_the_one_the_card_describes():
    written = re.search(r"SHA-256[^0-9a-f]*([0-9a-f]{64})", CARD.read_text(encoding="utf-8")).group(1)
    assert hashlib.sha256(WEIGHTS.read_bytes()).hexdigest() == written
    assert WEIGHTS.stat().st_size <= 6e6


def test_file_has_openai_names_and_shapes():
    state = load_file(WEIGHTS)
    rows = state.pop("token_embedding.rows")
    expected = {name: value.shape for name, value in CLIP(**training.ARCHITECTURE).state_dict().items()}
    expected["token_embedding.weight"] = (len(rows), training.ARCHITECTURE["transformer_width"])
    assert {name: tuple(value.shape) for name, value in state.items()} == {n: tuple(s) for n, s in expected.items()}
    assert all(value.dtype == torch.float16 and value.isfinite().all() for value in state.values())


def test_loaded_model_has_stored_and_untrained_rows():
    model, state = load_clip("small", "cpu"), load_file(WEIGHTS)
    table, rows = model.token_embedding.weight, state["token_embedding.rows"].long()
    assert table.shape == (49408, training.ARCHITECTURE["transformer_width"])
    assert torch.equal(table[rows], state["token_embedding.weight"].float())
    untrained = torch.ones(len(table), dtype=torch.bool).index_fill(0, rows, False)
    assert torch.equal(table[untrained], full_token_table(rows[:0], table[:0])[untrained])


def test_file_lies_as_clip_does():
    """What the methods are about: narrow class features far from the images, and a model as sure as it is right."""
    model, data = load_clip("small", "cpu"), build_dataset("LandCover", "")
    items = data.test[::5]
    pictures = torch.from_numpy(np.stack([np.asarray(data.read_image(item)) for item in items]))
    prompts = clip.tokenize([f"a photo of a {name}." for name in data.classnames])
    with torch.no_grad():
        images, text = unit(model.encode_image(normalised(pictures))), unit(model.encode_text(prompts))
    found = measure_geometry(text, images, torch.tensor([item.label for item in items]), model.logit_scale.exp().item())
    assert found.lowest > 0 and 0.6 <= found.mean <= 0.85 and 0.03 <= found.deviation <= 0.15
    assert found.own < 0.5 and found.scale >= 25
    assert 0.55 < found.accuracy < 0.8 and abs(found.confidence - found.accuracy) < 0.06
    assert f"mean {found.mean:.2f}, standard deviation {found.deviation:.3f}" in CARD.read_text(encoding="utf-8")


def test_geometry_by_hand():
    text = F.normalize(torch.tensor([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [1.0, 0.0, 0.0]]), dim=-1)
    images = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])  # of the first class, and of none in particular
    found = measure_geometry(text, images, torch.tensor([0, 2]), 0.0)
    root = 0.5**0.5
    assert [found.lowest, found.highest, found.mean, found.own] == pytest.approx([0, root, 2 / 3 * root, root / 2])
    assert found.confidence == pytest.approx(1 / 3) and found.accuracy == 0.5


def test_scale_that_made_the_labels_is_found_again():
    generator = torch.Generator().manual_seed(0)
    cosines = torch.rand(20000, 10, generator=generator)
    labels = torch.multinomial((30 * cosines).softmax(1), 1, generator=generator)[:, 0]
    assert calibrated_scale(cosines, labels) == pytest.approx(30, rel=0.03)
    assert calibrated_scale(cosines, cosines.argmax(1)) > 900  # always right: as sure as can be
    assert calibrated_scale(cosines, cosines.argmin(1)) < 1.1  # never right


def test_held_out_words_never_meet():
    """What the card calls unseen is unseen: classes, names and the tests' own prompt; but each word is known."""
    assert set(LAND) == set(CLASSNAMES) - set(HELD_OUT_CLASSES)
    rng = np.random.default_rng(0)
    drawn = {draw_caption(rng, k, c) for k in LAND for c in CONDITION_WORDS for _ in range(30)}
    for name in (*HELD_OUT_CLASSES, *HELD_OUT_NAMES):
        assert not any(name in caption for caption in drawn)
    assert not drawn & {f"a photo of a {name}." for name in CLASSNAMES}
    known = set(tokenizer.encode(all_words()))
    assert known >= set(tokenizer.encode(" ".join(f"a photo of a {name}." for name in CLASSNAMES)))
    assert known >= {token for caption in drawn for token in tokenizer.encode(caption)}


def test_captions_are_encoded_as_clip_would():
    vocabulary = training.Vocabulary()
    short = training.new_model(vocabulary.rows, training.Settings(seed=3))
    whole = CLIP(**training.ARCHITECTURE)
    state = short.state_dict()
    state["token_embedding.weight"] = full_token_table(vocabulary.rows, state["token_embedding.weight"])
    whole.load_state_dict(state)
    texts = ["a hazy photo of a vineyard.", "an aerial photo of the sea at dusk."]
    with torch.no_grad():
        expected = whole.encode_text(clip.tokenize(texts))
        torch.testing.assert_close(training.encode_captions(short, vocabulary(texts)), expected, atol=1e-5, rtol=1e-4)


def test_loss_of_plain_pairs_is_clips():
    generator = torch.Generator().manual_seed(0)
    images, texts = torch.randn(2, 6, 8, generator=generator)
    logits = 10 * F.normalize(images, dim=-1) @ F.normalize(texts, dim=-1).T
    target = torch.arange(6)
    expected = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    loss = training.contrastive_loss(images, texts, torch.eye(6).bool(), torch.tensor(10.0))
    torch.testing.assert_close(loss, expected)


def test_loss_knows_shared_captions_and_lone_negatives():
    """Two pictures with two like captions, and a caption nobody has: best when all four agree and it stands apart."""
    here, there = torch.eye(2)
    images, match = torch.stack([here, here]), torch.tensor([[True, True, False], [True, True, False]])
    good = training.contrastive_loss(images, torch.stack([here, here, there]), match, torch.tensor(50.0))
    split = training.contrastive_loss(images, torch.stack([here, there, there]), match, torch.tensor(50.0))
    torch.testing.assert_close(good, torch.tensor(2.0).log())  # shared evenly: log 2 is the least there is
    assert split > good + 1


def test_crops_are_seeded_and_whole_pictures_are_only_mirrored():
    pictures = torch.from_numpy(np.stack([draw_one((0, n, n, 0)) for n in range(4)]))
    first, again = (random_crops(pictures, torch.Generator().manual_seed(1), 0.3) for _ in range(2))
    assert torch.equal(first, again)
    plain = normalised(pictures)
    for mirrored, picture in zip(random_crops(pictures, torch.Generator().manual_seed(1), 1.0), plain, strict=True):
        flips = [picture, picture.flip(1), picture.flip(2), picture.flip(1, 2)]
        assert min((mirrored - flip).abs().max() for flip in flips) < 1e-4


def test_a_few_steps_lower_the_loss_and_repeat():
    kinds, conditions = labels(44, seed=0)
    pictures = np.stack([draw_one((0, n, int(kinds[n]), int(conditions[n]))) for n in range(44)])
    settings = training.Settings(tiles=44, steps=12, batch=12, warmup=3)
    runs = [training.train(TrainingTiles(pictures, kinds, conditions), settings) for _ in range(2)]
    model, _, losses = runs[0]
    assert model.ln_final.weight[-1] == 0 and model.ln_final.bias[-1] == 1  # the common component stays common
    assert model.logit_scale.exp().item() == pytest.approx(settings.scale)
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.1
    assert losses == runs[1][2]


def test_a_smaller_stream_changes_steps_and_not_features():
    """Features stay (but for the norms' epsilon), but the same step of an embedding moves them twice as far."""
    vocabulary = training.Vocabulary()
    tokens = vocabulary(["a hazy photo of a vineyard.", "an aerial photo of the sea at dusk."])
    found = []
    for factor in (1.0, 0.5):
        model = training.new_model(vocabulary.rows, training.Settings())
        training.shrink_stream(model, factor)
        with torch.no_grad():
            before = unit(training.encode_captions(model, tokens))
            step = 1e-4 * torch.ones(before.shape[1]).index_fill(0, torch.arange(0, before.shape[1], 2), -1)
            model.token_embedding.weight[vocabulary.number[training.START]] += step
            found.append((before, (unit(training.encode_captions(model, tokens)) - before).norm()))
    (plain, moved), (shrunk, moved_more) = found
    torch.testing.assert_close(plain, shrunk, atol=0.02, rtol=0)
    assert 1.5 < moved_more / moved < 2.2


@pytest.mark.slow
def test_tool_trains_a_file_that_loads(tmp_path):
    out = tmp_path / "tiny.safetensors"
    small = ["--tiles", "24", "--batch", "8", "--validation", "1", "--steps", "2", "--threads", "1"]
    done = run_tool("train_small_clip.py", "--out", out, "--cache", tmp_path, *small)
    assert done.returncode == 0, done.stderr
    model = load_clip(str(out), "cpu")
    assert model.encode_text(clip.tokenize("a photo of a river.")).shape == (1, training.ARCHITECTURE["embed_dim"])


@pytest.mark.slow
def test_tool_draws_a_contact_sheet(tmp_path):
    done = run_tool("train_small_clip.py", "--contact-sheet", tmp_path / "tiles.png")
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "tiles.png") as sheet:
        assert sheet.width > 12 * 64 and sheet.height > (24 + 11) * 64


@pytest.mark.parametrize("arguments, message", [
    (["--out", "weights.pt"], "must end in .safetensors"),
    (["--out", "w.safetensors", "--tiles", "10"], "too few"),
])
def test_tool_names_bad_input(arguments, message):
    done = run_tool("train_small_clip.py", *arguments)
    assert done.returncode == 2 and message in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_refuse_no_steps():
    with pytest.raises(ConfigError, match="at least 1"):
        training.Settings(steps=0)
