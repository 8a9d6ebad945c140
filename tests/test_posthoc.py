"""Label-free post-hoc scaling: CoTS against a fine grid and its properties, what is kept for it, and the report."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from promptcal.tools.report import main as report
from promptcal.trainers import adapt, build_cfg, build_trainer
from promptcal.trainers.functional.posthoc import (
    confidence_at,
    consistent_temperature,
    cots,
    cots_columns,
    ecots,
    fixed_temperature,
    least_misfit,
    mean_cosine,
    misfit_and_bounds,
    replaced_confidence,
    strong_views,
)
from promptcal.trainers.runs.run_dir import RunDir
from test_episodes import NAMES, make_views


def some_logits(batch: int = 40, views: int = 6, classes: int = 20, size: float = 4.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(batch, views, classes, generator=generator)


def misfit(adapted: torch.Tensor, before: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    """CoTS's loss as the paper prints it, for each image and one τ each."""
    now = (adapted.double() / tau[:, None, None]).softmax(-1).amax(-1)
    return (now - before.double().softmax(-1).amax(-1)).square().mean(-1)


def views_of_all_sharpnesses() -> tuple[torch.Tensor, torch.Tensor]:
    """One gap a view, between 0.001 and 100: each view is sure in a range of temperatures of its own, so the misfit has
    plateaus and several valleys."""
    generator = torch.Generator().manual_seed(4)
    gaps = [10 ** (5 * torch.rand(40, 6, 1, generator=generator) - 3) for _ in range(2)]
    return tuple(-gap * (torch.arange(8) > 0) for gap in gaps)


HARD = {
    **{f"unrelated, size {size:g}": (some_logits(size=size), some_logits(size=3, seed=1)) for size in (0.3, 2, 12, 50)},
    "near": (some_logits() + some_logits(size=0.3, seed=1), some_logits()),
    "scaled": (1.7 * some_logits(), some_logits()),
    "all sharpnesses": views_of_all_sharpnesses(),
    "two classes": (some_logits(classes=2), some_logits(classes=2, seed=1)),
    "one view": (some_logits(views=1), some_logits(views=1, seed=1)),
    "nothing can be matched": (torch.zeros(1, 6, 5), some_logits(1, 6, 5)),
    "certain before": (some_logits(), 1e4 * some_logits(seed=1)),
}


@pytest.mark.parametrize("case", HARD)
def test_cots_is_the_minimum_of_a_fine_grid_and_proves_it(case: str):
    """No temperature of the grid does better, none lies below the proven bound, and the bound is close."""
    adapted, before = (logits[:20].double() for logits in HARD[case])
    log_tau, least, bound = least_misfit(adapted, before.softmax(-1).amax(-1))
    grid = torch.logspace(-2, 2, 2001, dtype=torch.float64)
    best = torch.stack([misfit(adapted, before, t.expand(len(adapted))) for t in grid]).amin(0)
    torch.testing.assert_close(misfit(adapted, before, log_tau.exp()), least, rtol=0, atol=1e-14)
    assert (bound <= best + 1e-14).all() and (bound <= least).all()
    assert (least <= best + 1e-10).all() and (least - bound).max() < 1e-6 and (least - bound).median() < 1e-12
    torch.testing.assert_close(consistent_temperature(adapted, before), log_tau.exp(), rtol=1e-4, atol=0)


def test_bounds_hold_between_their_temperatures():
    """What the proof rests on: no temperature of a cell has a misfit below the cell's bound; and bounds close up."""
    gaps = some_logits(10).double()
    gaps, target = gaps.amax(-1, keepdim=True) - gaps, some_logits(10, seed=1).double().softmax(-1).amax(-1)
    apart = []
    for cells in (8, 64, 512):
        edges = torch.linspace(-4, 4, cells + 1, dtype=torch.float64).expand(10, -1)
        inside = torch.cat([torch.lerp(edges[:, :-1], edges[:, 1:], torch.tensor(share).double())
                            for share in np.linspace(0, 1, 9)], 1)
        bound = misfit_and_bounds(gaps, target, edges)[1]
        least = misfit_and_bounds(gaps, target, inside)[0].unflatten(1, (9, cells)).amin(1)
        assert (bound <= least + 1e-14).all()
        apart.append((least - bound).max().item())
    assert apart[1] < apart[0] / 8 and apart[2] < apart[1] / 20  # in the second order, in the end


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
    assert cots_columns(logits[:, :1], logits[:, :1]) == {}


def test_classes_stay_but_for_the_ensemble():
    logits, zero_shot = some_logits(200, 1, 9)[:, 0].numpy(), some_logits(200, 1, 9, seed=3)[:, 0].numpy()
    tau = np.random.default_rng(0).uniform(0.1, 9, 200)
    for scaled in (cots(logits, tau), replaced_confidence(logits, zero_shot)):
        np.testing.assert_array_equal(scaled.argmax(1), logits.argmax(1))
    replaced = np.exp(replaced_confidence(logits, zero_shot))
    np.testing.assert_allclose(replaced.sum(1), 1)
    np.testing.assert_allclose(replaced.max(1), torch.tensor(zero_shot).softmax(-1).amax(-1).numpy(), rtol=1e-6)
    assert (fixed_temperature("ViT-B/16"), fixed_temperature("RN50")) == (1.16, 1.15)
    assert fixed_temperature("open_clip:RN50/yfcc15m") == 1.15 and fixed_temperature("open_clip:ViT-B-16/dfn2b") == 1.16
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
            "TTA.VIEWS", 20, "CACHE.DIR", tmp_path / "cache", "DATALOADER.NUM_WORKERS", 0])).run()
    return tmp_path / "runs"


def test_the_report_shows_them(runs: Path, capsys):
    report([str(runs), "--posthoc", "--no-figures", "--bootstrap", "0"])
    shown = capsys.readouterr().out
    for label in ("ECE + CoTS", "ECE + E-CoTS", "Accuracy + E-CoTS", "ECE + zero-shot confidence", "ECE + fixed",
                  "Seconds an image"):
        assert label in shown, label
    report([str(runs), "--no-figures", "--bootstrap", "0"])
    assert "CoTS" not in capsys.readouterr().out
    predictions = RunDir(runs / "TPT").predictions()
    assert predictions["cots_tau"].shape == (12,) and predictions["strong_log_p"].shape == (12, 4)
    results = json.loads((runs / "TPT" / "results.json").read_text())
    assert results["predictions_bytes"] == (runs / "TPT" / "predictions.npz").stat().st_size
