"""`adapt`: views, names, models and options of any kind work or give one clear error; torch's
global settings change no number."""
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image
from promptcal.datasets import build_dataset
from promptcal.datasets.views import make_views
from promptcal.trainers import adapt, build_cfg, build_trainer, load_clip
from promptcal.trainers.api import Adapter
from promptcal.trainers.runs.run_dir import read_predictions

from common import random_clip

NAMES = ["river", "lake", "sea"]
VIEWS = {"TTA.VIEWS": 10}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


normalised = torch.randn(2, 10, 3, 32, 32, generator=generator())
pixels = torch.randint(0, 256, (4, 16, 3, 32, 32), generator=generator(), dtype=torch.uint8)


@pytest.fixture
def pictures(image_folder) -> list:
    return sorted(image_folder.rglob("*.png"))[:2]


@pytest.mark.parametrize(("views", "others"), [
    (normalised, [normalised.numpy(), list(normalised), list(normalised.numpy()), normalised.double(),
                  normalised.clone().requires_grad_()]),
    (pixels[0], [pixels[0].double().numpy(), pixels[0].bfloat16(), pixels[0].half(),
                 np.flip(pixels[0].numpy()[..., ::-1].copy(), -1), pixels[0].float().numpy().astype(">f4")]),
], ids=["normalised", "pixel values"])
def test_views_of_any_type(clip_model, views, others):
    """Tensors and arrays of any float type, alone or in a list, backwards or of the other byte order."""
    expected = adapt("SoC", clip_model, NAMES, views).logits
    for other in others:
        torch.testing.assert_close(adapt("SoC", clip_model, NAMES, other).logits, expected, rtol=0, atol=1e-4)


def test_pictures_get_the_views_of_a_run(clip_model, pictures):
    """Paths, text paths and PIL images of any mode, one or many. Image i of a call has the draws of
    index i."""
    opened = [Image.open(path) for path in pictures]
    views = [make_views(image, i, count=10, size=32) for i, image in enumerate(opened)]
    expected = adapt("SoC", clip_model, NAMES, torch.stack(views)).logits
    for images in (pictures, tuple(map(str, pictures)), opened):
        logits = adapt("SoC", clip_model, NAMES, images, VIEWS).logits
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    alone = adapt("SoC", clip_model, NAMES, pictures[1], VIEWS, index=1).logits
    torch.testing.assert_close(alone, expected[1:], rtol=0, atol=1e-4)
    assert adapt("ZeroShot", clip_model, NAMES, opened[0].convert("L")).logits.shape == (1, 3)
    for opts in ({"TTA": {"VIEWS": 10}}, ("TTA.VIEWS", "10")):
        assert torch.equal(adapt("SoC", clip_model, NAMES, opened, opts).logits, logits)
    for index in ([0], [0, -1], "01", 3, [0.5, 1]):
        with pytest.raises((TypeError, ValueError), match="one whole number from 0 per image"):
            adapt("SoC", clip_model, NAMES, pictures, VIEWS, index=index)
        with pytest.raises(ValueError, match="given views need none"):
            adapt("SoC", clip_model, NAMES, normalised, index=index)


with_nan = normalised.clone()
with_nan[1] = torch.nan


@pytest.mark.parametrize(("names", "views", "opts", "error", "message"), [
    ("river", normalised, (), TypeError, "classnames must be a list of names in order, not 'river'"),
    ([0, 1], normalised, (), TypeError, "classnames must be texts, not 0"),
    ([], normalised, (), TypeError, "classnames is empty"),
    ({"a", "b"}, normalised, (), TypeError, "in order"),
    (NAMES, normalised, "TTA.STEPS 2", TypeError, "opts must be KEY VALUE pairs"),
    (NAMES, normalised, ["TTA.STEP", 2], ValueError, "unknown key 'TTA.STEP' in opts. Did you mean 'TTA.STEPS'"),
    (NAMES, normalised, ["TTA.STEPS", "x"], ValueError, "TTA.STEPS in opts must be of type int"),
    (NAMES, normalised, {"TTA.VIEWS": 16}, ValueError, r"TTA\.VIEWS 16 .*the number of views is an argument"),
    (NAMES, normalised[0, 0], (), ValueError, "not .3, 32, 32."),
    (NAMES, normalised[:0], (), ValueError, "views must be"),
    (NAMES, [[1.0]], (), TypeError, "views must be images, paths, or a tensor"),
    (NAMES, None, (), TypeError, "not a NoneType"),
    (NAMES, normalised.long(), (), TypeError, "not torch.int64"),
    (NAMES, np.array(["x"]), (), TypeError, "not <U1"),
    (NAMES, with_nan, (), ValueError, "views of image 1 hold numbers that are not finite"),
    (NAMES, ["nowhere.png"], (), ValueError, "nowhere.png"),
    (NAMES, [normalised[0], "nowhere.png"], (), TypeError, "not both"),
    (NAMES, [normalised[0], normalised[0, :3]], (), ValueError, "must have one shape"),
    (NAMES, normalised.sigmoid(), (), ValueError, "views lie in 0..1: multiply them by 255"),
    (NAMES, normalised.sigmoid() * 4000, (), ValueError, "give pixel values from 0 to 255"),
    (NAMES, normalised.sigmoid() - 100, (), ValueError, "give pixel values from 0 to 255"),
])
def test_what_cannot_work_is_one_clear_line(clip_model, names, views, opts, error, message):
    with pytest.raises(error, match=message) as raised:
        adapt("SoC", clip_model, names, views, opts)
    assert "\n" not in str(raised.value) and "the command" not in str(raised.value)


def clip_of_inference_mode():
    with torch.inference_mode():
        return random_clip()


@pytest.mark.parametrize(("make", "message"), [
    (lambda: "ViT-B/16", r"use load_clip\('ViT-B/16'\)"),
    (lambda: None, "must come from load_clip"),
    (lambda: torch.nn.Linear(2, 2), "must come from load_clip, not be a Linear"),
    (lambda: random_clip().half(), r"give model.float\(\)"),
    (lambda: random_clip().double(), r"give model.float\(\)"),
    (clip_of_inference_mode, "load it outside"),
], ids=["name", "None", "other model", "fp16", "double", "inference mode"])
def test_models_that_cannot_be_used(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        adapt("SoC", make(), NAMES, normalised)


@contextmanager
def default_dtype(dtype: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(before)


@contextmanager
def three_threads():
    torch.set_num_threads(3)
    try:
        yield
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("surroundings", [
    lambda: default_dtype(torch.float64),
    lambda: default_dtype(torch.bfloat16),
    lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    torch.inference_mode,
    torch.no_grad,
    three_threads,
    lambda: torch.autograd.set_detect_anomaly(True),
], ids=["float64", "bfloat16", "autocast", "inference", "no_grad", "threads", "anomaly detection"])
@pytest.mark.parametrize("trainer", ["SoC", "DPE", "ZeroShot"])
def test_nothing_around_a_call_changes_a_number(clip_model, surroundings, trainer):
    opts = ["TTA.STEPS", 2]
    expected = adapt(trainer, clip_model, NAMES, normalised, opts).logits
    with surroundings():
        views = normalised.clone()  # of the caller's mode
        logits = adapt(trainer, clip_model, NAMES, views, opts).logits
        by_adapter = Adapter(trainer, clip_model, NAMES, 10, opts)(views).logits
    assert logits.dtype == torch.float32
    assert torch.equal(logits, expected) and torch.equal(by_adapter, expected)


@pytest.mark.parametrize(("names", "message"), [
    (["river"], "there is only one class, 'river'"),
    (["river", "lake", "river"], "'river' = 'river'"),
    (["tree_frog", "tree frog"], "'tree_frog' = 'tree frog'"),
])
def test_uninformative_classes_are_warned_about(clip_model, caplog, names, message):
    adapted = Adapter("SoC", clip_model, names, 10)(normalised)
    assert message in caplog.text and adapted.logits.isfinite().all()


@pytest.mark.parametrize("trainer", ["TDA", "DPE"])
def test_threads_do_not_share_the_state_of_an_online_method(clip_model, trainer):
    expected = adapt(trainer, clip_model, NAMES, pixels).logits
    with ThreadPoolExecutor(3) as pool:
        for adapted in pool.map(lambda _: adapt(trainer, clip_model, NAMES, pixels), range(6)):
            assert torch.equal(adapted.logits, expected)


def test_black_images_are_pixel_values(clip_model):
    """Their numbers could be normalised ones. That they are pixels is known from the type, or from
    the other images."""
    black = Image.new("RGB", (32, 32))
    views = make_views(black, 0, 16, 32, augmix=False)
    opts = ["TTA.VIEWS", 16, "TTA.AUGMIX", "off"]
    expected = adapt("TPT", clip_model, NAMES, views, opts).logits
    assert torch.equal(adapt("TPT", clip_model, NAMES, black, opts).logits, expected)
    several = torch.stack([views, torch.full_like(views, 200)]).float()
    for episodes in (1, 2):
        adapted = adapt("TPT", clip_model, NAMES, several, [*opts, "TTA.EPISODES", episodes])
        torch.testing.assert_close(adapted.logits[:1], expected)


def test_a_model_is_loaded_for_any_default_type():
    with default_dtype(torch.float64):
        model = load_clip("small", "cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_changes_of_prompt_and_weights_count(tmp_path):
    """Nothing is kept between calls: neither the content of a prompt file nor of the weights."""
    model = random_clip(seed=3)
    opts = {"MODEL.INIT_WEIGHTS": tmp_path / "prompt.pt"}
    torch.save({"ctx": torch.ones(4, 64)}, tmp_path / "prompt.pt")
    first = adapt("ZeroShot", model, NAMES, normalised, opts).logits
    torch.save({"ctx": 2 * torch.ones(4, 64)}, tmp_path / "prompt.pt")
    with_other_prompt = adapt("ZeroShot", model, NAMES, normalised, opts).logits
    model.token_embedding.weight.data.mul_(0.5)
    with_other_weights = adapt("ZeroShot", model, NAMES, normalised, opts).logits
    assert not torch.allclose(first, with_other_prompt)
    assert not torch.allclose(with_other_prompt, with_other_weights)


@pytest.mark.parametrize("trainer", ["TPT", "TPS", "ZERO", "MTA", "TDA", "OnZeta", "BCA", "DMN", "ZeroShot"])
def test_classes_of_one_name_get_equal_logits(clip_model, trainer):
    names = ["river", "sunglasses", "lake", "sunglasses", "sea", "tree_frog", "tree frog"]
    logits = adapt(trainer, clip_model, names, normalised, VIEWS).logits
    assert torch.equal(logits[:, 1], logits[:, 3])
    assert torch.equal(logits[:, 5], logits[:, 6])


@pytest.mark.parametrize("change", ["in place", "behind autograd's back", "loaded"])
def test_an_adapter_keeps_the_weights_that_it_was_made_with(change):
    model = random_clip()
    adapter = Adapter("SoC", model, NAMES, 10)
    before = adapter(normalised)
    if change == "in place":
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.1)
    elif change == "loaded":
        model.load_state_dict(random_clip(seed=5).state_dict())
    else:
        for weight in model.parameters():
            weight.data = weight.data.flip(0)
    after = adapter(normalised)
    assert torch.equal(after.logits, before.logits) and torch.equal(after.ctx, before.ctx)
    fresh = Adapter("SoC", model, NAMES, 10)(normalised)
    assert (fresh.logits - before.logits).abs().max() > 1e-3
    assert torch.equal(fresh.logits, adapt("SoC", model, NAMES, normalised).logits)


def test_a_changed_hugging_face_model_is_changed_as_a_whole(tmp_path):
    """Its text weights are joined once, which an earlier call must not keep."""
    pytest.importorskip("transformers")
    import test_hugging_face

    test_hugging_face.make(tmp_path, "clip-gelu")
    backbone = load_clip(f"hf:{tmp_path}", "cpu")
    size = backbone.pixels.size
    views = torch.randn(1, 10, 3, size, size, generator=generator())
    adapt("SoC", backbone, NAMES, views)
    with torch.no_grad():
        for layer in backbone.module.text_model.encoder.layers:
            layer.self_attn.q_proj.weight.mul_(-1)
    changed = adapt("SoC", backbone, NAMES, views).logits
    backbone.module.save_pretrained(tmp_path)
    loaded = adapt("SoC", load_clip(f"hf:{tmp_path}", "cpu"), NAMES, views).logits
    assert torch.equal(loaded, changed)


@pytest.mark.parametrize("highest", [0, 3.5, 15])
def test_views_that_fit_pixels_and_normalised_numbers_are_refused(clip_model, highest):
    views = highest * torch.rand(10, 3, 32, 32, generator=generator())
    remedy = 'say which they are: pixels="0..255" or pixels="normalised"'
    with pytest.raises(ValueError, match=remedy):
        adapt("TPT", clip_model, NAMES, views)
    raw = adapt("TPT", clip_model, NAMES, views, pixels="0..255").logits
    beside_bright = adapt("TPT", clip_model, NAMES, torch.stack([views, views + 200])).logits
    torch.testing.assert_close(raw, beside_bright[:1], atol=1e-3, rtol=0)
    normal = Adapter("TPT", clip_model, NAMES, 10)(views, pixels="normalised").logits
    assert (normal - raw).abs().max() > 1e-3


def test_bright_normalised_views_are_taken_with_a_warning(clip_model, caplog):
    views = 1 + torch.rand(10, 3, 32, 32)
    logits = adapt("TPT", clip_model, NAMES, views).logits
    assert "are taken as normalised" in caplog.text
    assert torch.equal(logits, adapt("TPT", clip_model, NAMES, views, pixels="normalised").logits)


@pytest.mark.parametrize(("views", "meaning", "message"), [
    (normalised, "0..255", 'but pixels is "0..255"'),
    (300 * normalised.sigmoid(), "normalised", "but pixels is"),
    (normalised.byte(), "normalised", "uint8 are pixel values"),
    (normalised, "raw", 'must be "0..255", "normalised"'),
])
def test_pixels_that_contradict_the_views_are_refused(clip_model, views, meaning, message):
    with pytest.raises(ValueError, match=message):
        adapt("TPT", clip_model, NAMES, views, pixels=meaning)


@pytest.mark.parametrize("trainer", ["BCA", "DPE", "DOTA", "BoostAdapter", "TDA", "SoC"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_adapt_gives_the_numbers_of_a_run(trainer, precision, tmp_path):
    """With the position in the split as index. The small CLIP was trained with another scale than
    the published one, and methods with a published scale use the same in both. In half precision
    features are rounded in both."""
    opts = ["TTA.VIEWS", 16, "TEST.LIMIT", 4, "TTA.AUGMIX", "on", "MODEL.PREC", precision]
    cfg = build_cfg(trainer, "landcover", opts=["OUTPUT_DIR", tmp_path / "run", "DEVICE", "cpu", *opts])
    build_trainer(cfg).run()
    run = read_predictions(tmp_path / "run")
    rows = np.argsort(run.get("position", run["index"]))  # in the stream of an online method
    indices = run["index"][rows].tolist()
    data = build_dataset("LandCover", "")
    images = [data.read_image(data.test[index]) for index in indices]
    model = load_clip("small", "cpu")
    adapted = adapt(trainer, model, data.classnames, images, opts, index=indices)
    np.testing.assert_allclose(adapted.logits, run["logits"][rows], atol=1e-4)
    np.testing.assert_allclose(adapted.zero_shot_logits, run["zero_shot_logits"][rows], atol=1e-4)


def test_a_model_is_loaded_by_its_path_of_any_type(clip_file):
    assert load_clip(clip_file).visual is not None
    for name in (None, 5):
        with pytest.raises(TypeError, match="expected str, bytes or os.PathLike object, not"):
            load_clip(name)
