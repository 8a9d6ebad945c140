"""Writes a method of your own and its test into the current folder.

The method can run at once. Replace its formula by your own.

    python tools/new_method.py WeightedViews --kind gradient-free
    python tools/train.py --plugin weighted_views --trainer WeightedViews --backbone small \\
        --dataset-config-file landcover
"""
from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import load_plugins, run_tool, tool, tool_parser
from promptcal.datasets.utils.errors import ConfigError, reading
from promptcal.trainers.registry import TRAINER_REGISTRY, branch_of, registered_name

CLASS_NAME = re.compile(r"[A-Z][A-Za-z0-9]*")

REGULARISER = '''\
from promptcal.trainers.config.settings import Range, Setting
from promptcal.trainers.functional.objectives import pair_similarities
from promptcal.trainers.registry import TRAINER_REGISTRY
from promptcal.trainers.tpt import TPT


@TRAINER_REGISTRY.register()
class NAME(TPT):
    """L_TPT + λ · mean over class pairs of max(0, s_ij)."""

    label = "LABEL"
    colour = "#B8860B"
    settings = [
        Setting("LAMBDA", 10.0, "λ, weight of the term", allowed=Range(least=0), show="λ {}"),
    ]

    def penalty(self, text):  # class features (..., K, d) -> one number per episode
        return pair_similarities(text).relu().mean(-1)

    def weight(self, loss, penalty):  # of the penalty, given L_TPT and its value
        return self.cfg.TRAINER.BRANCH.LAMBDA
'''

GRADIENT_FREE = '''\
from promptcal.trainers.gradient_free import GradientFree
from promptcal.trainers.registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class NAME(GradientFree):
    """The mean of all views' logits, each weighted by its confidence."""

    label = "LABEL"
    colour = "#B8860B"
    selects_views = False  # True: TTA.SELECT is one of its settings

    def combine(self, views, logits):  # unit features (B, V, d), logits (B, V, K) -> logits (B, K)
        confidence = logits.softmax(-1).amax(-1, keepdim=True)
        return (confidence * logits).sum(1) / confidence.sum(1)
'''

ONLINE = '''\
from functools import cached_property

import torch
from promptcal.trainers.config.settings import Range, Setting
from promptcal.trainers.engine.adapted import Adapted
from promptcal.trainers.online import VIEWS, Online
from promptcal.trainers.registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class NAME(Online):
    """Logits minus the logarithm of the mean prediction of the images so far."""

    label = "LABEL"
    colour = "#B8860B"
    settings = [
        Setting("RATE", 0.01, "weight of an image in the mean", allowed=Range(least=0, below=1)),
        Setting("VIEWS", "plain", "views: plain; or confident, of lowest entropy", allowed=VIEWS),
    ]

    @cached_property
    def mean(self):  # (K,), the state, as it is before the first image
        classes = len(self.clip.text)
        return torch.full_like(self.clip.text[:, 0], 1 / classes)

    def adapt_image(self, views):  # unit features (1, V, d) of one image
        _, logits = self.used_views(views, self.clip.text)  # (n, K)
        logits = logits.mean(0)
        self.mean.lerp_(logits.softmax(-1), self.method_settings.RATE)
        return Adapted((logits - self.mean.log())[None], self.zero_shot(views))

    def state_tensors(self):  # saved with each part, so that an interrupted run continues
        return {"mean": self.mean}
'''

TEMPLATES = {"regulariser": REGULARISER, "gradient-free": GRADIENT_FREE, "online": ONLINE}

TEST = '''\
"""NAME on embedded data: python -m pytest FILE"""
import MODULE  # noqa: F401 (registers the method)
import numpy as np
import promptcal as pc
import pytest


@pytest.fixture(scope="module")
def predictions():
    """Of a short run with the embedded model."""
    options = {"TEST.LIMIT": 16, "TTA.VIEWS": 16, "TTA.SELECT": 0.25}
    return pc.evaluate("NAME", pc.load_clip("small"), "LandCover", opts=options).predictions


def test_every_image_has_a_finite_prediction(predictions):
    assert predictions["logits"].shape == (16, 24)
    assert np.isfinite(predictions["logits"]).all() and not predictions["flagged"].any()


def test_it_changes_zero_shot_predictions(predictions):
    assert np.abs(predictions["logits"] - predictions["zero_shot_logits"]).max() > 1e-4
'''


def main(argv: Sequence[str] | None = None) -> None:
    parser = tool_parser(__doc__)
    parser.add_argument("name", type=class_name, help="name of the class, such as WeightedViews")
    parser.add_argument("--kind", required=True, choices=sorted(TEMPLATES),
                        help="regulariser: a term added to TPT; gradient-free: combines the views "
                             "of an image; online: learns from image to image")
    args = parser.parse_args(argv)
    load_plugins(args.plugin)
    module = module_name(args.name)
    file = Path(f"{module}.py")
    test_file = Path(f"test_{module}.py")
    check_free(args.name, module, (file, test_file))
    with reading():
        write_new(file, fill(TEMPLATES[args.kind], args.name))
        write_new(test_file, fill(TEST, args.name))
    print(f"written: {file}, {test_file}")
    print(
        f"run it:  {tool('train')} --plugin {module} --trainer {args.name} --dataset-config-file "
        "landcover --backbone small TEST.LIMIT 48"
    )
    print(f"test it: python -m pytest {test_file}")


def class_name(text: str) -> str:
    """The name of a class, checked; argparse turns the error into a usage message."""
    if not CLASS_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the name of a class, such as WeightedViews"
        )
    return text


def module_name(name: str) -> str:
    """`WeightedViews` -> `weighted_views`."""
    return "_".join(words_of(name)).lower()


def words_of(name: str) -> list[str]:
    """The words of a class's name; letters in capitals are one word."""
    return re.findall(r"[A-Z]+(?![a-z])[0-9]*|[A-Z][a-z0-9]*|[0-9]+", name)


def check_free(name: str, module: str, files: Sequence[Path]) -> None:
    """Refuses names that are in use: of methods, of modules, of files."""
    known = registered_name(name)
    if known in TRAINER_REGISTRY:
        raise ConfigError(f"{known} is a registered method: choose another name than {name}")
    for file in files:
        if file.exists():
            raise ConfigError(f"{file} is there: remove it, or choose another name than {name}")
    if find_spec(module) is not None:
        raise ConfigError(f"a module {module} is installed: choose another name than {name}")


def fill(template: str, name: str) -> str:
    """A template with its placeholders replaced by the names of a method.

    Args:
        template: Text with NAME, LABEL, BRANCH, MODULE and FILE.
        name: Name of the method's class.
    """
    first, *rest = words_of(name)
    label = " ".join([first, *(word.lower() for word in rest)])
    module = module_name(name)
    text = template.replace("NAME", name).replace("LABEL", label).replace("BRANCH", branch_of(name))
    return text.replace("MODULE", module).replace("FILE", f"test_{module}.py")


def write_new(file: Path, text: str) -> None:
    """Writes a file that must not exist yet."""
    with file.open("x", encoding="utf-8") as opened:
        opened.write(text)


if __name__ == "__main__":
    run_tool(main)
