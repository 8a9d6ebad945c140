"""The shared base trainer: build data, build model, train, predict, test. Nothing here knows a method."""
from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from ..datasets import Dataset, build_dataset
from ..datasets.base import run_name
from ..datasets.utils.errors import ConfigError, DataError, explaining_faults
from .config.fingerprint import check_same, make_fingerprint, run_path
from .engine.adapted import Adapted
from .engine.dist import Distributed
from .engine.jacobian_cache import build_jacobian
from .engine.parts import evenly
from .evaluation import Evaluation
from .registry import LAST
from .runs.environment import environment
from .runs.log import early_lines
from .runs.run_dir import RunDir
from .runs.summary import result_block, summarise
from .runs.tensorboard import Draw, write_final
from .vlm.backbone import Backbone
from .vlm.loading import as_backbone, load_clip, pick_device, weights_hash
from .vlm.numerics import fixed_numerics, resolve_precision
from .vlm.openai_clip import CLIP
from .vlm.openai_weights import warn_of_small
from .vlm.prompt_files import load_context, prompt_hash
from .vlm.prompts import (
    END,
    ClassTokenPosition,
    check_lengths,
    class_tokens,
    initial_context,
    warn_of_classes,
)
from .vlm.text_encoder import InitialPrompt, TextEncoder

logger = logging.getLogger(__name__)


class BaseTrainer(Evaluation):
    """The life of a run. A method says how many views it needs and how it adapts to them."""

    label = ""  # on paper; "" = the class's name
    colour = ""  # in figures; "" = a spare one
    marker = "v"
    display_order = LAST  # place in lists of methods, lowest first
    tuned = True  # adapts to test images
    tunes_context = False  # by gradients, so a Jacobian may pay
    own_views = False  # its yaml stands above the data set's: it wants the same views everywhere
    trained = False  # learns from labelled images first
    online = False  # carries state from image to image
    takes_regularisers = False  # knows what to do with TRAINER.REGULARISERS
    takes_templates = False  # knows what to do with PROMPT.TEMPLATE
    log_name = "log.txt"  # in the run folder; "" where somebody else writes one

    @classmethod
    def extend_defaults(cls, cfg: CfgNode) -> None:
        """Adds the method's own settings to the defaults."""

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        """Refuses values of the method's own settings that cannot work."""

    def __init__(self, cfg: CfgNode) -> None:
        self.cfg = cfg
        self.draw: Draw | None = None
        self.dist = Distributed()
        self.device = pick_device(cfg.DEVICE)
        self.precision = resolve_precision(cfg.MODEL.PREC, self.device)

    @property
    def position(self) -> str:
        """Where the class name stands in the prompt. CoOp's setting, for every method that may start from its
        prompts."""
        return self.cfg.TRAINER.COOP.CLASS_TOKEN_POSITION

    @property
    def views(self) -> int:
        """How many views of each image the method looks at."""
        return self.cfg.TTA.VIEWS

    def adapt(self, views: Tensor) -> Adapted:
        """Predictions for B images, given as unit view features (B, V, d), each image on its own."""
        raise TypeError(f"{type(self).__name__} does not say how it adapts")

    def carried(self) -> Mapping[str, Tensor]:
        """Online methods: all that the next prediction follows from besides its image, as tensors that are changed in
        place."""
        raise ConfigError(f"{type(self).__name__} is online but does not say what its state is: give it carried(), or "
                          f"both state() and load_state()")

    def state(self) -> Mapping[str, np.ndarray]:
        """Online methods: what is carried, as arrays, to be saved with each part."""
        return {name: tensor.cpu().numpy().copy() for name, tensor in self.carried().items()}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Online methods: goes back to a state that `state()` returned."""
        for name, tensor in self.carried().items():
            saved = torch.from_numpy(np.array(state[name]))
            if saved.shape != tensor.shape:
                raise ConfigError(
                    f"{type(self).__name__} carries '{name}' as {tuple(tensor.shape)}, and saved {tuple(saved.shape)}: "
                    "what carried() gives is changed in place and keeps its shape; else give state() and load_state()")
            tensor.copy_(saved)

    @explaining_faults()
    @fixed_numerics()
    def run(self, train: bool = True, draw: Draw | None = None) -> dict:
        """The whole life: returns the results, whether computed now or found finished. `draw` adds pictures to the
        finished run's TensorBoard."""
        self.draw = draw
        with early_lines() as early:
            self.build_data()
            self.folder = RunDir(run_path(self.cfg), self.log_name)
            self.fingerprint = self.make_fingerprint()
            results = self.finished()
        if results is None:
            with self.folder.owned(self.dist, self.fingerprint, self.cfg.dump(), early):
                self.build_model()
                if train:
                    self.train()
                self.predict_images()
                results = self.test()
                if self.dist.is_main:
                    self.folder.note(result_block(results, train))
        logger.info("results in %s", self.folder.path)
        return results

    @explaining_faults()
    @fixed_numerics()
    def check(self) -> None:
        """Whether settings, data and model fit together. Writes nothing, the list of a few-shot sample neither, and
        computes nothing that only a run needs."""
        self.draw_no_shots()
        self.build_data()
        self.load_model()

    def draw_no_shots(self) -> None:
        """Takes the training images as they are: nothing is learnt here, so there need be none to draw shots from."""
        self.cfg = self.cfg.clone()
        self.cfg.defrost()
        self.cfg.DATASET.NUM_SHOTS = -1
        self.cfg.freeze()

    def finished(self) -> dict | None:
        """The results of a run that is already done; its figures are computed again if others are asked for."""
        results = self.folder.results()
        if results is None:
            return None
        check_same(self.fingerprint, results["fingerprint"], self.folder.path, finished=True)
        if self.dist.is_main:
            self.folder.tidy()
        if (results["bins"], "sals_ece" in results) == (self.cfg.TEST.BINS, self.cfg.TEST.SALS):
            logger.info("finished before; nothing to compute")
            return results
        logger.info("the predictions are there; only the figures are computed again")
        kept = {key: value for key, value in results.items() if not key.startswith("sals_")}
        results = {**kept, **self.figures(self.folder.predictions())}
        if self.dist.is_main:
            self.folder.write_config(self.cfg.dump())
            self.folder.finish(results)
        return results

    def build_data(self) -> None:
        cfg = self.cfg
        if not cfg.DATASET.NAME:
            raise DataError("no data set given: use --dataset-config-file configs/datasets/<name>.yaml")
        self.dataset = self.read_dataset()
        self.items = getattr(self.dataset, cfg.TEST.SPLIT)
        total = len(self.items)
        if total == 0:
            raise DataError(f"{cfg.DATASET.NAME} has no {cfg.TEST.SPLIT} images")
        self.dataset.check_files(self.items)
        self.indices = evenly(total, cfg.TEST.LIMIT)
        logger.info("%s: %d of %d %s images, %d classes", cfg.DATASET.NAME, len(self.indices), total, cfg.TEST.SPLIT,
                    len(self.dataset.classnames))

    def read_dataset(self) -> Dataset:
        cfg = self.cfg.DATASET
        return build_dataset(
            cfg.NAME, cfg.ROOT, cfg.NUM_SHOTS, self.cfg.SEED, cfg.SUBSAMPLE_CLASSES, cfg.FEWSHOT_DIR,
        )

    def make_fingerprint(self) -> dict:
        """What a continued run must share with the one that was begun."""
        return make_fingerprint(
            self.cfg,
            data=self.dataset.fingerprint([self.items[i] for i in self.indices]),
            weights=weights_hash(*backbone_settings(self.cfg)),
            prompt=prompt_hash(self.cfg.MODEL.INIT_WEIGHTS) if self.cfg.MODEL.INIT_WEIGHTS else "",
            precision=self.precision,
        )

    def load_model(self) -> None:
        name, *variant = backbone_settings(self.cfg)
        warn_of_small(name, self.cfg.DATASET.NAME)
        self.use_model(load_clip(name, self.device, *variant), self.dataset.classnames)
        logger.info("%s on %s in %s", self.cfg.MODEL.BACKBONE.NAME, self.device, self.precision)

    def build_model(self) -> None:
        self.load_model()
        if self.tunes_context and self.cfg.TTA.STEPS:
            facts = {"weights": self.fingerprint["weights"], "precision": self.precision}
            if self.position != END:
                facts["position"] = self.position
            self.prompt.jacobian = build_jacobian(
                self.cfg, self.prompt, len(self.indices), facts, self.dataset.classnames, self.dist,
            )

    def use_model(self, model: CLIP | Backbone, classnames: Sequence[str]) -> None:
        """Sets up prediction with a model from `load_clip`: the initial prompt and the text tower for these classes."""
        self.backbone = as_backbone(model).with_pixels(self.cfg.INPUT.PIXEL_MEAN, self.cfg.INPUT.PIXEL_STD)
        size = self.backbone.pixels.size
        if self.cfg.INPUT.SIZE not in (0, size):
            given = self.cfg.INPUT.SIZE
            raise ConfigError(f"INPUT.SIZE is {given}, but this backbone takes {size} pixels: leave it at 0")
        self.scale = self.backbone.logit_scale.exp().detach()
        tokens = class_tokens(classnames, self.backbone.tokenizer)
        if self.cfg.MODEL.INIT_WEIGHTS:
            context = load_context(self.cfg.MODEL.INIT_WEIGHTS, self.backbone, tokens, self.position)
        else:
            context = initial_context(self.backbone, self.cfg.PROMPT.CTX_INIT)
        check_lengths(classnames, tokens, context.shape[-2], self.backbone)
        warn_of_classes(classnames, tokens)
        position = ClassTokenPosition.find(self.position, classnames, self.backbone.tokenizer)
        self.prompt = InitialPrompt(TextEncoder(self.backbone, tokens, self.precision, position=position), context)

    def train(self) -> None:
        """Test-time methods have nothing to train beforehand."""

    def test(self) -> dict:
        """The first rank joins all parts, measures them, and marks the run as finished."""
        return self.dist.broadcast(self.conclude() if self.dist.is_main else None)

    def conclude(self) -> dict:
        cfg = self.cfg
        columns = self.folder.gather(self.parts, text=self.prompt.text.cpu().numpy())
        n = len(columns["index"])
        if n == 0:
            raise DataError("no test image could be read")
        seconds = float(columns["seconds"].sum())
        adapting = float(columns["adapt_seconds"].sum()) if "adapt_seconds" in columns else None
        results = {
            "trainer": cfg.TRAINER.NAME, "dataset": run_name(cfg.DATASET.NAME, cfg.DATASET.ROOT),
            "backbone": cfg.MODEL.BACKBONE.NAME,
            "seed": cfg.SEED, "n": n, "classes": len(self.dataset.classnames), "split": cfg.TEST.SPLIT,
            **self.figures(columns),
            "flagged": int(columns["flagged"].sum()),
            "skipped": columns["bad_reason"].tolist(),
            "seconds": seconds, "seconds_per_image": seconds / n, "finished": now(),
            "adapt_seconds_per_image": adapting and adapting / n,  # without reading and encoding images
            "predictions_bytes": (self.folder.path / "predictions.npz").stat().st_size,
            "data_hash": self.fingerprint["data"], "weights_hash": self.fingerprint["weights"],
            "precision": self.precision, "views": self.fingerprint["views"], **self.facts(), **environment(self.device),
            "classnames": self.dataset.classnames, "fingerprint": self.fingerprint,
        }
        write_final(self.folder.path, self.fingerprint, results, columns, self.draw)
        self.folder.finish(results)
        return results

    def facts(self) -> dict:
        """What else belongs in results.json: the prompt that the run began with, and what a method adds."""
        return {
            "init_weights": self.cfg.MODEL.INIT_WEIGHTS, "init_weights_hash": self.fingerprint["prompt"],
            "pixels": asdict(self.backbone.pixels),
        }

    def figures(self, predictions: dict[str, np.ndarray]) -> dict:
        bins, with_sals = self.cfg.TEST.BINS, self.cfg.TEST.SALS
        return {**summarise(predictions, bins, with_sals), "bins": bins}


def backbone_settings(cfg: CfgNode) -> tuple[str, str, int]:
    """Which backbone, and how its file is read."""
    return cfg.MODEL.BACKBONE.NAME, cfg.MODEL.ACTIVATION, cfg.MODEL.HEAD_WIDTH


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
