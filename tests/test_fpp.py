"""FPP: noise on the tokens, the prompt against a plain version, random streams, and the prompt
file."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from promptcal.datasets.utils.errors import ConfigError, DataError
from promptcal.trainers import adapt, build_cfg, load_clip
from promptcal.trainers.fpp import NOISE, class_weight, random_start
from promptcal.trainers.functional.objectives import unit
from promptcal.trainers.reference import encode_prompts
from promptcal.trainers.vlm.backbone import initial_context
from promptcal.trainers.vlm.loading import as_backbone
from promptcal.trainers.vlm.openai_clip import clip
from promptcal.trainers.vlm.prompt_files import find_prompt, read_context, read_metadata
from promptcal.trainers.vlm.prompt_protocol import protocol_of_metadata
from promptcal.trainers.vlm.prompts import class_tokens
from promptcal.trainers.vlm.text_encoder import TextEncoder

from common import classes_at_once, openai_state, random_clip
from test_episodes import NAMES, make_trainer, make_views

SHORT = ["TRAINER.FPP.STEPS", 12]


@contextmanager
def added_noise(embedding: torch.nn.Module, noise: torch.Tensor) -> Iterator[None]:
    """Noise (length, width) on the token embeddings of all prompts."""
    handle = embedding.register_forward_hook(lambda _, __, out: out + noise[: out.shape[1]])
    yield
    handle.remove()


def noise_generator(seed: int) -> torch.Generator:
    (state,) = np.random.SeedSequence([seed, NOISE]).generate_state(1)
    return torch.Generator().manual_seed(int(state))


def prompts(names: Sequence[str]) -> torch.Tensor:
    """Tokens of the hand-written prompts."""
    return clip.tokenize([f"a photo of a {name.replace('_', ' ')}." for name in names])


def test_the_prompt_equals_a_plain_version(clip_model):
    steps = 12
    tokens = prompts(NAMES)
    start = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    context = (0.141421 * start).requires_grad_()
    with torch.no_grad():
        target = encode_prompts(clip_model, tokens, clip_model.token_embedding(tokens[0, 1:5]))
    optimizer = torch.optim.AdamW([context], lr=0.01)
    generator = noise_generator(0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-4 + (0.01 - 1e-4) * (1 + np.cos(np.pi * step / steps)) / 2
        noise = 0.141421 * torch.randn(4, 77, 64, generator=generator)
        noise[:, 1:5] *= 0.0707105 / 0.141421
        noisy = []
        for sample in noise:
            with torch.no_grad(), added_noise(clip_model.token_embedding, sample):
                noisy.append(encode_prompts(clip_model, tokens, context + sample[1:5]))
        text = encode_prompts(clip_model, tokens, context)
        cosine = F.cosine_similarity(text[None], torch.stack(noisy), dim=-1).mean()
        distance = target.shape[1] * (text - target).square().mean()
        loss = distance - (1 + 15 / len(NAMES)) * cosine
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    trainer = make_trainer("FPP", clip_model, *SHORT)
    text = trainer.clip.encoder.text(context.detach()[None])[0]
    torch.testing.assert_close(trainer.clip.text, text, atol=2e-3, rtol=0)
    assert (trainer.clip.text - target).abs().max() > 0.05  # the prompt has changed


def test_start_and_noise_are_independent_and_the_weight_is_published():
    start = random_start((4, 512), 1.0, seed=0).flatten()
    noise = torch.randn(4, 512, generator=noise_generator(0)).flatten()
    assert abs(np.corrcoef(start, noise)[0, 1]) < 0.1
    assert class_weight(0, 10) == 2.5 and class_weight(1.25, 10) == 1.25
    assert build_cfg("FPP", "imagenet_a").TRAINER.FPP.WEIGHT == 1.25


class Library(NamedTuple):
    """A small random model and the functions of the library that it comes from."""

    name: str  # of the model here
    embedding: torch.nn.Module  # of its tokens
    encode: Callable[[], torch.Tensor]  # text features of `made_models.NAMES`


def library(kind: str, folder: Path) -> Library:
    import made_models
    import test_hugging_face

    source, _, kind = kind.partition(":")
    if source == "openai":
        model = random_clip()
        path = folder / "tiny.pt"
        torch.save(openai_state(model), path)
        tokens = prompts(made_models.NAMES)
        return Library(str(path), model.token_embedding, lambda: unit(model.encode_text(tokens)))
    if source == "open_clip":
        name, model = made_models.make_open_clip(folder, kind)
        return Library(
            f"open_clip:{name}@{folder / kind}.pt", made_models.word_embedding(model),
            lambda: made_models.library_text(model, name, "a photo of a", made_models.NAMES))
    model = test_hugging_face.make(folder, kind)
    return Library(
        f"hf:{folder}", model.text_model.get_input_embeddings(),
        lambda: test_hugging_face.library_text(model, folder, "a photo of a", kind))


@pytest.mark.parametrize("kind", ["openai", "open_clip:bert", "open_clip:coca", "hf:siglip", "hf:clip-new-eos"])
def test_towers_of_every_family_take_noise(kind, tmp_path):
    """As the library's own tower with the same noise on its embeddings."""
    made_models = pytest.importorskip("made_models")
    theirs = library(kind, tmp_path)
    backbone = as_backbone(load_clip(theirs.name, "cpu"))
    tokens = class_tokens(made_models.NAMES, backbone.tokenizer)
    context = initial_context(backbone, "a photo of a")
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, backbone.context_length, context.shape[1], generator=generator)
    expected = []
    for sample in noise:
        with added_noise(theirs.embedding, sample):
            expected.append(theirs.encode())
    assert (expected[0] - expected[1]).norm() > 0.05 < (expected[0] - theirs.encode()).norm()
    at_once = (0, (2, -1, -1))
    in_groups = (2, (2, -1, -1))
    per_class = (0, (2, 5, -1, -1))
    for group, shape in (at_once, in_groups, per_class):
        encoder = TextEncoder(backbone, tokens, budget=classes_at_once(group))
        noisy = encoder.text(context.expand(shape), noise)
        torch.testing.assert_close(noisy, torch.stack(expected), atol=1e-4, rtol=0)


def test_zero_shot_and_cots_refer_to_the_hand_written_prompt(clip_model):
    views = make_views(views=64)
    tuned = adapt("FPP", clip_model, NAMES, views, opts=[*SHORT, "TTA.STEPS", 1])
    untuned = adapt("FPP", clip_model, NAMES, views, opts=[*SHORT, "TTA.STEPS", 0])
    plain = adapt("ZeroShot", clip_model, NAMES, views).logits
    torch.testing.assert_close(tuned.zero_shot_logits, plain, atol=1e-4, rtol=0)
    assert (tuned.logits - plain).abs().max() > 0.1 and (untuned.columns["cots_tau"] != 1).all()
    assert (tuned.columns["cots_tau"] - untuned.columns["cots_tau"]).abs().max() > 1e-3


def test_every_method_starts_from_its_prompt_which_is_known_by_words_and_precision(run_method, tmp_path):
    trainings = {
        "run": (), "again": (), "other seed": ("SEED", 1), "words": ("PROMPT.CTX_INIT", "a bad photo of"),
        "precision": ("MODEL.PREC", "bf16"),
    }
    logits = {}
    protocol = {}
    for name, opts in trainings.items():
        logits[name] = run_method("FPP", tmp_path / name, *SHORT, *opts)["logits"]
        protocol[name] = protocol_of_metadata(read_metadata(find_prompt(tmp_path / name))).text
    assert np.array_equal(logits["again"], logits["run"])
    assert not np.array_equal(logits["other seed"], logits["run"])
    assert protocol["run"] == protocol["again"] == protocol["other seed"]
    assert len({protocol["run"], protocol["words"], protocol["precision"]}) == 3
    prompt = find_prompt(tmp_path / "run")
    assert read_context(prompt).context.shape == (4, 64)
    tpt = run_method("TPT", tmp_path / "tpt", "MODEL.INIT_WEIGHTS", prompt)
    np.testing.assert_allclose(tpt["logits"], logits["run"], atol=1e-4)


def test_a_refused_run_takes_its_prompt_with_it(run_method, image_folder, tmp_path):
    image = sorted(image_folder.rglob("*.png"))[0]
    content = image.read_bytes()
    image.write_bytes(b"no picture")
    with pytest.raises(DataError, match="cannot read"):
        run_method("FPP", tmp_path / "run", *SHORT)
    assert not list(tmp_path.rglob("model.pth.tar*"))
    image.write_bytes(content)
    run_method("FPP", tmp_path / "run", *SHORT)
    assert list(tmp_path.rglob("model.pth.tar*"))


@pytest.mark.parametrize(("opts", "message"), [
    (["MODEL.INIT_WEIGHTS", "x.pt"], "FPP makes its own prompt"),
    (["TRAINER.COOP.CLASS_TOKEN_POSITION", "front"], "end: FPP's noise depends on token positions"),
])
def test_settings_that_cannot_work(opts, message):
    with pytest.raises(ConfigError, match=message):
        build_cfg("FPP", opts=opts)
