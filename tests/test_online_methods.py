"""TDA and OnZeta: against slow, plain versions, on odd inputs, and killed and continued without a trace."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import reference_family as slow
import torch
from promptcal.datasets.utils.errors import ConfigError
from promptcal.tools.report import main as report
from promptcal.trainers import adapt, build_cfg, build_trainer
from promptcal.trainers.functional.objectives import class_logits, confident_views, unit
from promptcal.trainers.runs.run_dir import RunDir
from promptcal.trainers.tda import PAPER
from promptcal.trainers.vlm.loading import as_backbone
from test_episodes import NAMES, make_views

ONLINE = ("TDA", "OnZeta")
IMAGES = 40


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return make_views(images=6)


def make_trainer(model, method: str, *opts: object):
    trainer = build_trainer(build_cfg(method, opts=["TTA.VIEWS", 20, *opts]))
    trainer.use_model(model, NAMES)
    return trainer


@pytest.fixture(scope="module")
def views(clip_model) -> torch.Tensor:
    """View features near their classes, some nearer than others: all degrees of certainty, all classes."""
    text = make_trainer(clip_model, "ZeroShot").prompt.text
    own = text[torch.arange(IMAGES) % len(text)] - text.mean(0)
    generator = torch.Generator().manual_seed(2)
    near = 0.5 + 3 * torch.rand(IMAGES, 1, 1, generator=generator)
    noise = torch.randn(IMAGES, 1, 48, generator=generator) + 0.3 * torch.randn(IMAGES, 20, 48, generator=generator)
    return unit(near * unit(own)[:, None] + noise / 48**0.5)


def meet(trainer, views: torch.Tensor) -> torch.Tensor:
    return torch.cat([trainer.adapt(image[None]).logits for image in views])


def test_tda_equals_the_reference(clip_model, views):
    trainer = make_trainer(clip_model, "TDA")
    expected = torch.stack(slow.tda(list(views[:, 0]), trainer.prompt.text, trainer.scale))
    torch.testing.assert_close(meet(trainer, views), expected, atol=1e-3, rtol=0)
    assert trainer.negative.entropy.isfinite().any() and trainer.negative.marks.any()
    assert trainer.positive.entropy.isfinite().sum(-1).max() == 3
    assert (expected - trainer.scale * views[:, 0] @ trainer.prompt.text.T).abs().max() > 1


def test_tda_of_confident_views_equals_the_reference(clip_model, views):
    trainer = make_trainer(clip_model, "TDA", "TRAINER.TDA.VIEWS", "confident")
    chosen = confident_views(class_logits(views, trainer.prompt.text, trainer.scale), 0.1)
    kept = views.take_along_dim(chosen[..., None], dim=1)
    expected = torch.stack(slow.tda(list(kept), trainer.prompt.text, trainer.scale))
    torch.testing.assert_close(meet(trainer, views), expected, atol=1e-3, rtol=0)


def test_an_image_meets_itself(clip_model, views):
    """The very first image: its own predicted class gains α at cosine 1, less what it says against itself."""
    trainer = make_trainer(clip_model, "TDA", "TRAINER.TDA.ALPHA", 7)
    plain = trainer.scale * views[0, 0] @ trainer.prompt.text.T
    gain = meet(trainer, views[:1])[0] - plain
    assert gain.argmax() == plain.argmax() and gain.max() == pytest.approx(7, abs=0.12)


def test_tda_takes_the_first_of_equal_names(clip_model, views):
    """Rounding does not scatter an image's class over two of one name: the second is never predicted."""
    trainer = build_trainer(build_cfg("TDA", opts=["TTA.VIEWS", 20]))
    trainer.use_model(clip_model, [NAMES[0], *NAMES[:4], *["cat"] * 4, *NAMES[1:3]])
    meet(trainer, views)
    held = trainer.positive.entropy.isfinite().any(-1)
    assert held[[0, 2, 3]].all() and not held[[1, *range(5, 11)]].any()


def test_onzeta_equals_the_reference(clip_model, views):
    trainer = make_trainer(clip_model, "OnZeta", "TRAINER.ONZETA.IMAGES", IMAGES)
    expected = torch.stack(slow.onzeta(list(views[:, 0]), trainer.prompt.text, IMAGES))
    torch.testing.assert_close(meet(trainer, views).softmax(-1), expected, atol=1e-3, rtol=0)


def test_onzeta_without_vectors_and_shares_is_zero_shot(clip_model, pixels):
    still = ["TRAINER.ONZETA.BETA", 0, "TRAINER.ONZETA.ALPHA", 0, "TRAINER.ONZETA.TEMPERATURE", 0]
    adapted = adapt("OnZeta", clip_model, NAMES, pixels, opts=still)
    torch.testing.assert_close(adapted.logits.softmax(-1), adapted.zero_shot_logits.softmax(-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("case", ["one class", "two equal names", "all images alike", "more classes than features"])
@pytest.mark.parametrize("method", ONLINE)
def test_odd_inputs_give_numbers(clip_model, pixels, method: str, case: str):
    names = {"one class": ["cat"], "two equal names": ["missile", "missile", "sunglasses"],
             "more classes than features": [f"kind {i}" for i in range(60)]}.get(case, NAMES)
    images = pixels[:1].expand(5, -1, -1, -1, -1) if case == "all images alike" else pixels
    adapted = adapt(method, clip_model, names, images)
    assert adapted.logits.isfinite().all() and not adapted.flagged.any()


@pytest.fixture
def run(clip_file, image_folder, tmp_path):
    def run(method: str, folder: str, *opts: object) -> dict[str, np.ndarray]:
        build_trainer(build_cfg(method, "configs/datasets/image_folder.yaml", flags=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", tmp_path / folder,
            "TEST.PART", 3, "TTA.VIEWS", 10, "DATALOADER.NUM_WORKERS", 0, *opts])).run()
        return RunDir(tmp_path / folder).predictions()
    return run


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("method", ONLINE)
def test_killed_and_continued(run, method: str, after: int, monkeypatch):
    expected = run(method, "whole")
    real, written = RunDir.write_state, []

    def write(folder: RunDir, *args: object) -> None:
        real(folder, *args)
        written.append(args)
        if len(written) == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "write_state", write)
        with pytest.raises(KeyboardInterrupt):
            run(method, "cut")
    continued = run(method, "cut")
    for name, column in expected.items():
        np.testing.assert_array_equal(continued[name], column, err_msg=name)


@pytest.mark.parametrize("method", ONLINE)
def test_orders_differ_and_batches_do_not(run, method: str):
    expected = run(method, "a", "TTA.EPISODES", 1)["logits"]
    together = run(method, "b", "TTA.EPISODES", 5)["logits"]
    np.testing.assert_allclose(together, expected, atol=1e-2)  # OnZeta makes much of rounding
    assert not np.allclose(run(method, "c", "SEED", 1)["logits"], expected, atol=2e-2)


def test_the_plain_view_is_read_from_the_cache_of_many(run, tmp_path: Path, monkeypatch):
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


def test_the_report_shows_the_spread_over_orders(run, tmp_path: Path, capsys):
    """Three orders: mean and deviation of the runs' own figures, and a word on what the seeds are."""
    for seed in range(3):
        run("OnZeta", f"orders/seed{seed}", "SEED", seed)
    capsys.readouterr()
    report([str(tmp_path / "orders"), "--no-figures", "--bootstrap", "0"])
    lines = capsys.readouterr().out.splitlines()
    shown = next(line for line in lines[lines.index("ECE (%)") :] if line.startswith("  OnZeta"))
    own = [json.loads((tmp_path / "orders" / f"seed{seed}" / "results.json").read_text())["ece"]
           for seed in range(3)]
    assert np.std(own) > 0.05, "orders that change nothing"
    assert f"{np.mean(own):.1f} ± {np.std(own, ddof=1):.1f}" in shown
    assert any("±: standard deviation over seeds, which for OnZeta are orders of the images." in line for line in lines)


def test_what_is_carried_keeps_its_shape(clip_model):
    """One row would be copied to all rows of a tensor that has grown."""
    method = build_trainer(build_cfg("OnZeta"))
    method.use_model(as_backbone(clip_model), NAMES)
    state = method.state()
    name = next(name for name, array in state.items() if array.ndim)
    with pytest.raises(ConfigError, match=f"carries '{name}' as .* keeps its shape"):
        method.load_state({**state, name: state[name][:1] if len(state[name]) > 1 else np.zeros(3)})
