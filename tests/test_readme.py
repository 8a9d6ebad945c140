"""What the READMEs print must run as printed."""
from __future__ import annotations

import re
from pathlib import Path

import pytest
from common import PROJECT
from forked import forked
from PIL import Image

FILES = sorted(path for path in [PROJECT / "README.md", *(
    file for top in ("datasets", "trainers", "configs", "tools", "tests") for file in (PROJECT / top).rglob("README.md")
)])
README = (PROJECT / "README.md").read_text(encoding="utf-8")
LINKS = [
    (file, link) for file in FILES
    for link in sorted(set(re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", file.read_text(encoding="utf-8"))))
]


def block_after(heading: str, file: str = "README.md") -> str:
    """The first Python block below a heading."""
    text = (PROJECT / file).read_text(encoding="utf-8")
    return re.search(rf"^## {heading}$.*?```python\n(.*?)```", text, re.DOTALL | re.MULTILINE).group(1)


def run(code: str) -> str:
    """In a copy of this process, because examples register themselves."""
    done = forked(lambda: exec(code, {"__name__": "__main__"}))  # noqa: S102
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_main_one_is_short_enough_to_be_read():
    assert len(README.splitlines()) <= 190


def test_the_python_example():
    assert "torch.Size([2, 4, " in run(block_after("From Python"))


def test_add_your_own_method():
    use = '''
import torch
from promptcal.trainers import adapt, load_clip
views = torch.randn(2, 20, 3, 64, 64, generator=torch.Generator().manual_seed(0))
names = ["river", "canal", "lake"]
ours = adapt("ClosestPair", load_clip("small"), names, views)
tpt = adapt("TPT", load_clip("small"), names, views)
print((ours.penalty != 0).all().item(), (ours.logits != tpt.logits).any().item())
'''
    assert run(block_after("Add your own method") + use).split() == ["True", "True"]


def test_add_your_own_data_set(tmp_path: Path):
    photos = tmp_path / "birds" / "photos"
    photos.mkdir(parents=True)
    lines = ["split,image,name"]
    for split in ("train", "test"):
        for name in ("robin", "wren"):
            Image.new("RGB", (8, 8)).save(photos / f"{split}_{name}.jpg")
            lines.append(f"{split},{split}_{name}.jpg,{name}")
    (tmp_path / "birds" / "labels.csv").write_text("\n".join(lines))
    use = f'''
from promptcal.datasets import build_dataset
birds = build_dataset("GardenBirds", {str(tmp_path)!r})
print(birds.classnames, len(birds.train), len(birds.test))
'''
    assert run(block_after("Add your own data set", "datasets/README.md") + use).strip() == "['robin', 'wren'] 2 2"


@pytest.mark.parametrize(("file", "path"), LINKS, ids=[f"{file.parent.name}-{path}" for file, path in LINKS])
def test_links_lead_somewhere(file: Path, path: str):
    assert path.startswith("http") or (file.parent / path).exists()


def test_promises_name_tests_that_exist():
    named_at_all = 0
    for row in (PROJECT / "tests" / "README.md").read_text(encoding="utf-8").splitlines():
        file = ""
        for name in re.findall(r"`(test_\w+\.py(?:::\w+)?|::\w+)`", row):
            named, _, test = name.partition("::")
            file = named or file
            source = (PROJECT / "tests" / file).read_text(encoding="utf-8")
            assert not test or f"def {test}(" in source, name
            named_at_all += 1
    assert named_at_all > 20


COMMANDS = sorted({
    line.split()[1] for file in FILES
    for line in re.findall(r"^(?:python|bash) tools/\S+", file.read_text(encoding="utf-8"), re.MULTILINE)
})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_name_tools_that_exist(command: str):
    assert (PROJECT / command).is_file()


def test_the_main_command_is_there_whole():
    assert "python tools/train.py --trainer SoC --dataset-config-file configs/datasets/ucf101.yaml\n" in README


def test_add_a_library_of_backbones(tmp_path: Path):
    text = (PROJECT / "trainers" / "vlm" / "README.md").read_text(encoding="utf-8")
    module, use = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "toy.py").write_text(module)
    out = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{use}")
    assert out.split() == ["torch.Size([2,", "3])", "True"]
