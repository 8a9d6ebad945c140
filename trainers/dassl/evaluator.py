"""`TEST.EVALUATOR Calibration`: Dassl's own lines, then calibration metrics, and the run in our
format, with the images that Dassl's reader has found.
"""
from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from dassl.evaluation import EVALUATOR_REGISTRY
from dassl.evaluation.evaluator import Classification
from torch import Tensor
from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY, Dataset, Datum, dataset_info
from ...datasets.identity import ImageIdentity, identify
from ...datasets.image_index import ImageIndex
from ...datasets.utils.cli import counted
from ...datasets.utils.errors import DataError, WeightsError
from ...datasets.utils.files import flatten, unflatten, write_arrays, write_json, write_text
from ...datasets.views.geometry import OPENAI_MEAN, OPENAI_STD
from ..config.settings import leaves
from ..functional import BINS
from ..functional.arrays import log_softmax
from ..functional.scoring import brier
from ..registry import backbone_label, method_info
from ..runs.record import FILE_NAME, UNKNOWN_IMAGES, RunRecord, content_hash
from ..runs.run_dir import RunDir, read_record
from ..runs.summary import environment, metrics_of, percent_lines
from ..vlm.loading import weights_hash
from ..vlm.numerics import gpu_name, pick_device

logger = logging.getLogger(__name__)

ENGINE = "Dassl"  # in the record of a run that a trainer of the checkout computed
UNNAMED = "no name"  # of a backbone that the checkout's config does not name


@EVALUATOR_REGISTRY.register()
class Calibration(Classification):
    """Dassl's evaluator, which also stores the model's outputs as logits."""

    def __init__(
        self, cfg: CfgNode, lab2cname: dict[int, str] | None = None, **kwargs: Any,
    ) -> None:
        super().__init__(cfg, lab2cname=lab2cname, **kwargs)
        self.names = lab2cname or {}
        self.trainer: Any = None  # whose outputs these are; set by `connecting_evaluator`
        self.split = cfg.TEST.SPLIT
        self.writes = True  # False for our trainers, which write their own results
        self.outputs: list[np.ndarray] = []

    def reset(self) -> None:
        """Forgets the outputs of an earlier test."""
        super().reset()
        self.outputs = []

    def process(self, mo: Tensor, gt: Tensor) -> None:
        """Takes a batch, under Dassl's names of the arguments.

        Args:
            mo: The model's output, which are logits, (B, K).
            gt: Labels, (B,).
        """
        super().process(mo, gt)
        self.outputs.append(mo.detach().float().cpu().numpy())

    def evaluate(self) -> OrderedDict:
        """Dassl's metrics, then ECE, ACE, Brier score and mean confidence; writes the run's files.
        """
        results = super().evaluate()
        logits = np.concatenate(self.outputs)
        labels = np.array(self._y_true, dtype=np.int64)
        not_finite = int((~np.isfinite(logits)).any(axis=1).sum())
        if not_finite:
            print(f"calibration is not measured: {not_finite} of {len(logits)} outputs are not "
                  f"finite")
            return results
        bins = self.cfg.TEST.get("BINS") or BINS
        measured = metrics_of(logits, labels, bins)
        results["ece"] = measured["ece"]
        results["ace"] = measured["ace"]
        results["brier"] = brier(np.exp(log_softmax(logits)), labels)
        results["confidence"] = measured["confidence"]
        print("\n".join(percent_lines(results, ("ece", "ace", "confidence"))))
        print(f"* brier: {results['brier']:.4f}")  # 0 to 2, no percentage
        if self.writes and self.cfg.OUTPUT_DIR:
            self.write(logits, labels, results, bins)
        return results

    def write(
        self, logits: np.ndarray, labels: np.ndarray, metrics: dict[str, float], bins: int,
    ) -> None:
        """Writes predictions.npz, results.json and config.yaml, which `report` reads.

        Args:
            logits: Logits, (images, classes).
            labels: True class of each image, (images,).
            metrics: Metrics by name, in percent, except `brier`.
            bins: Number of bins of ECE and ACE.
        """
        cfg = self.cfg
        folder = Path(cfg.OUTPUT_DIR)
        # An evaluation replaces an earlier one, as Dassl does. Our runs are longer to compute.
        existing = read_record(folder / FILE_NAME)
        if existing is not None and existing.get("numerics.engine") != ENGINE:
            print(f"predictions and results are not written: {folder} holds a run of "
                  f"{existing.names.get('method', 'promptcal')}; choose another --output-dir")
            return
        names = [str(self.names.get(label, label)) for label in range(logits.shape[1])]
        # Only OpenAI's weights are known by name; other models a checkout may load in any way.
        weights = ""
        with suppress(WeightsError):
            weights = weights_hash(cfg.MODEL.BACKBONE.NAME)
        identity = self.identity(labels)
        record = foreign_record(cfg, self.split, names, len(labels), weights, identity)
        columns = {
            "index": np.arange(len(labels)),
            "label": labels,
            "logits": logits,
            "flagged": np.zeros(len(labels), dtype=bool),
            "record": np.array(json.dumps(record.to_json())),
        }
        if identity is not None:
            columns["image"] = identity.digests
            columns["cluster"] = identity.clusters
        write_arrays(folder / "predictions.npz", **columns)
        write_text(folder / "config.yaml", yaml.safe_dump(settings_with_values(cfg)))
        write_json(folder / FILE_NAME, record.to_json())
        run_dir = RunDir(folder, record)
        device = pick_device("auto" if cfg.USE_CUDA else "cpu")
        run_dir.write_results({
            "trainer": cfg.TRAINER.NAME,
            "dataset": cfg.DATASET.NAME,
            "backbone": cfg.MODEL.BACKBONE.NAME or UNNAMED,
            "seed": record.seed,
            "n": len(labels),
            "classes": len(names),
            "split": self.split,
            "accuracy": metrics["accuracy"],
            "confidence": metrics["confidence"],
            "ece": metrics["ece"],
            "ace": metrics["ace"],
            "brier": metrics["brier"],
            "bins": bins,
            "flagged": 0,
            "skipped": [],
            "zero_shot": False,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "data_hash": record.data["images"],
            "weights_hash": weights,
            **environment(device, gpu_name(device)),
            "classnames": names,
            "record": record.to_json(),
        })
        print(f"predictions and results in {folder}")

    def identity(self, labels: np.ndarray) -> ImageIdentity | None:
        """What the images are, as in our own runs; None where the order of the images is unknown.
        """
        try:
            data = DasslDataset(self.trainer.dm.dataset, self.cfg)
        except (AttributeError, DataError) as error:
            logger.warning("the images are not known by content: %s", error)
            return None
        items = data.val if self.split == "val" else data.test
        if [item.label for item in items] != labels.tolist():
            return None
        return identify(data, items, range(len(items)), ImageIndex())


def foreign_record(
    cfg: CfgNode,
    split: str,
    classnames: Sequence[str],
    count: int,
    weights: str,
    identity: ImageIdentity | None,
) -> RunRecord:
    """The record of a run that another toolbox computed.

    Its settings are that toolbox's: all that a checkout's config has count as changed, because
    their defaults are not known here.

    Args:
        cfg: The checkout's config.
        split: test or val.
        classnames: Class names; the index is the label.
        count: Number of images.
        weights: Hash of the backbone's weights; "" if unknown.
        identity: Identity of the images. None if it is unknown; then reports do not compare the run
            with others image by image.
    """
    backbone = cfg.MODEL.BACKBONE.NAME or UNNAMED
    images = f"{UNKNOWN_IMAGES}{cfg.DATASET.NAME}:{split}:{count}"
    listing = images
    if identity is not None:
        images = identity.images
        listing = identity.listing
    settings = {}
    for key, value in flatten(settings_with_values(cfg)):
        if is_method_setting(key):
            settings[key] = value
    shots = shots_of(cfg)
    return RunRecord(
        data={
            "dataset": cfg.DATASET.NAME,
            "split": split,
            "n": count,
            "images": images,
            "listing": listing,
            "classes": f"{len(classnames)}:{content_hash(list(classnames))}",
            "corruption": "",
            "severity": 0,
            "subset": subset_of(cfg),
        },
        views={"pipeline": "Dassl", "count": 1},
        model={
            "backbone": backbone,
            "weights": weights or f"name:{backbone}",
            "prompt": {"kind": "Dassl", "protocol": shots},
        },
        method={
            "trainer": cfg.TRAINER.NAME,
            "settings": settings,
            "source": {"plugin": "Dassl"},
        },
        numerics={
            "precision": "unknown",
            "device_type": "unknown",
            "jacobian": False,
            "engine": ENGINE,
            "tf32": "unknown",
        },
        seed=max(cfg.SEED, 0),
        changed={},
        names={
            "method": method_info(cfg.TRAINER.NAME).label,
            "dataset": dataset_info(cfg.DATASET.NAME).label,
            "backbone": backbone_label(backbone),
            "prompt": shots,
        },
    )


def is_method_setting(key: str) -> bool:
    """Whether a setting of a checkout is about its method, not about places, data or hardware."""
    if key == "TRAINER.NAME":
        return False
    return key.startswith(("TRAINER.", "OPTIM.", "INPUT.", "MODEL.INIT", "DATASET.NUM_SHOTS"))


def shots_of(cfg: CfgNode) -> str:
    """Such as `4 shots`; "" where all training images are used."""
    shots = cfg.DATASET.get("NUM_SHOTS", -1)
    if shots is None or shots < 1:
        return ""
    return counted(shots, "shot")


def subset_of(cfg: CfgNode) -> str:
    """Such as `base classes`; "" where all classes are used."""
    classes = cfg.DATASET.get("SUBSAMPLE_CLASSES", "all")
    if classes == "all":
        return ""
    return f"{classes} classes"


def settings_with_values(cfg: CfgNode) -> dict[str, Any]:
    """The settings that have a value, as a tree of plain data.

    Those of the pixels are left out where they are CLIP's own.
    """
    usual = {"INPUT.PIXEL_MEAN": list(OPENAI_MEAN), "INPUT.PIXEL_STD": list(OPENAI_STD)}
    settings = {}
    for key, value in leaves(cfg).items():
        plain = list(value) if isinstance(value, tuple) else value
        if plain is None or key == "INPUT.SIZE" or plain == usual.get(key):
            continue
        settings[key] = plain
    return unflatten(settings)


class DasslDataset(Dataset):
    """The lists and class names that Dassl's reader has made, with its few-shot sample and its
    subset of classes.
    """

    def __init__(self, source: Any, cfg: CfgNode) -> None:
        super().__init__(Path(cfg.DATASET.ROOT).expanduser().absolute())  # as CoOp's readers do
        self.train = as_data(source.train_x)
        self.val = as_data(source.val)
        self.test = as_data(source.test)
        names = source.lab2cname
        labels = set(range(max(names, default=0) + 1))
        labels.update(item.label for item in self.test)
        absent = labels - set(names)
        if absent:
            raise DataError(f"the data set names no class {min(absent)}: Dassl takes class names "
                            f"from the training images, of which every class needs one")
        self.classnames = [str(names[label]) for label in sorted(names)]
        if cfg.DATASET.NAME in DATASET_REGISTRY:
            our_reader = DATASET_REGISTRY.get(cfg.DATASET.NAME)
            self.template = our_reader.template
            self.augmix = our_reader.augmix  # whether the public scripts use it on this data set


def as_data(items: Iterable[Any] | None) -> list[Datum]:
    """Dassl's list of images as ours.

    Args:
        items: Objects with `impath`, `label`, `domain` and `classname`; None is an empty list.
    """
    data = []
    for item in items or ():
        path = str(Path(item.impath))
        data.append(Datum(path, int(item.label), int(item.domain), item.classname))
    return data
