"""The online methods: against slow, plain versions, by their properties, interrupted and continued,
in the report."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from promptcal.datasets.selection import shuffled
from promptcal.datasets.utils.errors import ConfigError
from promptcal.tools.report import main as report
from promptcal.trainers import Adapter, adapt, build_cfg
from promptcal.trainers.functional.objectives import class_logits, confident_views, unit
from promptcal.trainers.report.figures.comparison import running
from promptcal.trainers.runs.run_dir import read_predictions
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.loading import as_backbone

import reference_family as slow
import reference_online as plain
from folders import interrupted_at, results_of
from test_episodes import NAMES, make_trainer, make_views

STREAMS = ("BCA", "DMN", "BoostAdapter", "DPE", "DOTA")
ONLINE = ("TDA", "OnZeta", *STREAMS)
IMAGES = 40


def features_near_classes(clip_model, nearest: float, spread: float) -> torch.Tensor:
    """View features near their classes, some nearer than others: all degrees of confidence, all
    classes."""
    text = make_trainer("ZeroShot", clip_model).clip.text
    class_parts = text[torch.arange(IMAGES) % len(text)] - text.mean(0)
    generator = torch.Generator().manual_seed(2)
    near = nearest + spread * torch.rand(IMAGES, 1, 1, generator=generator)
    noise = torch.randn(IMAGES, 1, 48, generator=generator)
    noise = noise + 0.3 * torch.randn(IMAGES, 20, 48, generator=generator)
    return unit(near * unit(class_parts)[:, None] + noise / 48**0.5)


@pytest.fixture(scope="module")
def views(clip_model) -> torch.Tensor:
    return features_near_classes(clip_model, 0.5, 3)


def predict(trainer, views: torch.Tensor) -> torch.Tensor:
    return torch.cat([trainer.adapt(image[None]).logits for image in views])


@pytest.mark.parametrize("kind", ["plain", "confident"])
def test_tda_equals_the_reference(clip_model, views, kind):
    trainer = make_trainer("TDA", clip_model, "TRAINER.TDA.VIEWS", kind)
    text = trainer.clip.text
    scale = trainer.clip.scale
    chosen = confident_views(class_logits(views, text, scale), 0.1)
    used = views[:, 0] if kind == "plain" else views.take_along_dim(chosen[..., None], dim=1)
    expected = torch.stack(slow.tda(list(used), text, scale))
    torch.testing.assert_close(predict(trainer, views), expected, atol=1e-3, rtol=0)
    assert trainer.negative.entropy.isfinite().any() and trainer.negative.masks.any()
    assert trainer.positive.entropy.isfinite().sum(-1).max() == 3
    assert (expected - scale * views[:, 0] @ text.T).abs().max() > 1


def test_onzeta_equals_the_reference(clip_model, views):
    trainer = make_trainer("OnZeta", clip_model, "TRAINER.ONZETA.IMAGES", IMAGES)
    expected = torch.stack(slow.onzeta(list(views[:, 0]), trainer.clip.text, IMAGES))
    torch.testing.assert_close(predict(trainer, views).softmax(-1), expected, atol=1e-3, rtol=0)


@pytest.fixture(scope="module")
def hard(clip_model) -> torch.Tensor:
    """As `views`, but so far from their classes that the methods disagree at their scale of 100."""
    return features_near_classes(clip_model, 0.3, 1.2)


@pytest.mark.parametrize(("method", "kind", "opts", "settings"), [
    ("BCA", "plain", [], {}),
    ("BCA", "confident", ["TRAINER.BCA.COUNT_CENTRE", 300], {"count": 300}),
    ("DMN", None, [], {}),
    ("DMN", None, ["TRAINER.DMN.MEMORY", 2, "TRAINER.DMN.WEIGHT", 3], {"most": 2, "weight": 3}),
    ("BoostAdapter", "plain", [], {}),
    ("BoostAdapter", "confident", ["TRAINER.BOOSTADAPTER.DELTA", 0], {"delta": 0}),
    ("DPE", "plain", [], {}),
    ("DPE", "confident", ["TRAINER.DPE.PREDICT", "confident"], {"predict": True}),
    ("DOTA", "plain", ["TRAINER.DOTA.RHO", 0.05], {"rho": 0.05}),
    ("DOTA", "confident", [], {}),
])
def test_streams_equal_the_reference(clip_model, hard, method, kind, opts, settings):
    views = [f"TRAINER.{method.upper()}.VIEWS", kind] if kind else []
    trainer = make_trainer(method, clip_model, *views, *opts)
    text = trainer.clip.text.double()
    # the others multiply cosines by 100
    first = float(trainer.clip.scale) if method == "DMN" else kind == "confident"
    expected = torch.stack(getattr(plain, method.lower())(list(hard.double()), text, first, **settings))
    logits = predict(trainer, hard)
    assert logits.isfinite().all()
    torch.testing.assert_close(logits.softmax(-1).double(), expected, atol=2e-5, rtol=0)
    scale = trainer.clip.scale if method == "DMN" else 100
    assert (expected - (scale * hard[:, 0].double() @ text.T).softmax(-1)).abs().max() > 0.02


def test_first_images_in_closed_form(clip_model, hard):
    # DPE has one prototype then: the cross-entropy is 0, so its weight and temperature change nothing.
    dpe = predict(make_trainer("DPE", clip_model), hard)
    aligned = predict(make_trainer("DPE", clip_model, "TRAINER.DPE.ALIGN", 100, "TRAINER.DPE.TAU", 0.5), hard)
    torch.testing.assert_close(dpe[0], aligned[0])
    assert (dpe - aligned).abs().max() > 0.01
    # DOTA has λ = min(ρ, η), μ = 0.001 and Λ = I/σ for every class: a constant that changes no probability.
    dota = make_trainer("DOTA", clip_model, "TRAINER.DOTA.ETA", 0.1, "TRAINER.DOTA.RHO", 5.0)
    x = hard[0, 0]
    added = 0.1 * (0.001 * x.sum() - 0.001**2 * 48 / 2) / 0.002
    expected = 100 * x @ dota.clip.text.T + added
    torch.testing.assert_close(predict(dota, hard[:1])[0], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("method", "cache"), [
    ("TDA", "positive"), ("DMN", "memory"), ("BoostAdapter", "positive"), ("DPE", "queue"),
])
def test_images_are_stored_under_the_first_class_of_a_name(clip_model, views, method, cache):
    """Rounding does not distribute a name's images over its classes."""
    names = [NAMES[0], *NAMES[:4], *["cat"] * 4, *NAMES[1:3]]
    trainer = make_trainer(method, clip_model, names=names)
    predict(trainer, views)
    stored = getattr(trainer, cache).entropy.isfinite().any(-1)
    assert stored[[0, 2, 3]].all() and not stored[[1, *range(5, 11)]].any()


@pytest.mark.parametrize("method", ONLINE)
def test_a_batch_is_a_stream_in_order(clip_model, hard, method):
    """Several images at once give what they give one by one, not the first one's prediction alone."""
    opts = ["TRAINER.ONZETA.IMAGES", IMAGES] if method == "OnZeta" else []
    expected = predict(make_trainer(method, clip_model, *opts), hard)
    trainer = make_trainer(method, clip_model, *opts)
    logits = [trainer.adapt(batch).logits for batch in hard.split(7)]
    assert torch.equal(torch.cat(logits), expected)
    backwards = predict(make_trainer(method, clip_model, *opts), hard.flip(0))
    assert not torch.equal(backwards.flip(0), expected)


@pytest.mark.parametrize("method", ["TDA", "OnZeta", "DPE"])
def test_a_call_is_a_stream_and_an_adapter_continues_it(clip_model, method):
    images = make_views(images=6)
    expected = adapt(method, clip_model, NAMES, images).logits
    adapter = Adapter(method, clip_model, NAMES, images.shape[1])
    assert torch.equal(torch.cat([adapter(batch).logits for batch in images.split(4)]), expected)
    # Nothing is kept between calls.
    assert torch.equal(adapt(method, clip_model, NAMES, images[:1]).logits, expected[:1])


@pytest.mark.parametrize(("method", "opts", "message"), [
    ("BCA", ["TTA.VIEWS", 5], "to keep one of 5 views"),
    ("DMN", ["TTA.VIEWS", 5], "to keep one of 5 views"),
    ("BoostAdapter", ["TTA.VIEWS", 5], "to keep one of 5 views"),
    ("TPT", ["TTA.RESET", "010"], "image, never, or"),
    ("TPT", ["TTA.RESET", "٣"], "image, never, or"),
    ("TDA", ["TTA.RESET", "never"], "TTA.RESET never works only with methods that tune by gradients"),
    ("TDA", ["TRAINER.TDA.VALUES", "paper", "DATASET.NAME", "LandCover"], "none are published for 'LandCover'"),
])
def test_settings_that_cannot_work(method, opts, message):
    with pytest.raises(ConfigError, match=message):
        build_cfg(method, opts=opts)


@pytest.mark.parametrize("every", [0, 2])
def test_a_carried_context_equals_the_reference(clip_model, every):
    """The optimizer is carried and reset with the context; zero-shot predictions stay zero-shot."""
    images = make_views(images=5)
    carried = adapt("TPT", clip_model, NAMES, images, opts=["TTA.RESET", every or "never"])
    episodic = adapt("TPT", clip_model, NAMES, images)
    expected = torch.stack(plain.continual(clip_model, NAMES, images, every))
    torch.testing.assert_close(carried.logits, expected, atol=5e-3, rtol=0)
    torch.testing.assert_close(carried.zero_shot_logits, episodic.zero_shot_logits)
    same = (carried.logits - episodic.logits).abs().amax(-1) < 5e-3
    assert same.tolist() == ([True, False, True, False, True] if every else [True] + [False] * 4)
    assert torch.equal(adapt("TPT", clip_model, NAMES, images, opts=["TTA.RESET", 1]).logits, episodic.logits)


@pytest.mark.parametrize("method", ["SoC", "TPS", "RTPT"])
def test_the_family_carries_its_context(clip_model, method):
    images = encode_views(as_backbone(clip_model), make_views(images=3))
    at_once = make_trainer(method, clip_model, "TTA.RESET", "never").adapt(images).logits
    one_by_one = predict(make_trainer(method, clip_model, "TTA.RESET", "never"), images)
    assert torch.equal(one_by_one, at_once)
    episodic = make_trainer(method, clip_model).adapt(images).logits
    assert (at_once - episodic)[1:].abs().amax(-1).min() > 1e-3


def test_a_context_that_is_not_finite_is_not_carried(clip_model, monkeypatch):
    trainer = make_trainer("TPT", clip_model, "TTA.RESET", "never")
    images = encode_views(as_backbone(clip_model), make_views(images=2))
    state = trainer.state()
    with monkeypatch.context() as patch:
        patch.setattr(type(trainer), "predict", lambda self, views, text: torch.full((1, len(NAMES)), torch.nan))
        trainer.adapt(images[:1])
    for name, array in trainer.state().items():
        np.testing.assert_array_equal(array, state[name] + (name == "images"))
    assert trainer.adapt(images[1:]).logits.isfinite().all()


@pytest.mark.parametrize("method", ["Penalty", "ZSNorm"])
def test_the_range_of_the_plain_view(clip_model, method):
    trainer = make_trainer(method, clip_model, f"TRAINER.{method.upper()}.RANGE", "plain")
    logits = 5 * torch.randn(2, 20, len(NAMES), generator=torch.Generator().manual_seed(0))
    selected = logits.take_along_dim(trainer.select(logits)[..., None], dim=1)
    losses = trainer.episode_loss(selected, selected, logits[:, :1])
    for loss, of_image, views in zip(losses, selected, logits, strict=True):
        expected = slow.loss_of(method, of_image, views[:1], trainer.clip.text, 10)
        torch.testing.assert_close(loss, expected)


@pytest.fixture
def run(run_method, tmp_path):
    def run(method: str, folder: str, *opts: object) -> dict[str, np.ndarray]:
        return run_method(method, tmp_path / folder, "TEST.PART", 3, *opts)
    return run


@pytest.mark.parametrize(("method", "opts"), [*((method, ()) for method in ONLINE), ("TPT", ("TTA.RESET", 5))])
def test_interrupted_and_continued(run, method, opts, caplog):
    expected = run(method, "whole", *opts)
    with interrupted_at("cut/parts/state.npz", 2), pytest.raises(KeyboardInterrupt):
        run(method, "cut", *opts)
    continued = run(method, "cut", *opts)
    assert "starts again" not in caplog.text  # its state is used
    for name, column in expected.items():
        np.testing.assert_array_equal(continued[name], column, err_msg=name)


@pytest.mark.parametrize(("method", "dataset", "values"), [
    ("TDA", "EuroSAT", {"ALPHA": 4, "BETA": 8}),
    ("DMN", "DescribableTextures", {"WEIGHT": 10}),
    ("BoostAdapter", "Food101", {"ALPHA": 1, "BETA": 1, "DELTA": 3}),
    ("DPE", "SUN397", {"ALPHA": 6, "BETA": 3, "LR_TEXT": 2e-4, "LR_IMAGE": 2e-4, "ALIGN": 0.2}),
    ("DOTA", "Caltech101", {"ETA": 0.3, "RHO": 0.02, "EPSILON": 2e-3}),
])
def test_published_values_per_set(clip_model, method, dataset, values):
    opts = ("DATASET.NAME", dataset, f"TRAINER.{method.upper()}.VALUES", "paper")
    assert make_trainer(method, clip_model, *opts).method_settings.items() >= values.items()
    assert not make_trainer(method, clip_model, *opts[:2]).method_settings.items() >= values.items()
    assert build_cfg(method, opts=opts).TAG == "VALUES-paper"


def test_the_report_shows_orders_and_a_carried_context(run, tmp_path, capsys):
    """Seeds are orders of the stream. A label says when a context is reset, and a figure shows the stream."""
    for seed in range(2):
        run("OnZeta", f"runs/onzeta{seed}", "SEED", seed)
    for reset in ("image", "never"):
        run("TPT", f"runs/{reset}", "TTA.RESET", reset)
    assert "TPT, never reset" in capsys.readouterr().out + (tmp_path / "runs/never/log.txt").read_text()
    report([str(tmp_path / "runs/never"), "--out", str(tmp_path / "alone")])
    assert list((tmp_path / "alone/figures").glob("over_time_*.png"))
    report([str(tmp_path / "runs"), "--no-figures"])
    out = capsys.readouterr().out
    assert "TPT, never reset" in out and "TPT, reset for each image" in out
    errors = [results_of(tmp_path / f"runs/onzeta{seed}")["ece"] for seed in range(2)]
    assert f"{np.mean(errors):.1f} ± {np.std(errors, ddof=1):.1f}" in out and errors[0] != errors[1]
    notes = [line for line in out.splitlines() if "seeds, which for OnZeta" in line]
    assert "are orders of the images" in notes[0]
    assert read_predictions(tmp_path / "runs/never")["position"].argsort().tolist() == shuffled(range(12), 0)


def test_running_windows():
    """A stream that is right with confidence 0.9 at first, and wrong with the same confidence in
    its second half."""
    position = np.random.default_rng(0).permutation(400)
    values = running(np.full(400, 0.9), position < 200, position, bins=20)
    assert values.window == 50 and values.position[[0, -1]].tolist() == [50, 400]
    assert values.accuracy[[0, -1]].tolist() == [100, 0]
    np.testing.assert_allclose(values.ece[[0, -1]], [10, 90])
    assert (values.low <= values.accuracy).all() and (values.accuracy <= values.high).all()


def test_a_state_of_another_shape_is_refused(clip_model):
    method = make_trainer("OnZeta", clip_model)
    state = method.state()
    with pytest.raises(ConfigError, match="has state 'dual' of shape .* without changing shapes"):
        method.load_state({**state, "dual": state["dual"][:1]})
