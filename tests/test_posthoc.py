"""Post-hoc scaling without labels.

CoTS against a fine grid and its bounds, what a run stores for it, the report.
"""

import numpy as np
import pytest
import torch
from promptcal.tools.report import main as report
from promptcal.trainers import adapt, build_cfg, build_trainer
from promptcal.trainers.functional import posthoc
from promptcal.trainers.runs.run_dir import read_predictions
from torch import Tensor

from folders import results_of
from test_episodes import NAMES, make_views


def random_logits(
    batch: int = 40, views: int = 6, classes: int = 20, size: float = 4.0, seed: int = 0,
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(batch, views, classes, generator=generator)


def one_gap_per_view(seed: int) -> Tensor:
    """Gaps between the two best logits from 0.001 to 100.

    Each view is confident in another range of temperatures, so the misfit has plateaus and
    several local minima.
    """
    gaps = 10 ** (5 * torch.rand(40, 6, 1, generator=torch.Generator().manual_seed(seed)) - 3)
    return -gaps * (torch.arange(8) > 0)


# Adapted logits, and those before.
HARD = {
    "unrelated, tiny": (random_logits(size=0.3), random_logits(size=3, seed=1)),
    "unrelated, small": (random_logits(size=2), random_logits(size=3, seed=1)),
    "unrelated, large": (random_logits(size=12), random_logits(size=3, seed=1)),
    "unrelated, huge": (random_logits(size=50), random_logits(size=3, seed=1)),
    "near": (random_logits() + random_logits(size=0.3, seed=1), random_logits()),
    "scaled": (1.7 * random_logits(), random_logits()),
    "several minima": (one_gap_per_view(4), one_gap_per_view(5)),
    "two classes": (random_logits(classes=2), random_logits(classes=2, seed=1)),
    "one view": (random_logits(views=1), random_logits(views=1, seed=1)),
    "no match possible": (torch.zeros(1, 6, 5), random_logits(1, 6, 5)),
    "certain before": (random_logits(), 1e4 * random_logits(seed=1)),
}


@pytest.mark.parametrize("case", HARD)
def test_cots_is_the_minimum_of_a_fine_grid(case):
    """No temperature of the grid is better, none is below the proven bound, and the bound is
    close."""
    adapted = HARD[case][0][:20].double()
    before = HARD[case][1][:20].double()
    target = before.softmax(-1).amax(-1)

    def misfit(tau: Tensor) -> Tensor:
        """As the paper prints it."""
        confidence = (adapted / tau[:, None, None]).softmax(-1).amax(-1)
        return (confidence - target).square().mean(-1)

    log_tau, least, bound = posthoc.least_misfit(adapted, target)
    best = misfit(torch.ones(len(adapted)))
    for tau in torch.logspace(-2, 2, 2001, dtype=torch.float64):
        best = torch.minimum(best, misfit(tau.expand(len(adapted))))
    torch.testing.assert_close(misfit(log_tau.exp()), least, rtol=0, atol=1e-14)
    assert (bound <= best + 1e-14).all() and (bound <= least).all()
    assert (least <= best + 1e-10).all()
    assert (least - bound).max() < 1e-6 and (least - bound).median() < 1e-12
    temperature = posthoc.consistent_temperature(adapted, before)
    torch.testing.assert_close(temperature, log_tau.exp(), rtol=1e-4, atol=0)


def test_strong_views_are_the_most_confident_but_the_plain_one():
    logits = 0.01 * random_logits(3, 64, 5)
    strong = [9, 30, 4, 63, 17, 50]
    for rank, view in enumerate(strong):
        logits[:, view, 2] += 10 - rank
    logits[:, 0, 1] += 100  # the plain view is more confident and does not count
    assert posthoc.strong_views(logits).tolist() == [strong] * 3
    assert posthoc.strong_views(logits[:, :3]).shape == (3, 1)
    assert posthoc.cots_columns(logits[:, :1], logits[:, :1]) == {}


@pytest.fixture
def logits() -> np.ndarray:
    return random_logits(200, 1, 9)[:, 0].numpy()


@pytest.fixture
def zero_shot() -> np.ndarray:
    return random_logits(200, 1, 9, seed=3)[:, 0].numpy()


def test_scaled_logits_keep_the_predictions_and_replaced_confidence_is_that_of_zero_shot(
    logits, zero_shot,
):
    tau = np.random.default_rng(0).uniform(0.1, 9, 200)
    for scaled in (posthoc.cots(logits, tau), posthoc.replaced_confidence(logits, zero_shot)):
        np.testing.assert_array_equal(scaled.argmax(1), logits.argmax(1))
    replaced = np.exp(posthoc.replaced_confidence(logits, zero_shot))
    confidence = torch.tensor(zero_shot).softmax(-1).amax(-1).numpy()
    np.testing.assert_allclose(replaced.sum(1), 1)
    np.testing.assert_allclose(replaced.max(1), confidence, rtol=1e-6)
    one_class = posthoc.replaced_confidence(logits[:, :1], zero_shot[:, :1])
    np.testing.assert_allclose(np.exp(one_class), 1)


def test_ecots_mixes_by_the_mean_cosine_of_the_classes(logits, zero_shot):
    text = torch.randn(9, 8, generator=torch.Generator().manual_seed(0)).abs()
    text = torch.nn.functional.normalize(text, dim=-1)
    cosines = []
    for i in range(9):
        for j in range(9):
            if i != j:
                cosines.append(float(text[i] @ text[j]))
    share = np.mean(cosines)
    assert posthoc.mean_cosine(text) == pytest.approx(share) and posthoc.mean_cosine(text[:1]) == 1
    tau = np.random.default_rng(0).uniform(0.1, 9, 200)
    strong = torch.tensor(zero_shot).log_softmax(-1)
    scaled = torch.tensor(logits / tau[:, None]).softmax(-1)
    expected = share * scaled + (1 - share) * strong.exp()
    mixed = np.exp(posthoc.ecots(logits, tau, strong, text))
    np.testing.assert_allclose(mixed, expected.numpy(), rtol=1e-4)


@pytest.mark.parametrize(("backbone", "architecture", "temperature"), [
    ("weights/mine.pt", "resnet", 1.15),
    ("RNA/weights.pt", "transformer", 1.16),
    ("RN50", "", 1.15),
    ("ViT-B/16", "", 1.16),
    ("open_clip:RN50/yfcc15m", "", 1.15),
    ("open_clip:ViT-B-16/dfn2b", "", 1.16),
])
def test_the_fixed_temperature_depends_on_the_architecture(backbone, architecture, temperature):
    assert posthoc.fixed_temperature(backbone, architecture) == temperature


def test_adapted_images_have_a_temperature(clip_model):
    views = make_views(views=64)
    for method in ("TPT", "RTPT", "TPS"):
        adapted = adapt(method, clip_model, NAMES, views, opts=["TTA.STEPS", 2])
        strong = adapted.columns["strong_log_p"]
        assert (adapted.columns["cots_tau"] != 1).all()
        assert strong.dtype == torch.float16 and strong.shape == adapted.logits.shape
        torch.testing.assert_close(strong.float().exp().sum(-1), torch.ones(3), atol=5e-3, rtol=0)
    for method in ("ZERO", "MTA", "VTE", "TPT"):
        adapted = adapt(method, clip_model, NAMES, views, opts=["TTA.STEPS", 0])
        assert (adapted.columns["cots_tau"] == 1).all()


def test_the_report_shows_them(clip_file, image_folder, tmp_path, capsys):
    runs = tmp_path / "runs"
    for method in ("ZeroShot", "TPT", "VTE", "TDA"):
        cfg = build_cfg(method, "image_folder", flags=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file,
            "OUTPUT_DIR", runs / method, "TTA.VIEWS", 20, "CACHE.DIR", tmp_path / "cache",
            "DATALOADER.NUM_WORKERS", 0,
        ])
        build_trainer(cfg).run()
    report([str(runs), "--no-figures", "--posthoc"])
    out = capsys.readouterr().out
    for label in (
        "ECE + CoTS", "ECE + E-CoTS", "Accuracy + E-CoTS", "ECE + zero-shot confidence",
        "ECE + fixed",
    ):
        assert label in out, label
    report([str(runs), "--no-figures"])
    assert "CoTS" not in capsys.readouterr().out
    predictions = read_predictions(runs / "TPT")
    assert predictions["cots_tau"].shape == (12,) and predictions["strong_log_p"].shape == (12, 4)
    results = results_of(runs / "TPT")
    assert results["predictions_bytes"] == (runs / "TPT" / "predictions.npz").stat().st_size


def test_probabilities_that_underflow_are_stored_as_finite_numbers():
    """Of a method that changes no logits, whose strong views are certain of one class."""
    logits = torch.zeros(2, 20, 3)
    logits[..., 0] = 500.0
    strong = posthoc.cots_columns(logits, logits)["strong_log_p"]
    assert strong.isfinite().all() and (strong[:, 1:] < -80).all()
