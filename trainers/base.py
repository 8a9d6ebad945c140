"""The shared base trainer: build data, build model, train, predict, test. Nothing here knows a method."""
from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import numpy as np
from torch import Tensor
from yacs.config import CfgNode

from ..datasets import build_dataset
from ..datasets.utils.errors import ConfigError, DataError, explaining_faults
from ..datasets.views.crops import ViewMaker
from .config.fingerprint import ENGINE, check_same, make_fingerprint, run_path
from .engine.cache import ArrayCache
from .engine.episodes import Adapted
from .engine.features import FeatureBatch, ViewFeatures
from .engine.ranks import Ranks
from .runs.folder import RunFolder, chunks
from .runs.progress import Progress, write_final
from .runs.provenance import environment
from .runs.summary import summarise
from .vlm.class_towers import ClassTowers
from .vlm.initial_prompt import InitialPrompt
from .vlm.loading import load_clip, pick_device, weights_hash
from .vlm.openai_clip import CLIP
from .vlm.precision import resolve_precision
from .vlm.prompt_files import load_context, prompt_hash
from .vlm.prompts import check_lengths, class_tokens, initial_context

logger = logging.getLogger(__name__)


class BaseTrainer:
    """The life of a run. A method says how many views it needs and how it adapts to them."""

    branch = ""  # the method's own settings: cfg.TRAINER.<branch>

    @classmethod
    def extend_defaults(cls, cfg: CfgNode) -> None:
        """Adds the method's own settings to the defaults."""

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        """Refuses values of the method's own settings that cannot work."""

    def __init__(self, cfg: CfgNode) -> None:
        self.cfg = cfg
        self.ranks = Ranks()
        self.device = pick_device(cfg.DEVICE)
        self.precision = resolve_precision(cfg.MODEL.PREC, self.device)

    @property
    def views(self) -> int:
        """How many views of each image the method looks at."""
        return self.cfg.TTA.VIEWS

    def adapt(self, views: Tensor) -> Adapted:
        """Predictions for B images, given as unit view features (B, V, d), each image on its own."""
        raise TypeError(f"{type(self).__name__} does not say how it adapts")

    @explaining_faults()
    def run(self, train: bool = True) -> dict:
        """The whole life: returns the results, whether computed now or found finished."""
        self.build_data()
        self.folder = RunFolder(run_path(self.cfg))
        self.fingerprint = self.make_fingerprint()
        results = self.finished()
        if results is None:
            with self.folder.owned(self.ranks, self.fingerprint, self.cfg.dump()):
                self.build_model()
                if train:
                    self.train()
                self.predict()
                results = self.test()
        logger.info("results in %s", self.folder.path)
        return results

    def finished(self) -> dict | None:
        """The results of a run that is already done; its figures are computed again if others are asked for."""
        results = self.folder.results()
        if results is None:
            return None
        check_same(self.fingerprint, results["fingerprint"], self.folder.path)
        if self.ranks.first:
            self.folder.tidy()
        if (results["bins"], "sals_ece" in results) == (self.cfg.TEST.BINS, self.cfg.TEST.SALS):
            logger.info("finished before; nothing to compute")
            return results
        logger.info("the predictions are there; only the figures are computed again")
        kept = {key: value for key, value in results.items() if not key.startswith("sals_")}
        results = {**kept, **self.figures(self.folder.predictions())}
        if self.ranks.first:
            self.folder.write_config(self.cfg.dump())
            self.folder.finish(results)
        return results

    def build_data(self) -> None:
        cfg = self.cfg
        if not cfg.DATASET.NAME:
            raise DataError("no data set given: use --dataset-config-file configs/datasets/<name>.yaml")
        self.dataset = build_dataset(
            cfg.DATASET.NAME, cfg.DATASET.ROOT, cfg.DATASET.NUM_SHOTS, cfg.SEED, cfg.DATASET.SUBSAMPLE_CLASSES
        )
        self.items = getattr(self.dataset, cfg.TEST.SPLIT)
        total = len(self.items)
        if total == 0:
            raise DataError(f"{cfg.DATASET.NAME} has no {cfg.TEST.SPLIT} images")
        self.dataset.check_files(self.items)
        wanted = min(cfg.TEST.LIMIT or total, total)
        self.indices = [i * total // wanted for i in range(wanted)]  # spread evenly over the set
        classes = len(self.dataset.classnames)
        logger.info("%s: %d of %d %s images, %d classes", cfg.DATASET.NAME, wanted, total, cfg.TEST.SPLIT, classes)

    def make_fingerprint(self) -> dict:
        """What a continued run must share with the one that was begun."""
        return make_fingerprint(
            self.cfg, self.branch,
            data=self.dataset.fingerprint([self.items[i] for i in self.indices]),
            weights=weights_hash(*backbone_settings(self.cfg)),
            prompt=prompt_hash(self.cfg.MODEL.INIT_WEIGHTS) if self.cfg.MODEL.INIT_WEIGHTS else "",
            precision=self.precision,
        )

    def build_model(self) -> None:
        name, *variant = backbone_settings(self.cfg)
        self.use_model(load_clip(name, self.device, *variant), self.dataset.classnames)
        logger.info("%s on %s in %s", self.cfg.MODEL.BACKBONE.NAME, self.device, self.precision)

    def use_model(self, model: CLIP, classnames: Sequence[str]) -> None:
        """Sets up prediction with a loaded model: the initial prompt and the text tower for these classes."""
        size = model.visual.input_resolution
        if self.cfg.INPUT.SIZE not in (0, size):
            given = self.cfg.INPUT.SIZE
            raise ConfigError(f"INPUT.SIZE is {given}, but this backbone takes {size} pixels: leave it at 0")
        self.model = model
        self.scale = model.logit_scale.exp().detach()
        tokens = class_tokens(classnames)
        if self.cfg.MODEL.INIT_WEIGHTS:
            context = load_context(self.cfg.MODEL.INIT_WEIGHTS, model, tokens)
        else:
            context = initial_context(model, self.cfg.PROMPT.CTX_INIT)
        check_lengths(classnames, tokens, context.shape[-2], model.context_length)
        self.prompt = InitialPrompt(ClassTowers(model, tokens, self.precision), context)

    def train(self) -> None:
        """Test-time methods have nothing to train beforehand."""

    def predict(self) -> None:
        """Predicts the images that no finished part holds, part by part; each rank takes its share of the parts."""
        cfg = self.cfg
        progress = Progress(self.folder.path, len(self.indices), cfg.TEST.BINS, cfg.TRAINER.NAME, self.ranks.first)
        with progress:
            missing = []
            for part in chunks(self.indices, cfg.TEST.PART):
                columns = self.folder.read_part(part)
                if columns is None:
                    missing.append(part)
                else:
                    progress.remember(columns)
            mine = self.ranks.share(missing)
            # A batch never reaches beyond its part, so that a continued run computes the very same batches.
            features = self.find_features(mine).batches(mine, cfg.TTA.EPISODES)
            for part in mine:
                rows = []
                for _ in chunks(part, cfg.TTA.EPISODES):
                    started = time.perf_counter()
                    columns = self.predict_batch(next(features))
                    columns["seconds"] = np.array([time.perf_counter() - started])
                    progress.advance(columns)
                    rows.append(columns)
                columns = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
                self.folder.write_part(part, columns)
                progress.log(columns)
        self.ranks.meet()

    def view_features(self, count: int) -> ViewFeatures:
        """Where features of `count` views an image come from."""
        cfg = self.cfg
        augmix = self.dataset.augmix if cfg.TTA.AUGMIX == "auto" else cfg.TTA.AUGMIX == "on"
        maker = ViewMaker(count, self.model.visual.input_resolution, augmix, cfg.SEED)
        dtype = "fp32" if self.precision == "fp32" else "fp16"
        cache = ArrayCache(cfg.CACHE.DIR, "views", {
            "data": self.fingerprint["data"], "weights": self.fingerprint["weights"], **asdict(maker),
            "precision": self.precision, "dtype": dtype, "engine": ENGINE,
        }) if cfg.CACHE.DIR else None
        return ViewFeatures(
            self.model, self.dataset, self.items, maker, self.precision, cfg.DATALOADER.NUM_WORKERS,
            cfg.DATALOADER.ON_BAD_IMAGE == "skip", cache, dtype,
        )

    def find_features(self, parts: Sequence[Sequence[int]]) -> ViewFeatures:
        """The features this method needs. The plain view is also the first of many: where those are cached whole,
        no image has to be touched for it."""
        if self.views == 1 and self.cfg.CACHE.DIR:
            many = self.view_features(self.cfg.TTA.VIEWS)
            if all(map(many.stored, parts)):
                return many
        return self.view_features(self.views)

    def predict_batch(self, batch: FeatureBatch) -> dict[str, np.ndarray]:
        """The rows of a batch."""
        index, bad = batch.index, batch.bad
        adapted = self.adapt(batch.views) if index else Adapted.none(len(self.dataset.classnames))
        adapted = adapted.with_fallback([self.items[i].impath for i in index])
        columns = {
            "logits": adapted.logits, "zero_shot_logits": adapted.zero_shot_logits, "flagged": adapted.flagged,
            "loss": adapted.loss, "penalty": adapted.penalty,
        }
        return {
            "index": np.array(index, dtype=np.int64),
            "label": np.array([self.items[i].label for i in index], dtype=np.int64),
            **{name: column.cpu().numpy() for name, column in columns.items()},
            "bad_index": np.array(list(bad), dtype=np.int64),
            "bad_reason": np.array(list(bad.values()), dtype=np.str_),
        }

    def test(self) -> dict:
        """The first rank joins all parts, measures them, and marks the run as finished."""
        return self.ranks.agree(self.conclude() if self.ranks.first else None)

    def conclude(self) -> dict:
        cfg = self.cfg
        columns = self.folder.gather(chunks(self.indices, cfg.TEST.PART))
        n = len(columns["index"])
        if n == 0:
            raise DataError("no test image could be read")
        seconds = float(columns["seconds"].sum())
        results = {
            "trainer": cfg.TRAINER.NAME, "dataset": cfg.DATASET.NAME, "backbone": cfg.MODEL.BACKBONE.NAME,
            "seed": cfg.SEED, "n": n, "classes": len(self.dataset.classnames), "split": cfg.TEST.SPLIT,
            **self.figures(columns),
            "flagged": int(columns["flagged"].sum()),
            "skipped": columns["bad_reason"].tolist(),
            "seconds": seconds, "seconds_per_image": seconds / n, "finished": now(),
            "data_hash": self.fingerprint["data"], "weights_hash": self.fingerprint["weights"],
            "precision": self.precision, **self.facts(), **environment(self.device),
            "classnames": self.dataset.classnames, "fingerprint": self.fingerprint,
        }
        similarity = (self.prompt.text @ self.prompt.text.T).cpu().numpy()
        write_final(self.folder.path, self.fingerprint, results, columns, similarity)
        self.folder.finish(results)
        return results

    def facts(self) -> dict:
        """What else belongs in results.json: the prompt that the run began with, and what a method adds."""
        return {"init_weights": self.cfg.MODEL.INIT_WEIGHTS, "init_weights_hash": self.fingerprint["prompt"]}

    def figures(self, predictions: dict[str, np.ndarray]) -> dict:
        bins, with_sals = self.cfg.TEST.BINS, self.cfg.TEST.SALS
        return {**summarise(predictions, bins, with_sals), "bins": bins}


def backbone_settings(cfg: CfgNode) -> tuple[str, str, int]:
    """Which backbone, and how its file is read."""
    return cfg.MODEL.BACKBONE.NAME, cfg.MODEL.ACTIVATION, cfg.MODEL.HEAD_WIDTH


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
