"""Tuned and learnt contexts read as the nearest words of the vocabulary."""
import re
from dataclasses import replace

import pytest
import torch
from promptcal.datasets.utils.errors import WeightsError
from promptcal.trainers.vlm.backbone import initial_context
from promptcal.trainers.vlm.loading import OpenAIBackbone
from promptcal.trainers.vlm.prompt_words import CAVEAT, nearest_words
from safetensors.torch import save_file

from common import run_tool


def test_the_words_of_a_context_are_its_own(clip_model):
    backbone = OpenAIBackbone(clip_model)
    context = initial_context(backbone, "a photo of")
    doubled = nearest_words(2 * context, backbone)
    nearest = nearest_words(context, backbone)
    for position, word in enumerate(["a", "photo", "of"]):
        assert doubled[position].by_cosine[0] == (word, pytest.approx(1, abs=1e-5))
        assert len(doubled[position].by_cosine) == 3
        by_distance = nearest[position].by_distance
        assert by_distance[0] == (word, pytest.approx(0, abs=1e-2))
        assert by_distance == sorted(by_distance, key=lambda pair: pair[1])
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
    words = re.findall(r"^ *\d+ +(\S+)", done.stdout, re.MULTILINE)
    assert words == ["a", "photo", "of", "a"] and CAVEAT in done.stdout
    copy = tmp_path / "copy.safetensors"
    done = run_tool("convert_prompt.py", "small-coop-4shot", "--words", copy)
    assert done.returncode == 0 and copy.is_file()
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
    done = run_tool(
        "predict.py", image, "--classes", "cat", "dog", "--trainer", "SoC", "ZERO",
        "--backbone", clip_file, "--views", 16, "--html", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.count("tokens nearest to each context vector") == 1
    assert "SoC: tokens nearest" in text
    assert CAVEAT in text and ">photo 1.00, " in text
