"""The image tower's shortcuts against OpenAI's own encoder."""
from __future__ import annotations

import pytest
import torch
from common import random_clip
from promptcal.datasets.utils.errors import UserError
from promptcal.tools.benchmark_inputs import random_clip as clip_of_shape
from promptcal.trainers.vlm.image_tower import encode_views, views_at_once
from promptcal.trainers.vlm.openai import OpenAIBackbone


@pytest.mark.parametrize("resnet", [False, True], ids=["vit", "resnet"])
def test_features_equal_openais(resnet: bool):
    model = random_clip(resnet=resnet)
    pixels = torch.randn(7, 3, 32, 32)
    expected = model.encode_image(pixels)
    torch.testing.assert_close(OpenAIBackbone(model).encode_pixels(pixels), expected, atol=2e-6, rtol=1e-5)
    views = encode_views(OpenAIBackbone(model), pixels[None])
    torch.testing.assert_close(views[0], torch.nn.functional.normalize(expected, dim=-1), atol=2e-6, rtol=1e-5)


def test_half_precision_stays_close(clip_model):
    views = torch.randn(1, 4, 3, 32, 32)
    rounded = encode_views(OpenAIBackbone(clip_model), views, "bf16")
    assert rounded.dtype == torch.float32
    assert (encode_views(OpenAIBackbone(clip_model), views) * rounded).sum(-1).min() > 0.999


def test_an_image_is_encoded_alike_wherever_it_stands(clip_model, monkeypatch):
    monkeypatch.setattr("promptcal.trainers.vlm.image_tower.CPU_NUMBERS_AT_ONCE", 4 * 4 * 5 * 64)
    assert views_at_once(OpenAIBackbone(clip_model)) == 4  # 5 tokens of width 64
    views = torch.randn(3, 8, 3, 32, 32)
    backbone = OpenAIBackbone(clip_model)
    assert torch.equal(encode_views(backbone, views)[2], encode_views(backbone, views[2:])[0])


def test_views_at_once_follow_the_size_of_the_model(monkeypatch):
    assert views_at_once(OpenAIBackbone(clip_of_shape("tiny"))) == 256
    assert views_at_once(OpenAIBackbone(random_clip(resnet=True))) == 256
    monkeypatch.setattr("promptcal.trainers.vlm.image_tower.CPU_NUMBERS_AT_ONCE", 1)
    assert views_at_once(OpenAIBackbone(clip_of_shape("tiny"))) == 1


def test_out_of_memory_halves_the_views_for_good(monkeypatch, caplog):
    model, views, sizes = random_clip(), torch.randn(2, 5, 3, 32, 32), []
    expected = encode_views(OpenAIBackbone(model), views)

    real = OpenAIBackbone.encode_pixels

    def tight(backbone, pixels):
        sizes.append(len(pixels))
        if len(pixels) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(backbone, pixels)

    monkeypatch.setattr(OpenAIBackbone, "encode_pixels", tight)
    torch.testing.assert_close(encode_views(OpenAIBackbone(model), views), expected, atol=1e-5, rtol=0)
    assert sizes[-3:] == [4, 4, 2] and "out of memory: 4 views at once from here on" in caplog.text
    sizes.clear()
    encode_views(OpenAIBackbone(model), views)
    assert sizes == [4, 4, 2]

    def hopeless(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(OpenAIBackbone, "encode_pixels", hopeless)
    with pytest.raises(UserError, match="one view at a time: use DEVICE cpu"):
        encode_views(OpenAIBackbone(model), views)
