"""`TEST.EVALUATOR Calibration`: Dassl's own lines, then calibration metrics, and the run in our format."""
from __future__ import annotations

import logging
from collections import OrderedDict
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

from ...datasets.identity import fingerprint
from ...datasets.utils.errors import DataError, WeightsError
from ...datasets.utils.files import write_arrays, write_json, write_text
from ...datasets.views.pixels import OPENAI_MEAN, OPENAI_STD
from ..config.roles import leaves
from ..config.safe_yaml import unflatten
from ..functional.arrays import log_softmax
from ..functional.calibration import BINS, brier
from ..runs.summary import environment, metrics_of, percent_lines
from ..vlm.loading import pick_device, weights_hash
from .convert import DasslDataset

logger = logging.getLogger(__name__)

UNNAMED = "no name"  # of a backbone that the checkout's config does not name


@EVALUATOR_REGISTRY.register()
class Calibration(Classification):
    """Dassl's evaluator, which also stores the model's outputs as logits."""

    def __init__(self, cfg: CfgNode, lab2cname: dict[int, str] | None = None, **kwargs: Any) -> None:
        super().__init__(cfg, lab2cname=lab2cname, **kwargs)
        self.names = lab2cname or {}
        self.trainer: Any = None  # whose outputs these are; set by `connecting_evaluator`
        self.split = cfg.TEST.SPLIT
        self.writes = True  # False for our trainers, which write their own results
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
        if lost := int((~np.isfinite(logits)).any(axis=1).sum()):
            print(f"calibration is not measured: {lost} of {len(logits)} outputs are not finite")
            return results
        bins = self.cfg.TEST.get("BINS") or BINS
        found = metrics_of(logits, labels, bins)
        results |= {"ece": found["ece"], "ace": found["ace"], "brier": brier(np.exp(log_softmax(logits)), labels),
                    "confidence": found["confidence"]}
        print("\n".join(percent_lines(results, ("ece", "ace", "confidence"))))
        print(f"* brier: {results['brier']:.4f}")  # 0 to 2, no percentage
        if self.writes and self.cfg.OUTPUT_DIR:
            self.write(logits, labels, results, bins)
        return results

    def write(self, logits: np.ndarray, labels: np.ndarray, figures: dict[str, float], bins: int) -> None:
        """Writes predictions.npz, results.json and config.yaml, which `report` reads."""
        cfg, folder = self.cfg, Path(self.cfg.OUTPUT_DIR)
        names = [str(self.names.get(label, label)) for label in range(logits.shape[1])]
        weights = ""  # those of other models than OpenAI's a checkout may load in any way
        with suppress(WeightsError):
            weights = weights_hash(cfg.MODEL.BACKBONE.NAME)
        write_arrays(folder / "predictions.npz", index=np.arange(len(labels)), label=labels, logits=logits,
                     flagged=np.zeros(len(labels), dtype=bool))
        write_text(folder / "config.yaml", yaml.safe_dump(given_settings(cfg)))
        write_json(folder / "results.json", {
            "trainer": cfg.TRAINER.NAME, "dataset": cfg.DATASET.NAME, "backbone": cfg.MODEL.BACKBONE.NAME or UNNAMED,
            "seed": max(cfg.SEED, 0), "n": len(labels), "classes": len(names), "split": self.split,
            **{name: figures[name] for name in ("accuracy", "confidence", "ece", "ace", "brier")}, "bins": bins,
            "flagged": 0, "skipped": [], "zero_shot": False,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"), "data_hash": self.data_hash(labels),
            "weights_hash": weights,
            **environment(pick_device("auto" if cfg.USE_CUDA else "cpu")),
            "classnames": names, "fingerprint": {"TRAINER.NAME": cfg.TRAINER.NAME, "engine": "Dassl"}, "complete": True,
        })
        print(f"predictions and results in {folder}")

    def data_hash(self, labels: np.ndarray) -> str:
        """The hash that our own runs on these images have; empty where the order of the images is unknown."""
        try:
            data = DasslDataset(self.trainer.dm.dataset, self.cfg)
        except (AttributeError, DataError) as error:
            logger.warning("no hash of the data: %s", error)
            return ""
        items = data.val if self.split == "val" else data.test
        return fingerprint(data, items) if [item.label for item in items] == labels.tolist() else ""


def given_settings(cfg: CfgNode) -> dict[str, Any]:
    """The settings that have a value, as a tree of plain data, without those of the pixels that equal CLIP's own."""
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in leaves(cfg).items()}
    left_out = {"INPUT.SIZE": plain.get("INPUT.SIZE"), "INPUT.PIXEL_MEAN": list(OPENAI_MEAN),
                "INPUT.PIXEL_STD": list(OPENAI_STD)}
    return unflatten({key: value for key, value in plain.items() if value is not None and value != left_out.get(key)})
