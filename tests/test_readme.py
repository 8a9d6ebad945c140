"""The READMEs' examples run as printed; their links, commands and promises name what exists."""
import re
import shlex
import sys
from pathlib import Path

import promptcal as pc
import pytest
from PIL import Image
from promptcal.datasets.utils.cli import outcome
from promptcal.tools.command import main
from promptcal.trainers import build_cfg

from common import PROJECT, make_image_folder
from dassl_files import random_prompt, save_as_dassl
from made_runs import make_run
from processes import forked

FILES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md"]
for top in ("configs", "datasets", "tests", "tools", "trainers"):
    FILES += sorted((PROJECT / top).rglob("*.md"))
TEXTS = {file: file.read_text(encoding="utf-8") for file in FILES}
README = TEXTS[PROJECT / "README.md"]


# What is tried elsewhere: these commands install, download or serve.
TRIED_BY = {
    "bash tools/demo.sh": "test_environment.py",
    "pip install": "test_packaging.py",
    "promptcal download": "test_download.py",
    "promptcal tensorboard": "test_tensorboard.py",
    "python -m promptcal.trainers.dassl": "test_dassl.py",
}


def block_after(heading: str, file: str = "README.md") -> str:
    """The first Python block below a heading."""
    pattern = rf"^## {heading}$.*?```python\n(.*?)```"
    block = re.search(pattern, TEXTS[PROJECT / file], re.DOTALL | re.MULTILINE)
    assert block, heading
    return block[1]


def printed_commands() -> list[str]:
    """The commands of the main README, those in tables and sentences too."""
    commands = []
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL):
        for line in block.splitlines():
            commands.append(line.partition("  #")[0].strip())
    return commands + re.findall(r"`((?:promptcal|python|bash) [^`]* [^`]*)`", README)


def run(code: str) -> str:
    """In a copy of this process, because examples register themselves."""
    done = forked(lambda: exec(code, {"__name__": "__main__"}))  # noqa: S102
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_main_readme_is_short_and_counts_methods_and_data_sets():
    assert len(README.splitlines()) <= 160
    methods = pc.list_methods()
    assert f"SoC and {len(methods) - 4} more methods" in README
    for method in methods:
        assert f"`{method}`" in README, method
    no_benchmarks = {"LandCover", "LandCoverShift", "ImageFolder", "Table", "Parquet"}
    assert f"[{len(set(pc.list_datasets()) - no_benchmarks)} data sets]" in README


def test_the_python_example():
    code = block_after("From Python").replace('"TEST.LIMIT": 48', '"TEST.LIMIT": 2')
    lines = run(code).splitlines()
    assert len(lines) == 7 and lines[0].startswith("SoC on LandCover: 2 test images")
    assert lines[5].startswith("herbaceous vegetation ") and lines[6].endswith("%")


@pytest.fixture
def user_folder(tmp_path, clip_file, clip_model, monkeypatch) -> Path:
    """What the commands of the README name: data, a picture, a prompt, runs and a plugin."""
    make_image_folder(tmp_path / "IMAGES")
    (tmp_path / "DATA").mkdir()
    Image.new("RGB", (64, 64)).save(tmp_path / "cat.jpg")
    names = ["kind a", "kind b", "kind c", "kind d"]
    save_as_dassl(tmp_path / "DIR", clip_model, names, random_prompt())
    for method in ("TPT", "SoC"):
        make_run(tmp_path / "output", method, n=40)
    (tmp_path / "hinge_pairs.py").write_text(block_after("Add your own method"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tried(command: str, clip_file: Path) -> list[str]:
    """A command's words, with a small model and data set in place of real ones.

    Runs are checked, not computed.
    """
    words = shlex.split(command)
    if words[:2] == ["python", "tools/train.py"]:
        words[:2] = ["promptcal", "train"]
    for option in ("--backbone", "--dataset-config-file"):
        if option in words and "image_folder" not in words:
            position = words.index(option)
            del words[position:position + 2]
    if words[1] == "train":
        if "image_folder" not in words:
            words[words.index("DATA")] = "IMAGES"
            words[2:2] = ["--dataset-config-file", "image_folder"]
        words[2:2] = ["--backbone", str(clip_file), "--no-train"]
    elif words[1] == "reproduce":
        words.append("--dry-run")
    elif words[1] == "predict":
        words += ["--backbone", "small"]
    return words[1:]


@pytest.mark.parametrize("command", printed_commands())
def test_a_printed_command_is_understood(command, user_folder, clip_file):
    for beginning, file in TRIED_BY.items():
        if command.startswith(beginning):
            assert (PROJECT / "tests" / file).is_file()
            return
    words = tried(command, clip_file)
    done = forked(lambda: sys.exit(outcome(lambda: main(words))))
    assert done.returncode == 0, done.stderr


def test_add_your_own_method():
    use = """
import torch
from promptcal.trainers import adapt, load_clip
views = torch.randn(2, 20, 3, 64, 64, generator=torch.Generator().manual_seed(0))
ours, tpt = (adapt(name, load_clip("small"), ["river", "canal", "lake"], views) for name in ("HingePairs", "TPT"))
print((ours.penalty != 0).all().item(), (ours.logits != tpt.logits).any().item())
"""
    assert run(block_after("Add your own method") + use).split() == ["True", "True"]


def test_add_your_own_data_set(tmp_path):
    photos = tmp_path / "birds" / "photos"
    photos.mkdir(parents=True)
    lines = ["split,image,name"]
    for split in ("train", "test"):
        for name in ("robin", "wren"):
            Image.new("RGB", (8, 8)).save(photos / f"{split}_{name}.jpg")
            lines.append(f"{split},{split}_{name}.jpg,{name}")
    (tmp_path / "birds" / "labels.csv").write_text("\n".join(lines))
    use = f"""
from promptcal.datasets import build_dataset
birds = build_dataset("GardenBirds", {str(tmp_path)!r})
print(birds.classnames, len(birds.train), len(birds.test))
"""
    code = block_after("Add your own data set", "datasets/README.md")
    assert run(code + use).strip() == "['robin', 'wren'] 2 2"


def test_add_a_library_of_backbones(tmp_path):
    text = TEXTS[PROJECT / "trainers/vlm/README.md"]
    module, use = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "toy.py").write_text(module)
    out = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{use}")
    assert out.split() == ["torch.Size([2,", "3])", "True"]


def test_settings_for_users_of_tpt_are_the_authors_defaults():
    """What the table gives for their flags is in effect already."""
    table = README[README.index("## Coming from TPT"):]
    settings = re.findall(r"`([A-Z_]+\.[A-Z_.]+) ([^`]+)`", table)
    assert len(settings) == 9
    for key, value in settings:
        if value == "FILE":
            continue
        method = key.split(".")[1] if key.startswith("TRAINER.") else "CTPT"
        cfg = build_cfg(method, "configs/datasets/dtd.yaml", flags=[key, value.strip('"')])
        assert cfg.TAG == "default", (key, value, cfg.TAG)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PROJECT)))
def test_links_and_commands_lead_somewhere(file):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXTS[file]):
        assert link.startswith("http") or (file.parent / link).exists(), link
    for command in re.findall(r"^(?:python|bash) (tools/\S+)", TEXTS[file], re.MULTILINE):
        assert (PROJECT / command).is_file(), command


def test_promises_name_tests_that_exist():
    named = 0
    for row in TEXTS[PROJECT / "tests/README.md"].splitlines():
        file = ""
        for name in re.findall(r"`(test_\w+\.py(?:::\w+)?|::\w+)`", row):
            named_file, _, test = name.partition("::")
            if named_file:
                file = named_file
            source = (PROJECT / "tests" / file).read_text(encoding="utf-8")
            assert not test or f"def {test}(" in source, name
            named += 1
    assert named > 20
