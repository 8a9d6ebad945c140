"""`adapt`: views, names, models and options of any kind work or give one clear error; torch's
global settings change no number."""
from concurrent.futures import ThreadPoolExecutor

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
normalised = torch.randn(2, 10, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def expected(clip_model) -> torch.Tensor:
    return adapt("SoC", clip_model, NAMES, normalised).logits


@pytest.fixture
def pictures(image_folder) -> list:
    return sorted(image_folder.rglob("*.png"))[:2]


@pytest.mark.parametrize("given", [
    normalised.numpy(), list(normalised), list(normalised.numpy()), normalised.double(), normalised.requires_grad_(),
], ids=["array", "list of tensors", "list of arrays", "double", "with gradient"])
def test_views_of_other_types(clip_model, expected, given):
    torch.testing.assert_close(adapt("SoC", clip_model, NAMES, given).logits, expected, rtol=0, atol=1e-4)


def test_pictures_get_the_views_of_a_run(clip_model, pictures):
    """Paths, text paths and PIL images of any mode, one or many. Image i of a call has the draws of
    index i."""
    opened = [Image.open(path) for path in pictures]
    views = torch.stack([make_views(image, i, count=10, size=32) for i, image in enumerate(opened)])
    expected = adapt("SoC", clip_model, NAMES, views).logits
    for given in (pictures, tuple(map(str, pictures)), opened):
        torch.testing.assert_close(adapt("SoC", clip_model, NAMES, given, VIEWS).logits, expected, rtol=0, atol=1e-4)
    alone = adapt("SoC", clip_model, NAMES, pictures[1], VIEWS, index=1).logits
    torch.testing.assert_close(alone, expected[1:], rtol=0, atol=1e-4)
    assert adapt("ZeroShot", clip_model, NAMES, opened[0].convert("L")).logits.shape == (1, 3)


def test_options_as_a_dict(clip_model):
    two = adapt("SoC", clip_model, NAMES, normalised, ["TTA.STEPS", 2])
    for opts in ({"TTA.STEPS": 2}, {"TTA": {"STEPS": 2}}, ("TTA.STEPS", "2")):
        assert torch.equal(adapt("SoC", clip_model, NAMES, normalised, opts).logits, two.logits)


@pytest.mark.parametrize(("names", "views", "opts", "error", "message"), [
    ("river", normalised, (), TypeError, "classnames must be a list of names in order, not "
                                         "'river'"),
    ([0, 1], normalised, (), TypeError, "classnames must be texts, not 0"),
    ([], normalised, (), TypeError, "classnames is empty"),
    ({"a", "b"}, normalised, (), TypeError, "in order"),
    (None, normalised, (), TypeError, "classnames must be a list of names in order, not None"),
    (NAMES, normalised, "TTA.STEPS 2", TypeError, "opts must be KEY VALUE pairs"),
    (NAMES, normalised, ["TTA.STEP", 2], ValueError, "unknown key 'TTA.STEP' in opts. Did you mean "
                                                     "'TTA.STEPS'"),
    (NAMES, normalised, ["TTA.STEPS", "x"], ValueError, "TTA.STEPS in opts must be of type int"),
    (NAMES, normalised[0, 0], (), ValueError, "not .3, 32, 32."),
    (NAMES, normalised[:0], (), ValueError, "views must be"),
    (NAMES, [[1.0]], (), TypeError, "views must be images, paths, or a tensor"),
    (NAMES, None, (), TypeError, "not a NoneType"),
    (NAMES, normalised.long(), (), TypeError, "not torch.int64"),
    (NAMES, normalised.bool(), (), TypeError, "not torch.bool"),
    (NAMES, normalised.detach().to(torch.complex64), (), TypeError, "not torch.complex64"),
    (NAMES, np.array(["x"]), (), TypeError, "not <U1"),
    (NAMES, torch.where(torch.arange(2).view(2, 1, 1, 1, 1) == 1, torch.nan, normalised), (), ValueError,
     "views of image 1 hold numbers that are not finite"),
    (NAMES, ["nowhere.png"], (), ValueError, "nowhere.png"),
    (NAMES, [normalised[0], "nowhere.png"], (), TypeError, "not both"),
    (NAMES, [normalised[0], normalised[0, :3]], (), ValueError, "must have one shape"),
    (NAMES, normalised.detach().sigmoid(), (), ValueError, "views lie in 0..1: multiply them by 255"),
    (NAMES, normalised.detach().sigmoid() * 4000, (), ValueError, "give pixel values from 0 to 255"),
    (NAMES, normalised.detach().sigmoid() - 100, (), ValueError, "give pixel values from 0 to 255"),
])
def test_what_cannot_work_is_one_clear_line(clip_model, names, views, opts, error, message):
    with pytest.raises(error, match=message) as raised:
        adapt("SoC", clip_model, names, views, opts)
    assert "\n" not in str(raised.value) and "the command" not in str(raised.value)


@pytest.mark.parametrize(("model", "message"), [
    ("ViT-B/16", r"use load_clip\('ViT-B/16'\)"), (None, "must come from load_clip"),
    (torch.nn.Linear(2, 2), "must come from load_clip, not be a Linear"),
])
def test_wrong_models(model, message):
    with pytest.raises((TypeError, ValueError), match=message):
        adapt("SoC", model, NAMES, normalised)


@pytest.mark.parametrize("change", [torch.nn.Module.half, torch.nn.Module.bfloat16, torch.nn.Module.double])
def test_models_of_another_precision(change):
    with pytest.raises(TypeError, match="give model.float()"):
        adapt("SoC", change(random_clip()), NAMES, normalised)


def test_a_model_loaded_in_inference_mode():
    with torch.inference_mode():
        model = random_clip()
    with pytest.raises(ValueError, match="load it outside"):
        adapt("SoC", model, NAMES, normalised)


@pytest.fixture(params=["float64", "bfloat16", "autocast", "inference", "no_grad", "threads"])
def around(request):
    """What a caller may have set."""
    dtype = torch.get_default_dtype()
    threads = torch.get_num_threads()
    try:
        if request.param == "autocast":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                yield
        elif request.param == "threads":
            torch.set_num_threads(3)
            yield
            assert torch.get_num_threads() == 3
        elif request.param in ("inference", "no_grad"):
            with {"inference": torch.inference_mode, "no_grad": torch.no_grad}[request.param]():
                yield
        else:
            torch.set_default_dtype(getattr(torch, request.param))
            yield
            assert torch.get_default_dtype() == getattr(torch, request.param)
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def plain(clip_model) -> dict[str, torch.Tensor]:
    """The logits with nothing around."""
    return {trainer: Adapter(trainer, clip_model, NAMES, 10)(normalised).logits for trainer in ("SoC", "ZeroShot")}


@pytest.mark.parametrize("trainer", ["SoC", "ZeroShot"])
def test_nothing_around_a_call_changes_a_number(clip_model, plain, around, trainer):
    views = normalised.detach().clone()  # of the caller's mode
    for found in (Adapter(trainer, clip_model, NAMES, 10)(views), adapt(trainer, clip_model, NAMES, views)):
        assert found.logits.dtype == torch.float32 and torch.equal(found.logits, plain[trainer])


@pytest.mark.parametrize(("names", "said"), [
    (["river"], "there is only one class, 'river'"), (["river", "lake", "river"], "'river' = 'river'"),
    (["tree_frog", "tree frog"], "'tree_frog' = 'tree frog'"),
])
def test_uninformative_classes_are_warned_about(clip_model, caplog, names, said):
    adapted = Adapter("SoC", clip_model, names, 10)(normalised)
    assert said in caplog.text and adapted.logits.isfinite().all()


@pytest.mark.parametrize("trainer", ["TDA", "OnZeta", "BCA", "DPE"])
def test_threads_do_not_share_the_state_of_an_online_method(clip_model, trainer):
    views = torch.randint(0, 256, (4, 16, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    expected = adapt(trainer, clip_model, NAMES, views).logits
    with ThreadPoolExecutor(3) as pool:
        for logits in pool.map(lambda _: adapt(trainer, clip_model, NAMES, views).logits, range(6)):
            assert torch.equal(logits, expected)


def test_black_images_are_pixel_values(clip_model):
    """Their numbers could be normalised ones; that they are pixels is known, or told by the other
    images."""
    black = Image.new("RGB", (32, 32))
    views = make_views(black, 0, 16, 32, augmix=False)
    opts = ["TTA.VIEWS", 16, "TTA.AUGMIX", "off"]
    expected = adapt("TPT", clip_model, NAMES, views, opts).logits
    assert torch.equal(adapt("TPT", clip_model, NAMES, black, opts).logits, expected)
    several = torch.stack([views, torch.full_like(views, 200)]).float()
    for episodes in (1, 2):
        adapted = adapt("TPT", clip_model, NAMES, several, [*opts, "TTA.EPISODES", episodes])
        torch.testing.assert_close(adapted.logits[:1], expected)


@pytest.mark.parametrize("change", [
    lambda pixels: pixels.double().numpy(), lambda pixels: pixels.bfloat16(), lambda pixels: pixels.half(),
    lambda pixels: np.flip(pixels.numpy()[..., ::-1].copy(), -1), lambda pixels: pixels.float().numpy().astype(">f4"),
], ids=["float64", "bfloat16", "float16", "backwards", "big-endian"])
def test_pixel_values_of_any_type(clip_model, change):
    pixels = torch.randint(0, 256, (16, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    expected = adapt("TPT", clip_model, NAMES, pixels).logits
    torch.testing.assert_close(adapt("TPT", clip_model, NAMES, change(pixels)).logits, expected)


def test_a_model_is_loaded_whatever_the_default_type():
    torch.set_default_dtype(torch.float64)
    try:
        model = load_clip("small", "cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("index", [[0], [0, -1], "01", 3, [0.5, 1]])
def test_an_index_per_image(clip_model, pictures, index):
    with pytest.raises((TypeError, ValueError), match="one whole number from 0 per image"):
        adapt("SoC", clip_model, NAMES, pictures, VIEWS, index=index)
    with pytest.raises(ValueError, match="given views need none"):
        adapt("SoC", clip_model, NAMES, normalised, index=index)


def test_numbers_equal_a_runs(clip_model, clip_file, image_folder, tmp_path):
    """With the position in the split as index."""
    opts = {"TTA.VIEWS": 10, "TTA.EPISODES": 1}
    build_trainer(build_cfg("SoC", "configs/datasets/image_folder.yaml", opts=[
        "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", tmp_path / "run",
        *(item for pair in opts.items() for item in pair)])).run()
    predictions = read_predictions(tmp_path / "run")
    names = ["kind a", "kind b", "kind c", "kind d"]
    for at in (0, 7):
        path = image_folder / predictions["filename"][at]
        found = adapt("SoC", clip_model, names, path, opts, index=at).logits[0]
        np.testing.assert_allclose(found.numpy(), predictions["logits"][at], atol=1e-4)


def test_changes_of_prompt_and_weights_count(tmp_path):
    """Whatever way they are made in; nothing is kept between calls."""
    model = random_clip(seed=3)
    path = tmp_path / "prompt.pt"
    found = []
    for scale in (1.0, 2.0):
        torch.save({"ctx": scale * torch.ones(4, 64)}, path)
        found.append(adapt("ZeroShot", model, NAMES, normalised, {"MODEL.INIT_WEIGHTS": path}).logits)
    model.token_embedding.weight.data.mul_(0.5)
    found.append(adapt("ZeroShot", model, NAMES, normalised, {"MODEL.INIT_WEIGHTS": path}).logits)
    assert not torch.allclose(found[0], found[1]) and not torch.allclose(found[1], found[2])


@pytest.mark.parametrize("trainer", ["TPT", "TPS", "ZERO", "MTA", "TDA", "OnZeta", "BCA", "DMN", "ZeroShot"])
def test_classes_of_one_name_get_equal_logits(clip_model, trainer):
    names = ["river", "sunglasses", "lake", "sunglasses", "sea", "tree_frog", "tree frog"]
    logits = adapt(trainer, clip_model, names, normalised, VIEWS).logits
    assert torch.equal(logits[:, 1], logits[:, 3]) and torch.equal(logits[:, 5], logits[:, 6])


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
    views = torch.randn(1, 10, 3, size, size, generator=torch.Generator().manual_seed(0))
    adapt("SoC", backbone, NAMES, views)
    with torch.no_grad():
        for layer in backbone.module.text_model.encoder.layers:
            layer.self_attn.q_proj.weight.mul_(-1)
    changed = adapt("SoC", backbone, NAMES, views).logits
    backbone.module.save_pretrained(tmp_path)
    assert torch.equal(adapt("SoC", load_clip(f"hf:{tmp_path}", "cpu"), NAMES, views).logits, changed)


@pytest.mark.parametrize("highest", [0, 3.5, 15])
def test_views_that_fit_pixels_and_normalised_numbers_are_refused(clip_model, highest):
    views = highest * torch.rand(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match='say which they are: pixels="0..255" or '
                                         'pixels="normalised"'):
        adapt("TPT", clip_model, NAMES, views)
    raw = adapt("TPT", clip_model, NAMES, views, pixels="0..255")
    same = adapt("TPT", clip_model, NAMES, torch.cat([views, torch.full_like(views, 200)]).view(
        2, 10, 3, 32, 32))
    torch.testing.assert_close(raw.logits, same.logits[:1], atol=1e-3, rtol=0)
    normal = Adapter("TPT", clip_model, NAMES, 10)(views, pixels="normalised")
    assert (normal.logits - raw.logits).abs().max() > 1e-3


def test_bright_normalised_views_are_taken_with_a_warning(clip_model, caplog):
    views = 1 + torch.rand(10, 3, 32, 32)
    said = adapt("TPT", clip_model, NAMES, views).logits
    assert "are taken as normalised" in caplog.text
    assert torch.equal(said, adapt("TPT", clip_model, NAMES, views, pixels="normalised").logits)


@pytest.mark.parametrize(("views", "pixels", "message"), [
    (normalised, "0..255", 'but pixels is "0..255"'), (300 * normalised.sigmoid(), "normalised", "but pixels is"),
    (normalised.byte(), "normalised", "uint8 are pixel values"), (normalised, "raw", 'must be "0..255", "normalised"'),
])
def test_pixels_that_contradict_the_views_are_refused(clip_model, views, pixels, message):
    with pytest.raises(ValueError, match=message):
        adapt("TPT", clip_model, NAMES, views, pixels=pixels)


@pytest.mark.parametrize("trainer", ["SoC", "DPE"])
def test_anomaly_detection_changes_nothing(clip_model, trainer):
    expected = adapt(trainer, clip_model, NAMES, normalised, ["TTA.STEPS", 2]).logits
    with torch.autograd.set_detect_anomaly(True):
        logits = adapt(trainer, clip_model, NAMES, normalised, ["TTA.STEPS", 2]).logits
        assert torch.is_anomaly_enabled()
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("trainer", ["BCA", "DPE", "DOTA", "BoostAdapter", "TDA", "SoC"])
def test_adapt_and_a_run_use_the_same_scale(trainer, tmp_path):
    """With the small CLIP, which was trained with another scale than the published one."""
    opts = ["TTA.VIEWS", 16, "TEST.LIMIT", 5, "TTA.AUGMIX", "on"]
    cfg = build_cfg(trainer, "configs/datasets/landcover.yaml",
                    opts=["OUTPUT_DIR", tmp_path / "run", "DEVICE", "cpu", *opts])
    build_trainer(cfg).run()
    run = read_predictions(tmp_path / "run")
    data = build_dataset("LandCover", "")
    order = run["index"].tolist()
    if "position" in run:
        order = [index for _, index in sorted(zip(run["position"].tolist(), order, strict=True))]
    images = [data.read_image(data.test[index]) for index in order]
    adapted = adapt(trainer, load_clip("small", "cpu"), data.classnames, images, opts, index=order)
    rows = [run["index"].tolist().index(index) for index in order]
    np.testing.assert_allclose(adapted.logits.numpy(), run["logits"][rows], atol=1e-4)
    np.testing.assert_allclose(adapted.zero_shot_logits.numpy(), run["zero_shot_logits"][rows], atol=1e-4)
