"""Tuned and learnt contexts read as the nearest words of the vocabulary."""
from dataclasses import replace

import pytest
import torch
from promptcal.datasets.utils.errors import WeightsError
from promptcal.trainers.vlm.backbone import initial_context
from promptcal.trainers.vlm.openai import OpenAIBackbone
from promptcal.trainers.vlm.prompt_words import CAVEAT, nearest_words
from safetensors.torch import save_file

from common import run_tool


def test_the_words_of_a_context_are_its_own(clip_model):
    backbone = OpenAIBackbone(clip_model)
    context = initial_context(backbone, "a photo of")
    for near, word in zip(nearest_words(2 * context, backbone), ["a", "photo", "of"], strict=True):
        assert near.by_cosine[0] == (word, pytest.approx(1, abs=1e-5)) and len(near.by_cosine) == 3
    for near, word in zip(nearest_words(context, backbone), ["a", "photo", "of"], strict=True):
        assert near.by_distance[0] == (word, pytest.approx(0, abs=1e-2))
        assert [value for _, value in near.by_distance] == sorted(value for _, value in near.by_distance)
    start = clip_model.token_embedding.weight[list(backbone.tokenizer.start)]
    assert "<|" not in nearest_words(start, backbone)[0].by_cosine[0][0]  # no control token


def test_what_cannot_be_read(clip_model):
    backbone = OpenAIBackbone(clip_model)
    with pytest.raises(WeightsError, match="this backbone's tokens have 64 numbers"):
        nearest_words(torch.zeros(2, 32), backbone)
    backbone.tokenizer = replace(backbone.tokenizer, decode=None)
    with pytest.raises(WeightsError, match="no table of token embeddings"):
        nearest_words(torch.zeros(2, 64), backbone)


def test_a_prompt_file_as_words(tmp_path):
    done = run_tool("convert_prompt.py", "small-coop-4shot", "--words")
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()[2:6]
    assert [row.split()[1] for row in rows] == ["a", "photo", "of", "a"] and CAVEAT in done.stdout
    done = run_tool("convert_prompt.py", "small-coop-4shot", "--words", tmp_path / "copy.safetensors")
    assert done.returncode == 0 and (tmp_path / "copy.safetensors").is_file()
    file = tmp_path / "prompt.safetensors"
    save_file({"ctx": torch.randn(2, 3, 32)}, file)
    done = run_tool("convert_prompt.py", file, "--words")
    assert done.returncode == 2 and "give --backbone" in done.stderr
    done = run_tool("convert_prompt.py", file, "--words", "--backbone", "small")
    assert done.returncode == 2 and "shape (6, 32)" in done.stderr
    assert run_tool("convert_prompt.py", file).returncode == 2


def test_the_page_shows_the_words_of_methods_that_tune_the_context(clip_file, image_folder, tmp_path):
    page = tmp_path / "page.html"
    image = next(image_folder.rglob("*.png"))
    done = run_tool("predict.py", image, "--classes", "cat", "dog", "--trainer", "SoC", "ZERO", "--backbone", clip_file,
                    "--views", 16, "--html", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.count("tokens nearest to each context vector") == 1 and "SoC: tokens nearest" in text
    assert CAVEAT in text and ">photo 1.00, " in text
