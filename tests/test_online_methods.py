"""TDA and OnZeta: against slow, plain versions, interrupted and continued, and in the report."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import reference_family as slow
import torch
from promptcal.datasets.utils.errors import ConfigError
from promptcal.tools.report import main as report
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.functional.objectives import class_logits, confident_views, unit
from promptcal.trainers.runs.run_dir import RunDir
from promptcal.trainers.tda import PAPER
from test_episodes import NAMES, make_trainer

ONLINE = ("TDA", "OnZeta")
IMAGES = 40


@pytest.fixture(scope="module")
def views(clip_model) -> torch.Tensor:
    """View features near their classes, some nearer than others: all degrees of confidence, all classes."""
    text = make_trainer("ZeroShot", clip_model).prompt.text
    own = text[torch.arange(IMAGES) % len(text)] - text.mean(0)
    generator = torch.Generator().manual_seed(2)
    near = 0.5 + 3 * torch.rand(IMAGES, 1, 1, generator=generator)
    noise = torch.randn(IMAGES, 1, 48, generator=generator) + 0.3 * torch.randn(IMAGES, 20, 48, generator=generator)
    return unit(near * unit(own)[:, None] + noise / 48**0.5)


def predict(trainer, views: torch.Tensor) -> torch.Tensor:
    return torch.cat([trainer.adapt(image[None]).logits for image in views])


@pytest.mark.parametrize("kind", ["plain", "confident"])
def test_tda_equals_the_reference(clip_model, views, kind: str):
    trainer = make_trainer("TDA", clip_model, "TRAINER.TDA.VIEWS", kind)
    text, scale = trainer.prompt.text, trainer.scale
    chosen = confident_views(class_logits(views, text, scale), 0.1)
    used = views[:, 0] if kind == "plain" else views.take_along_dim(chosen[..., None], dim=1)
    expected = torch.stack(slow.tda(list(used), text, scale))
    torch.testing.assert_close(predict(trainer, views), expected, atol=1e-3, rtol=0)
    assert trainer.negative.entropy.isfinite().any() and trainer.negative.masks.any()
    assert trainer.positive.entropy.isfinite().sum(-1).max() == 3
    assert (expected - scale * views[:, 0] @ text.T).abs().max() > 1


def test_tda_stores_equal_names_as_one_class(clip_model, views):
    """Rounding does not distribute a name's images over its classes: only the first is predicted."""
    trainer = make_trainer("TDA", clip_model, names=[NAMES[0], *NAMES[:4], *["cat"] * 4, *NAMES[1:3]])
    predict(trainer, views)
    stored = trainer.positive.entropy.isfinite().any(-1)
    assert stored[[0, 2, 3]].all() and not stored[[1, *range(5, 11)]].any()


def test_onzeta_equals_the_reference(clip_model, views):
    trainer = make_trainer("OnZeta", clip_model, "TRAINER.ONZETA.IMAGES", IMAGES)
    expected = torch.stack(slow.onzeta(list(views[:, 0]), trainer.prompt.text, IMAGES))
    torch.testing.assert_close(predict(trainer, views).softmax(-1), expected, atol=1e-3, rtol=0)


@pytest.fixture
def run(clip_file, image_folder, tmp_path):
    def run(method: str, folder: str, *opts: object) -> dict[str, np.ndarray]:
        build_trainer(build_cfg(method, "configs/datasets/image_folder.yaml", flags=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", tmp_path / folder,
            "TEST.PART", 3, "TTA.VIEWS", 10, "DATALOADER.NUM_WORKERS", 0, *opts])).run()
        return RunDir(tmp_path / folder).predictions()
    return run


@pytest.mark.parametrize("method", ONLINE)
def test_interrupted_and_continued(run, method: str, monkeypatch):
    expected = run(method, "whole")
    real, written = RunDir.write_state, []

    def write(run_dir: RunDir, *args: object) -> None:
        real(run_dir, *args)
        written.append(args)
        if len(written) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunDir, "write_state", write)
        run(method, "cut")
    continued = run(method, "cut")
    for name, column in expected.items():
        np.testing.assert_array_equal(continued[name], column, err_msg=name)


def test_the_plain_view_is_read_from_the_cache_of_all_views(run, tmp_path: Path, monkeypatch):
    cached = ("CACHE.DIR", tmp_path / "cache")
    run("TPT", "tpt", *cached)
    monkeypatch.setattr("promptcal.datasets.base.open_image", lambda path: pytest.fail("an image was opened"))
    expected = run("TDA", "again", *cached)
    monkeypatch.undo()
    np.testing.assert_allclose(run("TDA", "plain")["logits"], expected["logits"], atol=0.05)  # the cache is fp16


def test_published_values_are_an_option():
    data = "configs/datasets/eurosat.yaml"
    assert build_cfg("TDA", data).TRAINER.TDA.ALPHA == 2
    assert build_cfg("TDA", data, opts=["TRAINER.TDA.VALUES", "paper"]).TAG == "VALUES-paper"
    assert PAPER["EuroSAT"] == (4, 8) and len(PAPER) == 15
    with pytest.raises(ConfigError, match="none are published for 'LandCover'"):
        build_cfg("TDA", "configs/datasets/landcover.yaml", opts=["TRAINER.TDA.VALUES", "paper"])
    assert build_cfg("TDA", "configs/datasets/imagenet_r.yaml").TRAINER.TDA.VIEWS == "confident"


def test_the_report_shows_the_deviation_over_orders(run, tmp_path: Path, capsys):
    for seed in range(3):
        run("OnZeta", f"orders/seed{seed}", "SEED", seed)
    capsys.readouterr()
    report([str(tmp_path / "orders"), "--no-figures", "--bootstrap", "0"])
    lines = capsys.readouterr().out.splitlines()
    shown = next(line for line in lines[lines.index("ECE (%)") :] if line.startswith("  OnZeta"))
    own = [json.loads((tmp_path / f"orders/seed{seed}/results.json").read_text())["ece"] for seed in range(3)]
    assert np.std(own) > 0.05
    assert f"{np.mean(own):.1f} ± {np.std(own, ddof=1):.1f}" in shown
    assert any("deviation over seeds, which for OnZeta are orders of the images" in line for line in lines)


def test_a_state_of_another_shape_is_refused(clip_model):
    method = make_trainer("OnZeta", clip_model)
    state = method.state()
    with pytest.raises(ConfigError, match="has state 'dual' of shape .* without changing shapes"):
        method.load_state({**state, "dual": state["dual"][:1]})
