"""The benchmark runs, writes every figure, and compares with the reference; operation counts equal their formulas."""
from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import reference
import torch
from common import run_tool
from promptcal.tools import measuring
from promptcal.tools.benchmark_cases import Row, plain_text_side
from promptcal.tools.benchmark_inputs import NAME_TOKENS, class_names, random_clip
from promptcal.trainers.functional.flop_counts import REGULARISERS
from promptcal.trainers.functional.objectives import dispersion, orthogonality, pair_similarities
from promptcal.trainers.report.published import cells
from promptcal.trainers.vlm.openai import TOKENIZER
from promptcal.trainers.vlm.prompts import class_tokens
from torch.utils.flop_counter import FlopCounterMode

PAPER_WIDTH = 768  # the SoC paper counts operations for ViT-L/14


@pytest.mark.slow
def test_it_prints_a_table_and_writes_json(tmp_path: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measuring, "MIN_SECONDS", 1e-9)
    done = run_tool("benchmark.py", "--quick", "--backbone", "tiny", "--classes", 5, "--photos", image_folder,
                    "--json", tmp_path / "b.json")
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "b.json").read_text())
    assert {"processor", "cores", "load", "versions"} <= set(content["machine"])
    assert len(content["rows"]) == 11
    for row in content["rows"]:
        assert row["what"] in done.stdout and row["ours"] > 0 and row["reference"] > 0 and row["ratio"] > 0
        assert (row["reached"] is None) == (row["goal"] is None)


@pytest.mark.parametrize(("args", "message"), [
    (["--classes", "2"], "--classes must be 3 or more"),
    (["--photos", "{empty}"], "has no images: give a folder with photographs"),
    (["--backbone", "ViT-Z"], "invalid choice: 'ViT-Z'"),
])
def test_wrong_arguments_get_one_line(args: list[str], message: str, tmp_path: Path):
    done = run_tool("benchmark.py", *[arg.format(empty=tmp_path) for arg in args])
    assert done.returncode == 2 and message in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("row", "ratio", "reached"), [
    (Row("", "s", 2.0, 80.0, 35, ""), 40, True),
    (Row("", "views/s", 900, 100, 10, ""), 9, False),
    (Row("", "s", 1.2, 1.0, 1.15, "", cost=True), 1.2, False),
    (Row("", "s", 1.0, 2.0, None, ""), 2, None),
])
def test_a_goal_is_compared_from_its_side(row: Row, ratio: float, reached: bool | None):
    assert (row.ratio, row.reached) == (ratio, reached)


def test_tasks_take_turns_and_waiting_is_free(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measuring, "MIN_SECONDS", 1e-9)
    order = []
    seconds = measuring.interleaved({
        "wait": lambda: (order.append("wait"), time.sleep(0.2)),
        "work": lambda: (order.append("work"), sum(range(3_000_000))),
    }, rounds=2)
    assert order == ["wait", "work"] * 2 and seconds["wait"] < 0.02 < seconds["work"]


def test_names_are_as_long_as_imagenets():
    tokens = class_tokens(class_names(1000), TOKENIZER)
    assert [sum(len(own) == n + 2 for own in tokens) for n in range(1, 12)] == list(NAME_TOKENS)
    assert len(set(class_names(100))) == 100


def test_the_reference_on_encoded_images_is_the_reference():
    model, names, pixels = random_clip("tiny"), class_names(4), torch.randn(20, 3, 32, 32)
    features = torch.nn.functional.normalize(model.encode_image(pixels), dim=-1)
    whole = reference.run_episode(model, names, pixels, "SoC", 30.0)
    torch.testing.assert_close(plain_text_side(model, names, features)().logits, whole.logits)


@pytest.mark.parametrize("case", REGULARISERS)
def test_operations_of_regularisers_are_those_counted(case: str):
    function = {"O-TPT, cubic": reference.cubic_orthogonality, "O-TPT, closed form": orthogonality,
                "SoC": pair_similarities, "C-TPT": dispersion}[case]
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        function(torch.empty(100, PAPER_WIDTH))
    assert counter.get_total_flops() == REGULARISERS[case].products(100, PAPER_WIDTH)


def test_published_operations():
    """SoC's are the product T Tᵀ alone, at the width of ViT-L/14; O-TPT's have 5K³ + K² beside it."""
    for cell in cells("complexity"):
        k = int(cell.column)
        counted = 2 * k**2 * PAPER_WIDTH + (5 * k**3 + k**2 if cell.method == "O-TPT" else 0)
        assert counted / 1e6 == pytest.approx(float(cell.value), abs=0.051)
