"""`TEST.EVALUATOR Calibration`: Dassl's own lines, then calibration, and the run in our format, for any trainer."""
from __future__ import annotations

import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from dassl.evaluation import EVALUATOR_REGISTRY
from dassl.evaluation.evaluator import Classification
from torch import Tensor
from yacs.config import CfgNode

from ...datasets.utils.errors import DataError, WeightsError
from ...datasets.utils.files import write_arrays, write_json, write_text
from ...datasets.views.pixels import OPENAI_MEAN, OPENAI_STD
from ..base import now
from ..config.roles import leaves
from ..functional.arrays import log_softmax
from ..functional.calibration import BINS, ace, brier_terms, ece, top_class
from ..runs.environment import environment
from ..runs.summary import percent_lines
from ..vlm.loading import pick_device, weights_hash
from .data import TheirData

logger = logging.getLogger(__name__)

STATISTICS = {"INPUT.PIXEL_MEAN": OPENAI_MEAN, "INPUT.PIXEL_STD": OPENAI_STD}

UNNAMED = "no name"  # of a checkout's backbone that its config does not tell


@EVALUATOR_REGISTRY.register()
class Calibration(Classification):
    """Keeps every output of the model, taken as logits, besides what Dassl's evaluator counts."""

    def __init__(self, cfg: CfgNode, lab2cname: dict[int, str] | None = None, **kwargs: Any) -> None:
        super().__init__(cfg, lab2cname=lab2cname, **kwargs)
        self.names = lab2cname or {}
        self.trainer: Any = None  # whose outputs these are, where `introduce` has told
        self.split = cfg.TEST.SPLIT
        self.writes = True  # a trainer of ours keeps its own records
        self.outputs: list[np.ndarray] = []

    def reset(self) -> None:
        super().reset()
        self.outputs = []

    def process(self, mo: Tensor, gt: Tensor) -> None:
        super().process(mo, gt)
        self.outputs.append(mo.detach().float().cpu().numpy())

    def evaluate(self) -> OrderedDict:
        results = super().evaluate()
        logits, labels = np.concatenate(self.outputs), np.array(self._y_true, dtype=np.int64)
        lost = int((~np.isfinite(logits)).any(axis=1).sum())
        if lost:
            print(f"calibration is not measured: {lost} of {len(logits)} outputs hold numbers that are not finite")
            return results
        bins = self.cfg.TEST.get("BINS") or BINS
        confidence, correct = top_class(logits, labels)
        results["ece"] = 100 * ece(confidence, correct, bins)
        results["ace"] = 100 * ace(confidence, correct, bins)
        results["brier"] = 100 * float(np.mean(brier_terms(np.exp(log_softmax(logits)), labels)))
        results["confidence"] = 100 * float(confidence.mean())
        print("\n".join(percent_lines(results, ("ece", "ace", "brier", "confidence"))))
        if self.writes and self.cfg.OUTPUT_DIR:
            self.write(logits, labels, results, bins)
        return results

    def write(self, logits: np.ndarray, labels: np.ndarray, figures: dict[str, float], bins: int) -> None:
        """predictions.npz, results.json and config.yaml, by which `report` shows the run beside ours."""
        cfg, folder = self.cfg, Path(self.cfg.OUTPUT_DIR)
        count = logits.shape[1]
        names = [str(self.names.get(label, label)) for label in range(count)]
        write_arrays(
            folder / "predictions.npz", index=np.arange(len(labels)), label=labels, logits=logits,
            flagged=np.zeros(len(labels), dtype=bool),
        )
        write_text(folder / "config.yaml", yaml.safe_dump(chosen(cfg)))
        write_json(folder / "results.json", {
            "trainer": cfg.TRAINER.NAME, "dataset": cfg.DATASET.NAME, "backbone": cfg.MODEL.BACKBONE.NAME or UNNAMED,
            "seed": max(cfg.SEED, 0), "n": len(labels), "classes": count, "split": self.split,
            **{name: figures[name] for name in ("accuracy", "confidence", "ece", "ace", "brier")}, "bins": bins,
            "flagged": 0, "skipped": [], "zero_shot": False, "finished": now(), "data_hash": self.data_hash(labels),
            "weights_hash": known_weights(cfg.MODEL.BACKBONE.NAME),
            **environment(pick_device("auto" if cfg.USE_CUDA else "cpu")),
            "classnames": names, "fingerprint": {"TRAINER.NAME": cfg.TRAINER.NAME, "engine": "Dassl"}, "complete": True,
        })
        print(f"predictions and results in {folder}")

    def data_hash(self, labels: np.ndarray) -> str:
        """As our own runs on these images have it; nothing where the order of the images is not known."""
        dataset = getattr(getattr(self.trainer, "dm", None), "dataset", None)
        if dataset is None:
            return ""
        try:
            data = TheirData(dataset, self.cfg)
            items = data.val if self.split == "val" else data.test
            known = [item.label for item in items] == labels.tolist()
            return data.fingerprint(items) if known else ""
        except DataError as error:
            logger.warning("no hash of the data: %s", error)
            return ""


def known_weights(name: str) -> str:
    """OpenAI's are known by name; what else a checkout may load is not."""
    try:
        return weights_hash(name)
    except WeightsError:
        return ""


def chosen(cfg: CfgNode) -> dict:
    """The settings that have a value, as a tree of plain data. Left out is how pictures are prepared where it is CLIP's
    own way, which ours are without being told."""
    tree: dict = {}
    for key, value in leaves(cfg).items():
        if value is None or key == "INPUT.SIZE" or (key in STATISTICS and tuple(value) == STATISTICS[key]):
            continue
        *groups, leaf = key.split(".")
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
        node[leaf] = list(value) if isinstance(value, tuple) else value
    return tree
