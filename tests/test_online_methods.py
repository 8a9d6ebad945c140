"""The online methods: against slow, plain versions, by their properties, interrupted and continued,
in the report."""
from __future__ import annotations

import numpy as np
import pytest
import torch
from promptcal.datasets.selection import shuffled
from promptcal.datasets.utils.errors import ConfigError
from promptcal.tools.report import main as report
from promptcal.trainers import TRAINER_REGISTRY, Adapter, adapt, build_cfg
from promptcal.trainers.functional.objectives import class_logits, confident_views, unit
from promptcal.trainers.report.figures.comparison import running
from promptcal.trainers.runs.run_dir import RunDir, read_predictions
from promptcal.trainers.tda import PAPER
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.loading import as_backbone

import reference_family as slow
import reference_online as plain
from folders import results_of
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


def test_tda_stores_equal_names_as_one_class(clip_model, views):
    """Rounding does not distribute a name's images over its classes: only the first is
    predicted."""
    trainer = make_trainer(
        "TDA", clip_model, names=[NAMES[0], *NAMES[:4], *["cat"] * 4, *NAMES[1:3]]
    )
    predict(trainer, views)
    stored = trainer.positive.entropy.isfinite().any(-1)
    assert stored[[0, 2, 3]].all() and not stored[[1, *range(5, 11)]].any()


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
    expected = torch.stack(
        getattr(plain, method.lower())(list(hard.double()), text, first, **settings)
    )
    logits = predict(trainer, hard)
    assert logits.isfinite().all()
    torch.testing.assert_close(logits.softmax(-1).double(), expected, atol=2e-5, rtol=0)
    scale = trainer.clip.scale if method == "DMN" else 100
    assert (expected - (scale * hard[:, 0].double() @ text.T).softmax(-1)).abs().max() > 0.02


def test_bcas_prior_only_mixes(clip_model, hard):
    """Rows of P are distributions and a posterior is a mean of them, so confidence falls (not for
    every image)."""
    trainer = make_trainer("BCA", clip_model)
    before = []
    after = []
    for image in hard:
        before.append(trainer.used_views(image[None], trainer.centres)[1].mean(0).softmax(-1).max())
        rows = trainer.prior.clone()
        p = trainer.adapt(image[None]).logits[0].exp()
        after.append(p.max())
        torch.testing.assert_close(rows.sum(-1), torch.ones(len(NAMES)))
        assert (rows.amin(0) - 1e-6 <= p).all() and (p <= rows.amax(0) + 1e-6).all()
    assert after[0] == before[0] and torch.stack(after).mean() < torch.stack(before).mean() - 0.001


def test_dmns_memory_of_one_image_keeps_the_most_certain(clip_model, hard):
    trainer = make_trainer("DMN", clip_model, "TRAINER.DMN.MEMORY", 1)
    lowest = torch.full((len(NAMES),), torch.inf)
    for image in hard:
        before = trainer.memory.keys.clone()
        trainer.adapt(image[None])
        assert (trainer.memory.entropy[:, 0] <= lowest).all()
        lowest = trainer.memory.entropy[:, 0].clone()
        changed = (trainer.memory.keys != before).any(-1)[:, 0]
        assert changed.sum() <= 1
        for k in torch.where(changed)[0]:
            assert torch.equal(trainer.memory.keys[k, 0], image[0])


def test_boostadapter_without_views_is_tda_with_a_queue(clip_model, hard):
    """With one view nothing is boosted: TDA, but that the negative cache keeps the last uncertain
    images."""
    opts = ("TTA.VIEWS", 1, "TRAINER.BOOSTADAPTER.SCALE", 0, "TRAINER.BOOSTADAPTER.DELTA", 0)
    boost = make_trainer("BoostAdapter", clip_model, *opts)
    tda = make_trainer("TDA", clip_model)
    uncertain = 0
    for image in hard[:, :1]:
        logits, expected = (trainer.adapt(image[None]).logits for trainer in (boost, tda))
        for name in ("keys", "entropy"):
            assert torch.equal(getattr(boost.positive, name), getattr(tda.positive, name))
        full = tda.negative.entropy.isfinite().all(-1)
        uncertain += bool(full.any())
        if not full.any():  # until a class has two, both caches hold the same
            torch.testing.assert_close(logits, expected)
    assert uncertain and not torch.equal(boost.negative.keys, tda.negative.keys)


def test_dpes_first_image_has_nothing_to_align(clip_model, hard):
    """One prototype alone: the cross-entropy is 0, so its weight and temperature change nothing."""
    align = ("TRAINER.DPE.ALIGN", 100, "TRAINER.DPE.TAU", 0.5)
    first, other = (predict(make_trainer("DPE", clip_model, *opts), hard) for opts in ((), align))
    torch.testing.assert_close(first[0], other[0])
    assert (first - other).abs().max() > 0.01


def test_dotas_first_image(clip_model, hard):
    """λ = min(ρ, η), μ = 0.001 and Λ = I/σ for every class: a constant that changes no
    probability."""
    trainer = make_trainer("DOTA", clip_model, "TRAINER.DOTA.ETA", 0.1, "TRAINER.DOTA.RHO", 5.0)
    x = hard[0, 0]
    text = trainer.clip.text
    added = 0.1 * (0.001 * x.sum() - 0.001**2 * 48 / 2) / 0.002
    torch.testing.assert_close(
        predict(trainer, hard[:1])[0], 100 * x @ text.T + added, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("method", ONLINE)
def test_a_batch_is_a_stream_in_order(clip_model, hard, method):
    """Several images at once give what they give one by one, not the first one's prediction
    alone."""
    def make():
        if method == "OnZeta":
            return make_trainer(method, clip_model, "TRAINER.ONZETA.IMAGES", IMAGES)
        return make_trainer(method, clip_model)

    expected = predict(make(), hard)
    trainer = make()
    predictions = [trainer.adapt(batch) for batch in hard.split(7)]
    assert torch.equal(torch.cat([batch.logits for batch in predictions]), expected)
    assert torch.cat([batch.zero_shot_logits for batch in predictions]).shape == expected.shape
    assert not torch.equal(predict(make(), hard.flip(0)).flip(0), expected)


@pytest.mark.parametrize("method", ONLINE)
def test_a_call_is_a_stream_and_an_adapter_continues_it(clip_model, method):
    images = make_views(images=6)
    expected = adapt(method, clip_model, NAMES, images).logits
    adapter = Adapter(method, clip_model, NAMES, images.shape[1])
    assert torch.equal(torch.cat([adapter(batch).logits for batch in images.split(4)]), expected)
    # nothing is kept
    assert torch.equal(adapt(method, clip_model, NAMES, images[:1]).logits, expected[:1])


@pytest.mark.parametrize("method", STREAMS)
def test_classes_of_one_name_and_a_single_class(clip_model, hard, method):
    for names in ([NAMES[0], *NAMES[:4], *["cat"] * 2], ["cat"]):
        trainer = make_trainer(method, clip_model, names=names)
        assert predict(trainer, hard).isfinite().all()
        # only the first class of a name is predicted
        if len(names) > 1 and method in ("DMN", "BoostAdapter", "DPE"):
            cache = {"DMN": "memory", "BoostAdapter": "positive", "DPE": "queue"}[method]
            assert not getattr(trainer, cache).entropy.isfinite()[[1, 5, 6]].any()


@pytest.mark.parametrize(("method", "opts", "message"), [
    ("BCA", ["TTA.VIEWS", 5], "to keep one of 5 views"),
    ("DMN", ["TTA.VIEWS", 5], "to keep one of 5 views"),
    ("BoostAdapter", ["TTA.VIEWS", 5], "to keep one of 5 views"),
    ("DPE", ["TRAINER.DPE.TAU", 0], "above 0"),
    ("DPE", ["TRAINER.DPE.PREDICT", "mean"], "one of plain, confident"),
    ("DMN", ["TRAINER.DMN.MEMORY", 0], "1 or"),
    ("DOTA", ["TRAINER.DOTA.VIEWS", "all"], "one of plain, confident"),
    ("DOTA", ["TRAINER.DOTA.SIGMA", 0], "above 0"),
    ("TPT", ["TTA.RESET", "010"], "image, never, or"),
    ("TPT", ["TTA.RESET", "٣"], "image, never, or"),
    ("TPT", ["TTA.RESET", "0"], "image, never, or a number"),
    ("TPT", ["TTA.RESET", "often"], "image, never, or"),
    ("TDA", ["TTA.RESET", "never"],
     "TTA.RESET never works only with methods that tune by gradients"),
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
    assert torch.equal(
        adapt("TPT", clip_model, NAMES, images, opts=["TTA.RESET", 1]).logits, episodic.logits
    )


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
        patch.setattr(
            type(trainer), "predict",
            lambda self, views, text: torch.full((1, len(NAMES)), torch.nan),
        )
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
        # the range of the first of them
        expected = slow.loss_of(method, of_image, views[:1], trainer.clip.text, 10)
        torch.testing.assert_close(loss, expected)


@pytest.fixture
def run(run_method, tmp_path):
    def run(method: str, folder: str, *opts: object) -> dict[str, np.ndarray]:
        return run_method(method, tmp_path / folder, "TEST.PART", 3, *opts)
    return run


@pytest.mark.parametrize(
    ("method", "opts"), [*((method, ()) for method in ONLINE), ("TPT", ("TTA.RESET", 5))]
)
def test_interrupted_and_continued(run, method, opts, monkeypatch):
    expected = run(method, "whole", *opts)
    real = RunDir.write_state
    written = []

    def write(run_dir: RunDir, *args: object) -> None:
        real(run_dir, *args)
        written.append(args)
        if len(written) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunDir, "write_state", write)
        run(method, "cut", *opts)
    continued = run(method, "cut", *opts)
    for name, column in expected.items():
        np.testing.assert_array_equal(continued[name], column, err_msg=name)


def test_published_values_are_an_option():
    data = "configs/datasets/eurosat.yaml"
    assert build_cfg("TDA", data).TRAINER.TDA.ALPHA == 2
    assert build_cfg("TDA", data, opts=["TRAINER.TDA.VALUES", "paper"]).TAG == "VALUES-paper"
    assert PAPER["EuroSAT"] == (4, 8) and len(PAPER) == 15
    with pytest.raises(ConfigError, match="none are published for 'LandCover'"):
        build_cfg("TDA", "configs/datasets/landcover.yaml", opts=["TRAINER.TDA.VALUES", "paper"])
    assert build_cfg("TDA", "configs/datasets/imagenet_r.yaml").TRAINER.TDA.VIEWS == "confident"
    assert build_cfg("DPE", "configs/datasets/imagenet_a.yaml").TRAINER.DPE.PREDICT == "confident"


@pytest.mark.parametrize(("method", "dataset", "values"), [
    ("DMN", "DescribableTextures", {"WEIGHT": 10}),
    ("BoostAdapter", "Food101", {"ALPHA": 1, "BETA": 1, "DELTA": 3}),
    ("DPE", "SUN397", {"ALPHA": 6, "BETA": 3, "LR_TEXT": 2e-4, "LR_IMAGE": 2e-4, "ALIGN": 0.2}),
    ("DOTA", "Caltech101", {"ETA": 0.3, "RHO": 0.02, "EPSILON": 2e-3}),
])
def test_published_values_per_set(clip_model, method, dataset, values):
    opts = ("DATASET.NAME", dataset, f"TRAINER.{method.upper()}.VALUES", "paper")
    assert make_trainer(method, clip_model, *opts).method_settings.items() >= values.items()
    assert not make_trainer(method, clip_model, *opts[:2]).method_settings.items() >= values.items()
    assert len(TRAINER_REGISTRY.get(method).paper) == (14 if method == "BoostAdapter" else 15)


def test_the_report_shows_the_deviation_over_orders(run, tmp_path, capsys):
    for seed in range(3):
        run("OnZeta", f"orders/seed{seed}", "SEED", seed)
    capsys.readouterr()
    report([str(tmp_path / "orders"), "--no-figures"])
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines[lines.index("ECE (%)") :] if line.startswith("  OnZeta"))
    errors = [results_of(tmp_path / f"orders/seed{seed}")["ece"] for seed in range(3)]
    assert np.std(errors) > 0.05
    assert f"{np.mean(errors):.1f} ± {np.std(errors, ddof=1):.1f}" in row
    note = next(line for line in lines if "seeds, which for OnZeta" in line)
    assert "are orders of the images" in note


def test_a_carried_context_in_the_report(run, tmp_path, capsys):
    """Its label says when it is reset, and its figure shows the stream."""
    for reset in ("image", "never"):
        run("TPT", f"reset/{reset}", "TTA.RESET", reset)
    words = "TPT, never reset"
    assert words in capsys.readouterr().out + (tmp_path / "reset/never/log.txt").read_text()
    report([str(tmp_path / "reset/never"), "--out", str(tmp_path / "alone")])
    report([str(tmp_path / "reset"), "--no-figures"])
    out = capsys.readouterr().out
    assert "TPT, never reset" in out and "TPT, reset for each image" in out
    assert [file.name for file in (tmp_path / "alone/figures").glob("over_time_*.png")]
    assert read_predictions(tmp_path / "reset/never")["position"].argsort().tolist() == shuffled(
        range(12), 0
    )


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
