"""Learnt prompts by name: what files and folders say of them, and the folders of runs from them."""
import json
import logging
from pathlib import Path

import pytest
import torch
from promptcal.datasets.utils.errors import ConfigError, WeightsError
from promptcal.tools import train
from promptcal.trainers.config.settings import short_hash
from promptcal.trainers.vlm.loading import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.prompt_files import load_context, read_metadata
from promptcal.trainers.vlm.prompt_protocol import prompt_protocol, protocol_of_path
from promptcal.trainers.vlm.prompts import class_tokens
from safetensors.torch import save_file

from common import run_tool
from dassl_files import random_prompt, save_as_dassl
from folders import names

NAMES = ["kind_a", "kind_b", "kind_c", "kind_d"]
TOKENS = class_tokens(NAMES, TOKENIZER)
FEW_VIEWS = ["TTA.VIEWS", "8", "TTA.SELECT", "0.25", "DATALOADER.NUM_WORKERS", "0"]


def coop_folder(root: Path, shots: int) -> Path:
    """The folder that CoOp's main.sh writes its runs to, one per seed."""
    return root / "CoOp" / f"vit_b16_ep50_{shots}shots" / "nctx16_cscFalse_ctpend"


@pytest.fixture
def soc(clip_file, image_folder, tmp_path, monkeypatch):
    """Runs SoC on the image folder; the run's folder has its default name below tmp_path."""
    monkeypatch.chdir(tmp_path)
    data = ["--dataset-config-file", "image_folder", "--root", image_folder]

    def run(*args: object) -> None:
        words = ["--trainer", "SoC", *data, "--backbone", clip_file, *args, *FEW_VIEWS]
        train.main(list(map(str, words)))

    return run


def records_below(folder: Path) -> list[dict]:
    paths = sorted(folder.glob("output/*/SoC/*/*/seed*/record.json"))
    return [json.loads(path.read_text()) for path in paths]


def test_seeds_of_coops_layout_lie_under_one_tag(soc, tmp_path, clip_model, capsys):
    for shots in (2, 4):
        for seed in (1, 2):
            context = random_prompt(16) + shots + seed / 8
            save_as_dassl(coop_folder(tmp_path, shots) / f"seed{seed}", clip_model, NAMES, context)
        soc("--model-dir", coop_folder(tmp_path, shots), "--seed", 1, 2)
    two_shots, four_shots = sorted(tmp_path.glob("output/*/SoC/tiny/*"))
    assert two_shots.name.startswith("CoOp-2-shots-")
    assert four_shots.name.startswith("CoOp-4-shots-")
    assert names(two_shots) == names(four_shots) == ["seed1", "seed2"]
    prompts = []
    for record in records_below(tmp_path):
        prompts.append((record["names"]["prompt"], record["model"]["prompt"]["protocol"]))
    protocol = "CoOp/vit_b16_ep50_{}shots/nctx16_cscFalse_ctpend/seed*"
    two = ("CoOp 2 shots", protocol.format(2))
    four = ("CoOp 4 shots", protocol.format(4))
    assert prompts == [two, two, four, four]
    out = capsys.readouterr().out
    assert "CoOp, 2 shots, untuned" in out
    caption = out.splitlines()[-1]
    assert "12 test images of 4 classes" in caption
    assert "over seeds 1, 2; percent; 20 bins" in caption


def test_another_prompt_of_the_protocol_and_seed_is_refused_by_name(soc, tmp_path, clip_model):
    folder = coop_folder(tmp_path, 2) / "seed1"
    save_as_dassl(folder, clip_model, NAMES, random_prompt(16))
    soc("--model-dir", folder, "--seed", 1)
    save_as_dassl(folder, clip_model, NAMES, -random_prompt(16))
    with pytest.raises(ConfigError, match=r"content of the prompt was .* Use TAG .*--overwrite"):
        soc("--model-dir", folder, "--seed", 1)
    soc("--model-dir", folder, "--seed", 1, "TAG", "second")
    assert len(records_below(tmp_path)) == 2


COOP = "CoOp/vit_b16_ep50_2shots/nctx16_cscFalse_ctpend"


@pytest.mark.parametrize(("path", "text", "label"), [
    (f"data/me/ucf101/{COOP}/seed1/prompt_learner/model.pth.tar-50", f"{COOP}/seed*", "CoOp 2 shots"),
    (f"elsewhere/{COOP}/seed3/prompt_learner/model.pth.tar-5", f"{COOP}/seed*/epoch 5", "CoOp 2 shots"),
    (f"elsewhere/{COOP}/seed3/prompt_learner/model.pth.tar-50", f"{COOP}/seed*", "CoOp 2 shots"),
    ("output/UCF101/KgCoOp/rn50_1shot/seed2/prompt_learner/model-best.pth.tar",
     "KgCoOp/rn50_1shot/seed*", "KgCoOp 1 shot"),
    ("textures.safetensors", "textures.safetensors", "textures"),
    ("/home/me/prompts/2shots/seed4/p.pt", f"{short_hash(b'me/prompts')}/2shots/seed*/p.pt", "CoOp 2 shots"),
    ("/home/me/textures.safetensors", f"{short_hash(b'home/me')}/textures.safetensors", "textures"),
])
def test_the_protocol_of_a_path(path, text, label):
    protocol = protocol_of_path(path, ["UCF101", "ucf101"])
    assert (protocol.text, protocol.label) == (text, label)


def test_a_converted_prompt_says_how_it_was_made(tmp_path, clip_model):
    """Without the folders of CoOp's layout, which said it before."""
    source = save_as_dassl(coop_folder(tmp_path, 2) / "seed1", clip_model, NAMES, random_prompt(16))
    copy = tmp_path / "prompt.safetensors"
    done = run_tool("convert_prompt.py", source, copy, "--dataset", "UCF101", "--backbone", "ViT-B/16")
    assert done.returncode == 0, done.stderr
    assert read_metadata(copy) == {
        "method": "CoOp", "shots": "2", "seed": "1", "epochs": "50", "n_ctx": "16",
        "class_token_position": "end", "dataset": "UCF101", "backbone": "ViT-B/16",
    }
    again = tmp_path / "again.safetensors"
    assert run_tool("convert_prompt.py", copy, again, "--shots", 4).returncode == 0
    assert read_metadata(again) == {**read_metadata(copy), "shots": "4"}


@pytest.mark.parametrize(("dataset", "shots", "epochs", "text"), [
    ("ImageNet", "2", "50", "CoOp 2 shots (n_ctx 4)"),
    ("UCF101", "2", "100", "CoOp 2 shots (n_ctx 4)"),
    ("UCF101", "16", "200", "CoOp 16 shots (n_ctx 4)"),
    ("UCF101", "2", "50", "CoOp 2 shots (epochs 50, n_ctx 4)"),
    ("ImageNet", "2", "100", "CoOp 2 shots (epochs 100, n_ctx 4)"),
])
def test_the_epochs_of_coops_scripts_are_one_protocol_on_all_data_sets(dataset, shots, epochs, text):
    metadata = {"method": "CoOp", "dataset": dataset, "shots": shots, "epochs": epochs, "n_ctx": "4"}
    assert prompt_protocol("prompt.safetensors", "", metadata, [dataset]).text == text


def test_metadata_is_printed_and_checked(tmp_path, clip_model, caplog):
    backbone = OpenAIBackbone(clip_model, "ViT-B/32")
    metadata = {"method": "CoOp", "shots": "2", "dataset": "DTD", "backbone": "ViT-B/16", "n_ctx": "4"}
    path = tmp_path / "prompt.safetensors"
    save_file({"ctx": random_prompt()}, path, metadata)
    with caplog.at_level(logging.INFO):
        load_context(path, backbone, TOKENS, dataset="UCF101")
    assert "prompt.safetensors: CoOp, 2 shots, learnt on DTD, ViT-B/16, 4 tokens" in caplog.text
    assert "was learnt with ViT-B/16, not with ViT-B/32" in caplog.text
    assert "was learnt on DTD and is used on UCF101" in caplog.text
    caplog.clear()
    load_context(path, OpenAIBackbone(clip_model, "ViT-B/16"), TOKENS, dataset="dtd")
    assert "WARNING" not in caplog.text
    save_file({"ctx": torch.ones(5, 64)}, path, metadata)
    with pytest.raises(WeightsError, match="says that it has 4 tokens, but it has 5"):
        load_context(path, backbone, TOKENS)
