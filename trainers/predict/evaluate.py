"""A whole run from Python: a method, a model and a data set in, metrics and predictions out."""
from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...datasets import ALL_DATA, DATASET_REGISTRY, Dataset
from ...datasets.utils.cli import counted, plural
from ...datasets.utils.errors import ConfigError, explaining_faults
from ..api import Options, checked_model, option_pairs
from ..config.build import cfg_from_python, refuse_arguments
from ..config.layers import Config
from ..config.settings import run_path
from ..registry import TRAINER_REGISTRY, backbone_label, method_info, method_key
from ..report.tensorboard_figures import write_tensorboard_figures
from ..runs.run_dir import read_predictions
from ..runs.summary import result_table
from ..vlm.backbone import Backbone
from ..vlm.loading import model_hash
from ..vlm.numerics import fixed_numerics
from ..vlm.openai_clip import CLIP
from ..vlm.prompted_clip import LoadedModel

IN_MEMORY = "model"  # what a run calls a backbone that has no name


@dataclass(frozen=True)
class Evaluation:
    """The result of a run. Metrics are in percent, as in results.json.

    Attributes:
        results: The content of results.json.
        predictions: The arrays of predictions.npz: `logits` and `zero_shot_logits` (N, K), `label`,
            `index` (N,) and others.
        folder: Folder of the run; None if it was not kept.
    """

    results: Mapping[str, Any]
    predictions: Mapping[str, np.ndarray]
    folder: Path | None = None

    @property
    def accuracy(self) -> float:
        return self.results["accuracy"]

    @property
    def ece(self) -> float:
        return self.results["ece"]

    @property
    def over_confidence(self) -> float:
        """Mean confidence − accuracy: above 0 for an over-confident method."""
        return self.results["confidence"] - self.results["accuracy"]

    def table(self) -> str:
        """The table that a run prints: the predictions before tuning, then the method's."""
        return result_table([self.results])

    def __str__(self) -> str:
        """Five lines: what was run, three metrics with those before tuning, where it is."""
        results = self.results
        before = results["zero_shot_confidence"] - results["zero_shot_accuracy"]
        name = method_info(results["trainer"]).label
        images = (f"{counted(results['n'], results['split'] + ' image')} of "
                  f"{plural(results['classes'], 'class', 'classes')}")
        where = "not kept: output=FOLDER keeps the run"
        if self.folder:
            where = f"run folder: {self.folder}"
        return "\n".join([
            f"{name} on {results['dataset']}: {images}, {backbone_label(results['backbone'])}, "
            f"seed {results['seed']}",
            f"accuracy         {self.accuracy:6.2f} %   (before tuning "
            f"{results['zero_shot_accuracy']:.2f})",
            f"ECE              {self.ece:6.2f} %   (before tuning {results['zero_shot_ece']:.2f}), "
            f"{results['bins']} bins",
            f"over-confidence  {self.over_confidence:+6.2f} %   (before tuning {before:+.2f})",
            where,
        ])

    def __repr__(self) -> str:
        return str(self)


@explaining_faults()
@fixed_numerics()
def evaluate(
    method: str, model: CLIP | Backbone | str, dataset: str | Dataset,
    root: str | Path | None = None, output: str | Path | None = None, opts: Options = (),
) -> Evaluation:
    """Runs a method on the test images of a data set, as `promptcal train` does.

    With `output` the run is kept: the same call again reads its results, and an interrupted call
    continues.

    Args:
        method: Name of the method, in any spelling.
        model: A model from `load_clip`, or the name of a backbone.
        dataset: Name of a data set, or one from `build_dataset`.
        root: Folder of the data sets; None = the default, `data`, or that of a given data set.
        output: Folder of the run; None = a temporary one.
        opts: KEY VALUE pairs as on the command line, e.g. `["TEST.LIMIT", 100]`, or a dict.

    Returns:
        Metrics in percent and predictions.

    Example:
        >>> result = evaluate("SoC", load_clip("small"), "LandCover")
        >>> result.accuracy, result.ece, result.over_confidence
    """
    with ExitStack() as stack:
        if output:
            folder = Path(output)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        loaded = None
        if isinstance(model, str):
            name = model
        else:
            backbone = checked_model(model).without_cache()
            loaded = LoadedModel(backbone, weights=model_hash(backbone))
            name = backbone.name or IN_MEMORY
        flags: list[object] = ["MODEL.BACKBONE.NAME", name, "OUTPUT_DIR", str(folder)]
        if loaded is not None:
            flags += ["DEVICE", str(loaded.backbone.device)]
        pairs = option_pairs(opts)
        given_dataset = None
        if not isinstance(dataset, (str, Dataset)):
            raise ConfigError("dataset must be the name of a data set, or one from build_dataset, "
                              f"not a {type(dataset).__name__}")
        if not isinstance(dataset, str):
            given_dataset = dataset
            root = dataset.root  # a folder of images is named after it
            for key, value in settings_of_object(dataset).items():
                flags += [key, value]
                refuse_arguments(pairs, {key: (str(value), "the data set")})
        if root is not None:
            flags += ["DATASET.ROOT", str(root)]
        refuse_arguments(pairs, {
            "MODEL.BACKBONE.NAME": (name, "the model"),
            "OUTPUT_DIR": (str(folder), "the folder `output`"),
        })
        cfg = configure(method, dataset, flags, pairs)
        trainer = TRAINER_REGISTRY.get(cfg.TRAINER.NAME)(cfg, given_dataset, loaded)
        if trainer.dist.world > 1 and not output:
            raise ConfigError("several processes work on one run folder: give output=FOLDER")
        results = trainer.run()
        if output and trainer.dist.is_main:
            write_tensorboard_figures(run_path(trainer.cfg))
        return Evaluation(results, read_predictions(folder), folder if output else None)


def settings_of_object(dataset: Dataset) -> dict[str, object]:
    """The settings that say which images a data set holds, from which labels are made.

    It was read before the call, so the call cannot change them.
    """
    settings = {**ALL_DATA.settings(), **dataset.read_settings}
    if dataset.corruption:
        settings["DATASET.CORRUPTION"] = dataset.corruption
        settings["DATASET.SEVERITY"] = dataset.severity
    return settings


def configure(
    method: str, dataset: str | Dataset, flags: list[object], pairs: Sequence,
) -> Config:
    """The settings of a run on a data set that is given by name or as an object.

    Args:
        method: Name of the trainer.
        dataset: Registered name of the data set, or the data set itself.
        flags: KEY VALUE pairs that come before the options.
        pairs: The caller's settings as KEY VALUE pairs.
    """
    name = dataset if isinstance(dataset, str) else type(dataset).__name__
    for registered in DATASET_REGISTRY:
        if method_key(registered) == method_key(name):
            name = registered
    if not isinstance(dataset, str) and name not in DATASET_REGISTRY:
        name = ""  # a class that is not registered has no settings
    refuse_arguments(pairs, {"DATASET.NAME": (name, "the data set")})
    return cfg_from_python(method, name, flags, pairs)
