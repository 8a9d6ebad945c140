"""The image tower's shortcuts against OpenAI's own encoder."""
from __future__ import annotations

import pytest
import torch
from promptcal.datasets.utils.errors import UserError
from promptcal.trainers.vlm.budget import Budget, views_within_memory
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.loading import OpenAIBackbone
from promptcal.trainers.vlm.numerics import fixed_numerics

from common import random_clip


@pytest.mark.parametrize("resnet", [False, True], ids=["vit", "resnet"])
def test_features_equal_openais(resnet):
    model = random_clip(resnet=resnet)
    pixels = torch.randn(7, 3, 32, 32)
    expected = torch.nn.functional.normalize(model.encode_image(pixels), dim=-1)
    views = encode_views(OpenAIBackbone(model), pixels[None])
    torch.testing.assert_close(views[0], expected, atol=2e-6, rtol=1e-5)
    rounded = encode_views(OpenAIBackbone(model), pixels[None], "bf16")
    assert rounded.dtype == torch.float32 and (views * rounded).sum(-1).min() > 0.999


def test_an_image_is_encoded_alike_at_any_place_in_a_batch_on_any_number_of_cores(clip_model, monkeypatch):
    backbone = OpenAIBackbone(clip_model)
    assert views_within_memory(backbone) == 256
    monkeypatch.setattr("promptcal.trainers.vlm.budget.CPU_NUMBERS_AT_ONCE", 4 * 4 * 5 * 64)
    assert views_within_memory(backbone) == 4  # 5 tokens of width 64
    views = torch.randn(3, 8, 3, 32, 32)
    expected = encode_views(backbone, views)
    assert torch.equal(expected[2], encode_views(backbone, views[2:])[0])
    torch.set_num_threads(3)  # pieces of four views, each on one core
    with fixed_numerics():
        assert torch.equal(encode_views(backbone, views), expected)


def test_out_of_memory_halves_the_views_for_good(monkeypatch, caplog):
    backbone = OpenAIBackbone(random_clip())
    views = torch.randn(2, 5, 3, 32, 32)
    expected = encode_views(backbone, views)
    limit = 4
    sizes = []
    encode_pixels = OpenAIBackbone.encode_pixels

    def limited(backbone, pixels):
        sizes.append(len(pixels))
        if len(pixels) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return encode_pixels(backbone, pixels)

    monkeypatch.setattr(OpenAIBackbone, "encode_pixels", limited)
    budget = Budget(episodes=1, classes=1, views=256)
    shrunk = encode_views(backbone, views, budget=budget)
    torch.testing.assert_close(shrunk, expected, atol=1e-5, rtol=0)
    assert sizes[-3:] == [4, 4, 2] and "out of memory: 4 views at once from here on" in caplog.text
    sizes.clear()
    encode_views(backbone, views, budget=budget)
    assert sizes == [4, 4, 2]
    limit = 0
    with pytest.raises(UserError, match="one view at a time: use DEVICE cpu"):
        encode_views(backbone, views, budget=budget)
