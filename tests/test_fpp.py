"""FPP: noise on the tokens, the prompt against a plain version, its random streams, and its prompt file."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import adapt, build_cfg, build_trainer, load_clip
from promptcal.trainers.fpp import NOISE, class_weight, random_start
from promptcal.trainers.functional.objectives import unit
from promptcal.trainers.reference import encode_prompts
from promptcal.trainers.runs.run_dir import read_predictions
from promptcal.trainers.vlm.backbone import initial_context
from promptcal.trainers.vlm.loading import as_backbone
from promptcal.trainers.vlm.openai_clip import clip
from promptcal.trainers.vlm.prompt_files import find_prompt, read_context
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
    return torch.Generator().manual_seed(int(np.random.SeedSequence([seed, NOISE]).generate_state(1)[0]))


def test_the_prompt_equals_a_plain_version(clip_model):
    steps = 12
    tokens = clip.tokenize([f"a photo of a {name.replace('_', ' ')}." for name in NAMES])
    context = (0.141421 * torch.randn(4, 64, generator=torch.Generator().manual_seed(0))).requires_grad_()
    with torch.no_grad():
        target = encode_prompts(clip_model, tokens, clip_model.token_embedding(tokens[0, 1:5]))
    optimizer, generator = torch.optim.AdamW([context], lr=0.01), noise_generator(0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-4 + (0.01 - 1e-4) * (1 + np.cos(np.pi * step / steps)) / 2
        noise = 0.141421 * torch.randn(4, 77, 64, generator=generator)
        noise[:, 1:5] *= 0.0707105 / 0.141421
        noisy = []
        for some in noise:
            with torch.no_grad(), added_noise(clip_model.token_embedding, some):
                noisy.append(encode_prompts(clip_model, tokens, context + some[1:5]))
        text = encode_prompts(clip_model, tokens, context)
        cosine = torch.nn.functional.cosine_similarity(text[None], torch.stack(noisy), dim=-1).mean()
        loss = target.shape[1] * (text - target).square().mean() - (1 + 15 / len(NAMES)) * cosine
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    trainer = make_trainer("FPP", clip_model, *SHORT)
    text = trainer.clip.encoder.text(context.detach()[None])[0]
    torch.testing.assert_close(trainer.clip.text, text, atol=2e-3, rtol=0)
    assert (trainer.clip.text - target).abs().max() > 0.05  # the prompt has changed


def test_start_and_noise_are_independent():
    start = random_start((4, 512), 1.0, seed=0).flatten()
    noise = torch.randn(4, 512, generator=noise_generator(0)).flatten()
    assert abs(np.corrcoef(start, noise)[0, 1]) < 0.1


def library(kind: str, folder: Path) -> tuple[str, torch.nn.Module, Callable[[], torch.Tensor]]:
    """A small random model: its name here, the module that embeds its tokens, and a function that encodes whole prompts
    with the library's own code."""
    import made_models
    import test_hugging_face

    where, _, kind = kind.partition(":")
    if where == "openai":
        model, names = random_clip(), [f"a photo of a {name.replace('_', ' ')}." for name in test_hugging_face.NAMES]
        torch.save(openai_state(model), folder / "tiny.pt")
        return str(folder / "tiny.pt"), model.token_embedding, lambda: unit(model.encode_text(clip.tokenize(names)))
    if where == "open_clip":
        name, model = made_models.make_open_clip(folder, kind)
        return f"open_clip:{name}@{folder / kind}.pt", made_models.word_embedding(model), lambda: (
            made_models.library_text(model, name, "a photo of a", test_hugging_face.NAMES))
    model = test_hugging_face.make(folder, kind)
    embedding = model.text_model.get_input_embeddings()
    return f"hf:{folder}", embedding, lambda: test_hugging_face.library_text(model, folder, "a photo of a", kind)


@pytest.mark.parametrize("kind", ["openai", "open_clip:siglip", "open_clip:bert", "open_clip:coca", "open_clip:eos",
                                  "hf:siglip", "hf:bert", "hf:chinese", "hf:clip-new-eos"])
def test_towers_of_every_family_take_noise(kind, tmp_path):
    """Against the library's own tower, with the same noise added to its token embeddings; and a prompt is trained."""
    pytest.importorskip("open_clip")
    name, embedding, encode = library(kind, tmp_path)
    backbone = as_backbone(load_clip(name, "cpu"))
    names = ["cat", "annual crop land", "Yorkshire_Terrier", "a very long name for single class of things", "dog"]
    own = class_tokens(names, backbone.tokenizer)
    context = initial_context(backbone, "a photo of a")
    noise = torch.randn(2, backbone.context_length, context.shape[1], generator=torch.Generator().manual_seed(0))
    expected = []
    for some in noise:
        with added_noise(embedding, some):
            expected.append(encode())
    for group, shape in ((0, (2, -1, -1)), (2, (2, -1, -1)), (0, (2, 5, -1, -1))):  # at once, in groups, per class
        noisy = TextEncoder(backbone, own, budget=classes_at_once(group)).text(context.expand(shape), noise)
        torch.testing.assert_close(noisy, torch.stack(expected), atol=1e-4, rtol=0)
    assert (expected[0] - expected[1]).norm() > 0.05 < (expected[0] - encode()).norm()
    prompts = [make_trainer("FPP", backbone, "TRAINER.FPP.STEPS", steps, names=names).clip for steps in (1, 20)]
    first, last = ((prompt.text - prompt.zero_shot_text).square().sum(-1).mean() for prompt in prompts)
    assert last < first


def test_zero_shot_and_cots_refer_to_the_hand_written_prompt(clip_model):
    views = make_views(views=64)
    tuned, untuned = (adapt("FPP", clip_model, NAMES, views, opts=[*SHORT, "TTA.STEPS", steps]) for steps in (1, 0))
    plain = adapt("ZeroShot", clip_model, NAMES, views).logits
    torch.testing.assert_close(tuned.zero_shot_logits, plain, atol=1e-4, rtol=0)
    assert (tuned.logits - plain).abs().max() > 0.1 and (untuned.columns["cots_tau"] != 1).all()
    assert (tuned.columns["cots_tau"] - untuned.columns["cots_tau"]).abs().max() > 1e-3


def test_every_method_starts_from_its_file(clip_file, image_folder, tmp_path):
    def run(method: str, folder: str, *opts: object) -> np.ndarray:
        build_trainer(build_cfg(method, "configs/datasets/image_folder.yaml", flags=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", tmp_path / folder,
            "TTA.VIEWS", 10, "DATALOADER.NUM_WORKERS", 0, *opts])).run()
        return read_predictions(tmp_path / folder)["logits"]

    expected = run("FPP", "fpp", *SHORT)
    assert np.array_equal(run("FPP", "again", *SHORT), expected)
    assert not np.array_equal(run("FPP", "seed", *SHORT, "SEED", 1), expected)
    start = ("MODEL.INIT_WEIGHTS", find_prompt(tmp_path / "fpp"))
    assert read_context(start[1]).context.shape == (4, 64)
    np.testing.assert_allclose(run("TPT", "tpt", *start), expected, atol=1e-4)
    for method in ("SoC", "TPS", "MTA"):
        assert np.isfinite(run(method, method, *start)).all()


@pytest.mark.parametrize(("opts", "message"), [
    (["MODEL.INIT_WEIGHTS", "x.pt"], "FPP makes its own prompt"), (["TRAINER.FPP.NOISES", 0], "at least 1"),
    (["TRAINER.FPP.START", "zero"], "one of random, words"),
    (["TRAINER.COOP.CLASS_TOKEN_POSITION", "front"], "end: FPP's noise depends on token positions"),
])
def test_settings_that_cannot_work(opts, message):
    with pytest.raises(ConfigError, match=message):
        build_cfg("FPP", opts=opts)


def test_weights():
    assert class_weight(0, 10) == 2.5 and class_weight(1.25, 10) == 1.25
    assert build_cfg("FPP", "configs/datasets/imagenet_a.yaml").TRAINER.FPP.WEIGHT == 1.25
