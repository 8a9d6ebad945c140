"""The READMEs' examples run as printed; their links, commands and promises name what exists."""
from __future__ import annotations

import re
from pathlib import Path

import pytest
from common import PROJECT
from PIL import Image
from processes import forked

FILES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md"]
for top in ("configs", "datasets", "tests", "tools", "trainers"):
    FILES += sorted((PROJECT / top).rglob("*.md"))
TEXTS = {file: file.read_text(encoding="utf-8") for file in FILES}
README = TEXTS[PROJECT / "README.md"]


def block_after(heading: str, file: str = "README.md") -> str:
    """The first Python block below a heading."""
    found = re.search(rf"^## {heading}$.*?```python\n(.*?)```", TEXTS[PROJECT / file], re.DOTALL | re.MULTILINE)
    assert found, heading
    return found[1]


def run(code: str) -> str:
    """In a copy of this process, because examples register themselves."""
    done = forked(lambda: exec(code, {"__name__": "__main__"}))  # noqa: S102
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_main_readme_is_short_and_has_the_main_command():
    assert len(README.splitlines()) <= 190
    assert "python tools/train.py --trainer SoC --dataset-config-file configs/datasets/ucf101.yaml\n" in README


def test_the_python_example():
    assert "torch.Size([2, 4, " in run(block_after("From Python"))


def test_add_your_own_method():
    use = '''
import torch
from promptcal.trainers import adapt, load_clip
views = torch.randn(2, 20, 3, 64, 64, generator=torch.Generator().manual_seed(0))
names = ["river", "canal", "lake"]
ours = adapt("HingePairs", load_clip("small"), names, views)
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


def test_add_a_library_of_backbones(tmp_path: Path):
    module, use = re.findall(r"```python\n(.*?)```", TEXTS[PROJECT / "trainers/vlm/README.md"], re.DOTALL)
    (tmp_path / "toy.py").write_text(module)
    out = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{use}")
    assert out.split() == ["torch.Size([2,", "3])", "True"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PROJECT)))
def test_links_and_commands_lead_somewhere(file: Path):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXTS[file]):
        assert link.startswith("http") or (file.parent / link).exists(), link
    for command in re.findall(r"^(?:python|bash) (tools/\S+)", TEXTS[file], re.MULTILINE):
        assert (PROJECT / command).is_file(), command


def test_promises_name_tests_that_exist():
    named = 0
    for row in TEXTS[PROJECT / "tests/README.md"].splitlines():
        file = ""
        for name in re.findall(r"`(test_\w+\.py(?:::\w+)?|::\w+)`", row):
            file, test = name.partition("::")[0] or file, name.partition("::")[2]
            source = (PROJECT / "tests" / file).read_text(encoding="utf-8")
            assert not test or f"def {test}(" in source, name
            named += 1
    assert named > 20
