"""The benchmark runs, writes every figure, and compares with the reference; operation counts equal
their formulas."""
import json

import pytest
import torch
from promptcal.tools import far_device, measuring
from promptcal.tools.measuring import class_names, random_clip
from promptcal.trainers import reference
from promptcal.trainers.experiments.studies import CLOSED_FORM, REGULARISERS
from promptcal.trainers.functional.objectives import orthogonality, pair_similarities
from torch.utils.flop_counter import FlopCounterMode

from common import run_tool
from reference_family import cubic_orthogonality

PAPER_WIDTH = 768  # the SoC paper counts operations for ViT-L/14
FUNCTIONS = {("OTPT", ""): cubic_orthogonality, ("OTPT", CLOSED_FORM): orthogonality, ("SoC", ""): pair_similarities}


@pytest.mark.slow
def test_it_prints_a_table_and_writes_json(tmp_path, image_folder, monkeypatch):
    monkeypatch.setattr(measuring, "MIN_SECONDS", 1e-9)
    done = run_tool("benchmark.py", "--quick", "--backbone", "tiny", "--classes", 5, "--photos", image_folder,
                    "--json", tmp_path / "b.json")
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "b.json").read_text())
    assert {"processor", "cores", "load", "versions"} <= set(content["machine"])
    assert len(content["rows"]) == 11
    for row in content["rows"]:
        assert row["what"] in done.stdout
        assert row["ours"] > 0 and row["reference"] > 0 and row["ratio"] > 0
        assert (row["reached"] is None) == (row["goal"] is None)
    if far_device.available():
        for row in content["launches"]:
            design = f"{row['classes']} classes, {row['episodes']} images at once"
            assert design in done.stdout
        # A GPU would be told no more than the goal allows.
        default, few, with_jacobian = content["launches"]
        assert (default["classes"], default["episodes"], few["episodes"]) == (100, 32, 8)
        assert default["reached"]
        assert with_jacobian["per_image"] < default["per_image"] < few["per_image"] < 350


def test_the_reference_on_encoded_images_is_the_reference():
    model = random_clip("tiny")
    names = class_names(4)
    pixels = torch.randn(20, 3, 32, 32)
    features = torch.nn.functional.normalize(model.encode_image(pixels), dim=-1)
    expected = reference.run_episode(model, names, pixels, "SoC")
    with torch.no_grad():  # as in the benchmark
        text_side = reference.tune_prompt(model, names, features, "SoC")
    torch.testing.assert_close(text_side.logits, expected.logits)


@pytest.mark.parametrize("case", REGULARISERS)
def test_operations_of_regularisers_are_those_counted(case):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        FUNCTIONS[case](torch.empty(100, PAPER_WIDTH))
    assert counter.get_total_flops() == REGULARISERS[case].products(100, PAPER_WIDTH)
