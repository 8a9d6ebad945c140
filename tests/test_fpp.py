"""FPP: noise on the tokens, the prompt against a plain version, determinism, and a file that methods start from."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import adapt, build_cfg, build_trainer, load_clip
from promptcal.trainers.engine.pretraining import class_weight
from promptcal.trainers.runs.run_dir import RunDir
from promptcal.trainers.vlm.openai_clip import clip
from promptcal.trainers.vlm.prompt_files import find_prompt, read_context
from promptcal.trainers.vlm.prompts import class_tokens, initial_context
from promptcal.trainers.vlm.text_encoder import TextEncoder
from reference import encode_prompts
from test_episodes import NAMES, make_views

SHORT = ["TRAINER.FPP.STEPS", 12]


def noisy_prompts(model, tokens: torch.Tensor, context: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Whole prompts of 77 tokens, padding too, with noise (77, width) on every class's tokens."""
    x = model.token_embedding(tokens)
    x = torch.cat([x[:, :1], context.expand(len(tokens), -1, -1), x[:, 5:]], dim=1) + noise + model.positional_embedding
    x = model.ln_final(model.transformer(x.permute(1, 0, 2)).permute(1, 0, 2))
    x = x[torch.arange(len(x)), tokens.argmax(-1)] @ model.text_projection
    return x / x.norm(dim=-1, keepdim=True)


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return clip.tokenize([f"a photo of a {name.replace('_', ' ')}." for name in NAMES])


def test_noise_reaches_every_token(clip_model, tokens):
    trainer = build_trainer(build_cfg("TPT"))
    trainer.use_model(clip_model, NAMES)
    noise = 0.1 * torch.randn(2, 77, 64, generator=torch.Generator().manual_seed(0))
    context = trainer.prompt.context
    expected = torch.stack([noisy_prompts(clip_model, tokens, context, some) for some in noise])
    shared = trainer.prompt.tower.text(context.expand(2, -1, -1), noise)
    own = trainer.prompt.tower.text(context.expand(2, len(NAMES), -1, -1), noise)
    torch.testing.assert_close(shared, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(own, expected, atol=1e-4, rtol=0)
    assert (expected[0] - expected[1]).abs().max() > 1e-3


def test_the_prompt_equals_a_plain_version(clip_model, tokens):
    steps, seed = 12, 0
    context = 0.141421 * torch.randn(4, 64, generator=torch.Generator().manual_seed(seed))
    context.requires_grad_()
    with torch.no_grad():
        target = encode_prompts(clip_model, tokens, clip_model.token_embedding(tokens[0, 1:5]))
    optimizer = torch.optim.AdamW([context], lr=0.01)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-4 + (0.01 - 1e-4) * (1 + np.cos(np.pi * step / steps)) / 2
        noise = torch.randn(4, 77, 64, generator=generator)
        noise[:, 1:5] *= 0.0707105
        noise[:, :1] *= 0.141421
        noise[:, 5:] *= 0.141421
        with torch.no_grad():
            noisy = torch.stack([noisy_prompts(clip_model, tokens, context, some) for some in noise])
        text = encode_prompts(clip_model, tokens, context)
        cosine = torch.nn.functional.cosine_similarity(text.expand_as(noisy), noisy, dim=-1).mean()
        loss = target.shape[1] * (text - target).square().mean() - (1 + 15 / len(NAMES)) * cosine
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    trainer = build_trainer(build_cfg("FPP", opts=SHORT))
    trainer.use_model(clip_model, NAMES)
    text = trainer.prompt.tower.text(context.detach()[None])[0]
    torch.testing.assert_close(trainer.prompt.text, text, atol=2e-3, rtol=0)
    assert (trainer.prompt.text - target).abs().max() > 0.05  # there is something to be equal in


def library(kind: str, folder: Path) -> tuple[str, torch.nn.Module, Callable[[], torch.Tensor]]:
    """A small random model of another family: its name here, the module that embeds its tokens, and a function that
    encodes whole prompts by the library's own means."""
    import made_open_clip
    import test_hugging_face

    where, kind = kind.split(":")
    if where == "open_clip":
        name, model = made_open_clip.make(folder, kind)
        embedding = made_open_clip.backbone_embedding(model)
        return f"open_clip:{name}@{folder / kind}.pt", embedding, lambda: made_open_clip.library_text(
            model, name, "a photo of a", test_hugging_face.NAMES)
    model = test_hugging_face.make(folder, kind)
    embeddings = model.text_model.embeddings
    embedding = getattr(embeddings, "word_embeddings", None) or embeddings.token_embedding
    return f"hf:{folder}", embedding, lambda: test_hugging_face.library_text(model, folder, "a photo of a", kind)


@pytest.mark.parametrize("kind", ["open_clip:siglip", "open_clip:bert", "open_clip:coca", "open_clip:eos", "hf:siglip",
                                  "hf:bert", "hf:chinese", "hf:clip-new-eos"])
def test_towers_of_every_family_take_noise(kind: str, tmp_path: Path):
    """Against the library's own tower, to whose token embeddings the same noise is added; and a prompt is learnt."""
    pytest.importorskip("open_clip")
    name, embedding, encode = library(kind, tmp_path)
    backbone = load_clip(name, "cpu")
    names = ["cat", "annual crop land", "Yorkshire_Terrier", "a very long name for single class of things", "dog"]
    own = class_tokens(names, backbone.tokenizer)
    context = initial_context(backbone, "a photo of a")
    noise = torch.randn(2, backbone.context_length, context.shape[1], generator=torch.Generator().manual_seed(0))
    expected = []
    for some in noise:
        handle = embedding.register_forward_hook(lambda _, __, out, some=some: out + some[: out.shape[1]])
        expected.append(encode())
        handle.remove()
    for group in (0, 2):  # all classes at once, and in groups
        noisy = TextEncoder(backbone, own, group=group).text(context.expand(2, -1, -1), noise)
        torch.testing.assert_close(noisy, torch.stack(expected), atol=1e-4, rtol=0)
    assert (expected[0] - expected[1]).norm() > 0.05 < (expected[0] - encode()).norm()

    gaps = []
    for steps in (1, 20):
        trainer = build_trainer(build_cfg("FPP", opts=["TRAINER.FPP.STEPS", steps]))
        trainer.use_model(backbone, names)
        gaps.append((trainer.prompt.text - trainer.prompt.zero_shot).square().sum(-1).mean())
    assert gaps[1] < gaps[0]


def test_it_is_deterministic_and_the_seed_counts(clip_model):
    contexts = []
    for seed in (0, 0, 1):
        trainer = build_trainer(build_cfg("FPP", opts=[*SHORT, "SEED", seed]))
        trainer.use_model(clip_model, NAMES)
        contexts.append(trainer.prompt.context)
    assert torch.equal(contexts[0], contexts[1]) and not torch.equal(contexts[0], contexts[2])


def test_more_steps_come_nearer_to_the_words(clip_model):
    gaps = []
    for steps in (1, 60):
        trainer = build_trainer(build_cfg("FPP", opts=["TRAINER.FPP.STEPS", steps]))
        trainer.use_model(clip_model, NAMES)
        gaps.append((trainer.prompt.text - trainer.prompt.zero_shot).norm(dim=-1).mean())
    assert gaps[1] < gaps[0]


def test_zero_shot_is_the_hand_written_prompt(clip_model):
    views = make_views()
    adapted, plain = adapt("FPP", clip_model, NAMES, views, opts=SHORT), adapt("ZeroShot", clip_model, NAMES, views)
    torch.testing.assert_close(adapted.zero_shot_logits, plain.logits, atol=1e-4, rtol=0)
    assert (adapted.logits - plain.logits).abs().max() > 0.1


def test_cots_compares_with_the_hand_written_prompt(clip_model):
    """Also where nothing is tuned after the prompt was made: its views are to be as sure as those of the words."""
    views = make_views(views=64)
    made = adapt("FPP", clip_model, NAMES, views, opts=[*SHORT, "TTA.STEPS", 0])
    assert (made.columns["cots_tau"] != 1).all()
    tuned = adapt("FPP", clip_model, NAMES, views, opts=SHORT)
    assert (tuned.columns["cots_tau"] - made.columns["cots_tau"]).abs().max() > 1e-3


def test_every_method_starts_from_its_file(clip_file, image_folder, tmp_path: Path):
    def run(method: str, folder: str, *opts: object) -> np.ndarray:
        build_trainer(build_cfg(method, "configs/datasets/image_folder.yaml", flags=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", tmp_path / folder,
            "TTA.VIEWS", 10, "DATALOADER.NUM_WORKERS", 0, *opts])).run()
        return RunDir(tmp_path / folder).predictions()["logits"]

    expected = run("FPP", "fpp", *SHORT)
    prompt = find_prompt(tmp_path / "fpp")
    assert read_context(prompt).context.shape == (4, 64)
    start = ("MODEL.INIT_WEIGHTS", prompt)
    np.testing.assert_allclose(run("TPT", "tpt", *start), expected, atol=1e-4)
    for method in ("SoC", "TPS", "MTA"):
        assert np.isfinite(run(method, method, *start)).all()


def test_weights_and_refusals():
    assert class_weight(0, 10) == 2.5 and class_weight(1.25, 10) == 1.25
    assert build_cfg("FPP", "configs/datasets/imagenet_a.yaml").TRAINER.FPP.WEIGHT == 1.25
    with pytest.raises(ConfigError, match="FPP makes its own prompt"):
        build_cfg("FPP", opts=["MODEL.INIT_WEIGHTS", "x.pt"])
    with pytest.raises(ConfigError, match="one of random, words"):
        build_cfg("FPP", opts=["TRAINER.FPP.START", "zero"])
    with pytest.raises(ConfigError, match="at least 1"):
        build_cfg("FPP", opts=["TRAINER.FPP.NOISES", 0])
    with pytest.raises(ConfigError, match="end: FPP's noise goes by places"):
        build_cfg("FPP", opts=["TRAINER.COOP.CLASS_TOKEN_POSITION", "front"])
