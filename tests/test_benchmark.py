"""The benchmark: that it runs and writes what it promises, and that its counts are the ones worked out by hand."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
import reference
import torch
from common import run_tool
from PIL import Image
from promptcal.datasets.utils.errors import ConfigError
from promptcal.tools import benchmark
from promptcal.tools.speed import (
    baseline,
    chart,
    flops,
    goals,
    limits,
    memory_cases,
    profiling,
    result_tables,
    scale_cases,
    suite,
    text_cases,
)
from promptcal.tools.speed.records import BaselineComparison
from promptcal.tools.speed.shapes import NAME_TOKENS, SHAPES, class_names, random_clip
from promptcal.trainers.functional.flop_counts import REGULARISERS
from promptcal.trainers.report.figures.style import new_figure, styled
from promptcal.trainers.report.published import cells
from promptcal.trainers.vlm.openai import TOKENIZER
from promptcal.trainers.vlm.prompts import class_tokens

TINY = suite.Suite(
    backbones=("tiny",), classes=(3, 6), memory_classes=(3,), regulariser_classes=(5, 9), scale_classes=(5, 9),
    scale_text_up_to=5, episode_classes=3, growth_classes=3, views=(16, 20), episodes=(1, 3), batch=2, images=1,
    rounds=1, short_rounds=1,
)


@pytest.fixture(scope="module", autouse=True)
def without_repeats() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiling, "AT_LEAST", 1e-12)
        yield


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One run of everything, without the processes that memory is measured in, which have a test of their own."""
    folder = tmp_path_factory.mktemp("benchmark")
    with pytest.MonkeyPatch.context() as patch:
        for module in (memory_cases, scale_cases):
            patch.setattr(module, "in_fresh_process", lambda job, *args: job(*args))
        return folder, suite.run(TINY, folder)


@pytest.mark.slow
def test_it_writes_table_json_and_chart(found: tuple[Path, str]):
    folder, text = found
    assert (folder / "benchmark.txt").read_text(encoding="utf-8") == text + "\n"
    for title, beside in result_tables.HEADERS.values():
        assert title in text and beside in text
    version = torch.__version__.partition("+")[0]
    for word in ("load when begun", "threads: 1", f"torch {version}", "published", "6537.0"):
        assert word in text
    for name in ("benchmark.png", "scale.png"):
        with Image.open(folder / name) as drawn:
            assert drawn.width == 1400 and drawn.convert("L").getextrema()[0] < 100


def test_axes_speak_plainly():
    """The report's style shows mathematical notation as it is written, dollars and all."""
    with styled():
        axes = new_figure(3, 3).subplots()
        axes.plot([10, 21_000], [1e-3, 1e4])
        chart.logarithmic(axes, [10, 21_000], legend=False)
        assert [label.get_text() for label in axes.get_xticklabels()] == ["10", "21k"]
        shown = [label.get_text() for label in axes.get_yticklabels()]
    assert {"0.01", "100"} <= set(shown) and not any("$" in text for text in shown)


@pytest.mark.slow
def test_the_json_holds_every_case(found: tuple[Path, str]):
    content = json.loads((found[0] / "benchmark.json").read_text(encoding="utf-8"))
    assert {"processor", "cores", "threads", "versions", "load", "load_at_end"} <= set(content["machine"])
    assert content["settings"]["backbones"] == ["tiny"]
    rows = content["comparisons"]
    text = [(row["classes"], row["case"]) for row in rows if row["part"] == "text side"]
    assert text == [(k, case) for k in (3, 6) for case in ("one at a time", "2 at once", "2 at once, Jacobian")]
    assert {row["part"] for row in rows} == set(result_tables.HEADERS)
    assert all(row["ours"] > 0 and row["plain"] > 0 and not row["extrapolated"] for row in rows)
    assert all(row["gain"] == pytest.approx(row["ours"] / row["plain"]) for row in rows if row["unit"] == "views/s")
    rows = {row["part"]: row for row in content["limits"]}
    assert {"image tower, 64 views", "text side, one at a time", "text side, 2 at once, Jacobian", "regulariser, SoC",
            "selection, of 64 views", "views, crops, flips and AugMix"} <= set(rows)
    for row in rows.values():
        assert row["why"] or row["share"] >= limits.ENOUGH
        assert row["share"] == 0 or row["model_seconds"]["A100"] > row["model_seconds"]["H100"]
    assert [goal["goal"] for goal in content["goals"]] == [1.05, 80, 80, 4, 5]
    scale = {(row["case"], row["classes"]) for row in content["scale"]}
    assert {(case, k) for case in ("A-TPT", "C-TPT", "O-TPT", "SoC", "of 64 views") for k in (5, 9)} == {
        point for point in scale if point != ("an episode of SoC", 5)}
    assert ("an episode of SoC", 5) in scale and all(row["seconds"] > 0 for row in content["scale"])
    assert {(row["of"], row["value"]) for row in content["growth"]} == {
        ("classes", 3), ("classes", 6), ("views", 16), ("views", 20), ("episodes at once", 1), ("episodes at once", 3)}


def test_the_command(tmp_path: Path):
    done = run_tool("benchmark.py", "--quick", "--backbones", "nonesuch", "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().startswith("error: no shape called 'nonesuch': use one of ViT-B/16")
    assert not list(tmp_path.iterdir())


def test_settings_that_cannot_work(tmp_path: Path):
    with pytest.raises(ConfigError, match="has no pictures"):
        benchmark.main(["--photos", str(tmp_path)])
    with pytest.raises(ConfigError, match="3 or more"):
        suite.run(suite.Suite(classes=(2, 10)), tmp_path)


def test_how_much_is_measured(tmp_path: Path):
    assert benchmark.parse(["--quick", "--rounds", "2"])[0].rounds == 2
    only, folder = benchmark.parse(["--scale", "--classes", "4", "5", "--out", str(tmp_path)])
    assert (only.backbones, only.scale_classes, folder) == ((), [4, 5], tmp_path)
    assert benchmark.parse([])[0].scale_classes[-1] == 21_000


def test_what_does_not_fit_is_extrapolated_and_says_so(monkeypatch: pytest.MonkeyPatch):
    model = random_clip("tiny")
    limit = baseline.text_need(model, 5)
    monkeypatch.setattr(text_cases, "fits", lambda need: need < limit)
    rows = text_cases.text_side(model, "tiny", [3, 4, 8], episodes=1, rounds=1)
    by_classes = {row.classes: row for row in rows}
    assert [by_classes[k].extrapolated for k in (3, 4, 8)] == [False, False, True]
    assert by_classes[8].plain == pytest.approx(2 * by_classes[4].plain)
    table = result_tables.comparison_table("", rows)
    assert f"~{result_tables.number(by_classes[8].plain)}" in table and result_tables.EXTRAPOLATED in table


def test_where_nothing_fits_there_is_no_gain(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text_cases, "fits", lambda need: False)
    rows = text_cases.text_side(random_clip("tiny"), "tiny", [2], episodes=1, rounds=1)
    assert all(row.plain is None and row.gain is None and not row.extrapolated for row in rows)
    assert "did not fit" in result_tables.comparison_table("", rows)


def test_cubic_growth_is_extrapolated_as_a_cube(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text_cases, "fits", lambda need: need < 4 * baseline.CUBES * 6**3)
    small, _, large, _ = text_cases.regularisers([5, 10], width=8, rounds=1)
    assert large.extrapolated and large.plain == pytest.approx(8 * small.plain)


def test_tasks_take_turns():
    order = []
    tasks = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    seconds = profiling.interleaved(tasks, rounds=3)
    assert order == ["a", "b"] * 3 and all(value >= 0 for value in seconds.values())


def test_time_is_the_processors():
    """Waiting costs nothing; workers count once they have ended."""
    started = profiling.processor_seconds()
    time.sleep(0.2)
    assert profiling.processor_seconds() - started < 0.1
    subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)
    assert profiling.processor_seconds() - started > 0.1


def held(megabytes: int) -> list[int | None]:
    """What is measured while so much is held, then little, then half."""
    return [profiling.extra_memory(lambda size=size: torch.ones(size * 250_000))
            for size in (megabytes, 1, megabytes // 2)]


@pytest.mark.slow
def test_peak_memory_is_that_of_the_job():
    found = profiling.in_fresh_process(held, 400)
    if None in found:
        pytest.skip("this system does not tell a process's peak memory")
    assert found == pytest.approx([4e8, 1e6, 2e8], abs=3e7)


@pytest.mark.slow
def test_a_process_that_the_system_ended_has_no_figure():
    assert profiling.in_fresh_process(os._exit, 9) is None


def test_names_are_as_long_as_imagenets():
    tokens = class_tokens(class_names(1000), TOKENIZER)
    assert [sum(len(own) == n + 2 for own in tokens) for n in range(1, 12)] == list(NAME_TOKENS)
    assert len(set(class_names(100))) == 100


def test_the_reference_with_given_features_is_the_reference():
    model, names = random_clip("tiny"), class_names(4)
    pixels = torch.randn(20, 3, 32, 32)
    features = model.encode_image(pixels)
    features = features / features.norm(dim=-1, keepdim=True)
    whole = reference.run_episode(model, names, pixels, "SoC", 30.0)
    torch.testing.assert_close(baseline.plain_text_side(model, names, features)().logits, whole.logits)


def test_text_tower_operations_by_hand():
    shape, classes = SHAPES["tiny"], 5
    width, layers, model = shape.transformer_width, shape.transformer_layers, random_clip("tiny", "meta")

    def linear(tokens: int) -> int:  # queries, keys, values, output: 4 width²; MLP: 8 width²
        return 2 * 12 * width**2 * tokens

    def attending(queries: int, keys: int) -> int:  # scores and weighted sum
        return 4 * width * queries * keys

    projection = 2 * classes * width * shape.embed_dim
    there, back = flops.plain_text(model, classes)
    assert there == layers * (linear(77 * classes) + classes * attending(77, 77)) + projection
    # Back, each product costs the same again, and an attention's two products have two factors each.
    assert back == layers * (linear(77 * classes) + 2 * classes * attending(77, 77)) + projection

    lengths = [len(own) for own in class_tokens(class_names(classes), TOKENIZER)]
    own, shared = sum(lengths), 5
    inner = linear(own + shared) + attending(shared, shared) + sum(attending(n, n + shared) for n in lengths)
    last = 6 * width**2 * (own + shared) + 18 * width**2 * classes + sum(attending(1, n + shared) for n in lengths)
    assert flops.our_text(model, classes)[0] == (layers - 1) * inner + last + projection


def test_image_tower_operations_by_hand():
    shape = SHAPES["tiny"]
    width, patches, views = shape.vision_width, (32 // 16) ** 2, text_cases.VIEWS
    tokens = patches + 1
    layer = 24 * width**2 * tokens + 4 * width * tokens**2
    by_hand = views * (2 * patches * 3 * 16**2 * width + shape.vision_layers * layer + 2 * width * shape.embed_dim)
    assert flops.tower_flops("tiny", [])[0].products == by_hand


@pytest.mark.parametrize("k", [10, 100, 1000])
def test_regulariser_operations_by_hand(k: int):
    d = flops.PAPER_WIDTH
    rows = {row.case: row for row in flops.regulariser_flops([k])}
    assert {case: row.products for case, row in rows.items()} == {
        "O-TPT, cubic": 2 * k**2 * d + 2 * k**3, "O-TPT, closed form": 2 * k**2 * d, "SoC": 2 * k**2 * d, "C-TPT": 0}
    assert {case: row.products for case, row in rows.items()} == {
        case: operations.products(k, d) for case, operations in REGULARISERS.items()}
    assert rows["SoC"].elementwise == 9 * k * (k - 1) / 2


def test_what_the_published_operations_count():
    """SoC's are the product T Tᵀ alone, at the width of ViT-L/14; O-TPT's have 5K³ + K² beside it."""
    for cell in cells("complexity"):
        k = int(cell.column)
        counted = 2 * k**2 * flops.PAPER_WIDTH + (5 * k**3 + k**2 if cell.method == "O-TPT" else 0)
        assert abs(Decimal(counted) / 10**6 - cell.value) <= Decimal("0.05")
    printed = {row.case: row.published for row in flops.regulariser_flops([1000])}
    assert printed == {"O-TPT, cubic": "6537.0", "O-TPT, closed form": None, "SoC": "1536.0", "C-TPT": None}


def test_a_goal_is_reached_from_its_own_side():
    rows = [
        BaselineComparison("tower", goals.TOWER, "tiny", 3, "s", 1.04, 1.0),
        BaselineComparison("episode", goals.WARM, "tiny", 3, "s", 1.0, 79.0),
        BaselineComparison("views", goals.WITH_AUGMIX, "", 0, "views/s", 500, 100),
    ]
    assert [(round(goal.found, 2), goal.reached) for goal in goals.goals(rows, "tiny")] == [
        (1.04, True), (79, False), (5, True)]


def test_gain_of_views_is_theirs_the_other_way_round():
    assert BaselineComparison("views", "", "", 0, "views/s", 300, 100).gain == 3
    assert BaselineComparison("memory", "", "", 10, "MB", 100, 300).gain == 3
