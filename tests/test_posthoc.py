"""Label-free post-hoc scaling: CoTS against a fine grid and its properties, what is kept for it, and the report."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from promptcal.tools.report import main as report
from promptcal.trainers import adapt, build_cfg, build_trainer
from promptcal.trainers.posthoc import (
    confidence_at,
    consistent_temperature,
    cots,
    ecots,
    fixed_temperature,
    mean_cosine,
    replaced_confidence,
    strong_columns,
    strong_views,
)
from promptcal.trainers.runs.folder import RunFolder
from test_episodes import NAMES, make_views


def some_logits(batch: int = 40, views: int = 6, classes: int = 20, size: float = 4.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(batch, views, classes, generator=generator)


def misfit(adapted: torch.Tensor, before: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    """CoTS's loss as the paper prints it, for each image and one τ each."""
    now = (adapted.double() / tau[:, None, None]).softmax(-1).amax(-1)
    return (now - before.double().softmax(-1).amax(-1)).square().mean(-1)


@pytest.mark.parametrize("size", [0.3, 2.0, 4.0, 12.0])
def test_cots_is_the_minimum_of_a_fine_grid(size: float):
    """Adapted views that have little to do with those before: the hardest case, with several valleys."""
    adapted, before = some_logits(size=size), some_logits(size=3.0, seed=1)
    tau = consistent_temperature(adapted, before)
    grid = torch.logspace(-2, 2, 4001, dtype=torch.float64)
    best = torch.stack([misfit(adapted, before, t.expand(len(adapted))) for t in grid]).amin(0)
    assert (misfit(adapted, before, tau) <= best + 1e-7).all()


def test_cots_finds_a_known_temperature():
    before = some_logits()
    for factor in (0.5, 1.3, 4.0):
        torch.testing.assert_close(consistent_temperature(before * factor, before), torch.full((40,), factor).double(),
                                   rtol=1e-5, atol=0)


def test_cots_leaves_alone_what_did_not_change():
    before = some_logits()
    assert (consistent_temperature(before, before) == 1).all()
    assert (consistent_temperature(before[..., :1], 3 * before[..., :1]) == 1).all()  # one class
    assert consistent_temperature(torch.zeros(1, 6, 5), some_logits(1, 6, 5)).isfinite().all()  # nothing can be matched


def test_confidence_falls_with_the_temperature():
    logits = some_logits(classes=7)
    values = torch.stack([confidence_at(logits, torch.full(logits.shape[:-1], t)) for t in (0.1, 0.5, 1, 2, 9)])
    assert (values.diff(dim=0) <= 0).all()
    torch.testing.assert_close(values[2], logits.softmax(-1).amax(-1))


def test_two_confidences_of_a_view_are_not_enough():
    """Two views of one top probability, before and after, whose τ differ: what else is there must be known."""
    spread = torch.tensor([[[2.0, 0.0, 0.0]]])
    top = confidence_at(spread, torch.ones(1, 1)).item()
    paired = torch.tensor([[[np.log(top / (1 - top)), 0.0, -50.0]]], dtype=torch.float32)
    before = some_logits(1, 1, 3)
    assert confidence_at(paired, torch.ones(1, 1)).item() == pytest.approx(top, abs=1e-6)
    one, other = (consistent_temperature(adapted, before).item() for adapted in (spread, paired))
    assert abs(one - other) > 0.05


def test_strong_views_are_the_surest_but_the_plain_one():
    logits = 0.01 * some_logits(3, 64, 5)
    sure = [9, 30, 4, 63, 17, 50]
    for rank, view in enumerate(sure):
        logits[:, view, 2] += 10 - rank
    logits[:, 0, 1] += 100  # the plain view is the surest of all, and does not count
    assert strong_views(logits).tolist() == [sure] * 3
    assert strong_views(logits[:, :3]).shape == (3, 1)
    assert strong_columns(logits[:, :1], logits[:, :1]) == {}


def test_classes_stay_but_for_the_ensemble():
    logits, zero_shot = some_logits(200, 1, 9)[:, 0].numpy(), some_logits(200, 1, 9, seed=3)[:, 0].numpy()
    tau = np.random.default_rng(0).uniform(0.1, 9, 200)
    for scaled in (cots(logits, tau), replaced_confidence(logits, zero_shot)):
        np.testing.assert_array_equal(scaled.argmax(1), logits.argmax(1))
    replaced = np.exp(replaced_confidence(logits, zero_shot))
    np.testing.assert_allclose(replaced.sum(1), 1)
    np.testing.assert_allclose(replaced.max(1), torch.tensor(zero_shot).softmax(-1).amax(-1).numpy(), rtol=1e-6)
    assert (fixed_temperature("ViT-B/16"), fixed_temperature("RN50")) == (1.16, 1.15)
    np.testing.assert_allclose(np.exp(replaced_confidence(logits[:, :1], zero_shot[:, :1])), 1)  # one class


def test_ecots_is_the_weighted_mean():
    logits, strong = some_logits(30, 1, 6)[:, 0], some_logits(30, 1, 6, seed=1)[:, 0].log_softmax(-1)
    text = torch.nn.functional.normalize(torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).abs(), dim=-1)
    tau = torch.linspace(0.5, 2, 30)
    a = np.mean([float(text[i] @ text[j]) for i in range(6) for j in range(6) if i != j])
    assert mean_cosine(text) == pytest.approx(a) and mean_cosine(text[:1]) == 1
    expected = a * (logits / tau[:, None]).softmax(-1) + (1 - a) * strong.exp()
    np.testing.assert_allclose(np.exp(ecots(logits, tau, strong, text)), expected.numpy(), rtol=1e-4)


def test_every_adapted_image_keeps_its_temperature(clip_model):
    """τ found by the engine, against the definition on the very views, in plain steps."""
    pixels = make_views(views=64)
    for method in ("TPT", "RTPT", "TPS"):
        adapted = adapt(method, clip_model, NAMES, pixels, opts=["TTA.STEPS", 2])
        tau, strong = adapted.columns["cots_tau"], adapted.columns["strong_log_p"]
        assert (tau != 1).all() and strong.dtype == torch.float16 and strong.shape == adapted.logits.shape
        torch.testing.assert_close(strong.float().exp().sum(-1), torch.ones(3), atol=5e-3, rtol=0)
    for method in ("ZERO", "MTA", "VTE"):
        assert (adapt(method, clip_model, NAMES, pixels).columns["cots_tau"] == 1).all()
    assert (adapt("TPT", clip_model, NAMES, pixels, opts=["TTA.STEPS", 0]).columns["cots_tau"] == 1).all()


@pytest.fixture
def runs(clip_file, image_folder, tmp_path) -> Path:
    for method in ("ZeroShot", "TPT", "VTE", "TDA"):
        build_trainer(build_cfg(method, "configs/datasets/image_folder.yaml", flags=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", tmp_path / "runs" / method,
            "TTA.VIEWS", 20, "CACHE.DIR", tmp_path / "cache"])).run()
    return tmp_path / "runs"


def test_the_report_shows_them(runs: Path, capsys):
    report([str(runs), "--posthoc", "--no-figures", "--bootstrap", "0"])
    shown = capsys.readouterr().out
    for label in ("ECE + CoTS", "ECE + E-CoTS", "Accuracy + E-CoTS", "ECE + zero-shot confidence", "ECE + fixed",
                  "Seconds an image"):
        assert label in shown, label
    report([str(runs), "--no-figures", "--bootstrap", "0"])
    assert "CoTS" not in capsys.readouterr().out
    predictions = RunFolder(runs / "TPT").predictions()
    assert predictions["cots_tau"].shape == (12,) and predictions["strong_log_p"].shape == (12, 4)
    results = json.loads((runs / "TPT" / "results.json").read_text())
    assert results["predictions_bytes"] == (runs / "TPT" / "predictions.npz").stat().st_size
