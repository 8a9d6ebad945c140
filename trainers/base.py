"""The base trainer: the life cycle of a run. Nothing here depends on a method."""
from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from ..datasets import DataOptions, Dataset, build_dataset
from ..datasets.eval_data import EvalData
from ..datasets.identity import ImageIdentity, identify, image_name
from ..datasets.image_index import ImageIndex
from ..datasets.streams import WINDOW, classes_in_window
from ..datasets.utils.errors import ConfigError, DataError, UserError, explaining_faults
from .config.run_folder import plugin_modules, results_name, run_path
from .config.settings import Setting, retag, tag_of
from .config.validation import parse_regularisers
from .engine.adapted import Adapted
from .engine.features import ViewStore
from .engine.jacobian_cache import build_jacobian
from .engine.predict import Predictor
from .registry import LAST, find_method
from .runs import make_record
from .runs.dist import Distributed
from .runs.record import RunRecord
from .runs.run_dir import AskedRun, Results, RunDir, early_lines, read_predictions
from .runs.summary import environment, metrics, result_block
from .runs.tensorboard import write_final
from .vlm.class_texts import ClassTexts
from .vlm.device import refuse_shared_gpu
from .vlm.jacobian import decide_jacobian
from .vlm.loading import as_backbone, load_clip, weights_hash
from .vlm.numerics import Numerics, fixed_numerics, resolve_precision
from .vlm.openai import warn_of_small
from .vlm.prompt_files import prompt_hash
from .vlm.prompted_clip import LoadedModel, PromptedCLIP
from .vlm.templates import find_templates

logger = logging.getLogger(__name__)


class BaseTrainer:
    """One run of a method on a data set, with Dassl's life cycle. A method defines `num_views` and `adapt`."""

    label = ""  # in tables and figures; "" = the class's name
    colour = ""  # in figures; "" = one of the spare colours
    marker = "v"
    display_order = LAST  # place in lists of methods, lowest first
    tuned = True  # adapts to test images
    tunes_context = False  # by gradients, so that a Jacobian may save time
    own_views = False  # its yaml overrides the data set's: it uses the same views everywhere
    trained = False  # learns from labelled images first
    online = False  # carries state from image to image
    takes_regularisers = False  # uses TRAINER.REGULARISERS
    settings: ClassVar[Sequence[Setting]] = ()  # its own, with keys relative to TRAINER.<NAME>
    choices: ClassVar[Mapping[str, Sequence[str]]] = {}  # allowed values of settings from extend_defaults

    learns = True  # a method that is trained learns its prompt in this run
    log_name = "log.txt"  # in the run directory; "" = none

    @classmethod
    def extend_defaults(cls, cfg: CfgNode) -> None:
        """Adds settings to the defaults, as methods written for version 1.0 do instead of `settings`."""

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        """Refuses combinations of settings that cannot work. Single values are checked by `settings`."""

    @classmethod
    def used_settings(cls, settings: Mapping[str, object]) -> Collection[str] | None:
        """The settings among TTA, OPTIM and TRAINER.REGULARISERS that its predictions depend on.

        None: all of them, or not known. The others are in no record and no label.
        """
        return None

    def __init__(
        self, cfg: CfgNode, dataset: Dataset | None = None, model: LoadedModel | None = None,
    ) -> None:
        """
        Args:
            cfg: The settings.
            dataset: Used instead of the one that `cfg` names.
            model: Used instead of the backbone that `cfg` names. With class names it is for images
                in memory, and there is no data set.
        """
        self.cfg = cfg
        self.given_dataset = dataset
        self.given_model = model
        self.numerics = Numerics.from_settings(cfg)
        self.dist = Distributed()
        if model is None:  # whoever gives a model has chosen its device
            refuse_shared_gpu(self.numerics.device, self.dist.world)

    @property
    def num_views(self) -> int:
        """How many views of each image the method uses."""
        return self.cfg.TTA.VIEWS

    def adapt(self, views: Tensor) -> Adapted:
        """Predictions for B images, given as unit view features (B, V, d), each image on its own; an online method's in
        their order."""
        raise TypeError(f"{type(self).__name__} does not define adapt()")

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Online methods: all that the next prediction depends on besides its image, as tensors that are updated in
        place and keep their shape."""
        raise ConfigError(f"{type(self).__name__} is online but does not declare its state: define state_tensors(), or "
                          f"both state() and load_state()")

    def state(self) -> Mapping[str, np.ndarray]:
        """Online methods: a copy of the state, to be saved with each part."""
        return {name: tensor.cpu().numpy().copy() for name, tensor in self.state_tensors().items()}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Online methods: restores a state that `state()` returned."""
        for name, tensor in self.state_tensors().items():
            saved = torch.from_numpy(np.array(state[name]))
            if saved.shape != tensor.shape:
                raise ConfigError(
                    f"{type(self).__name__} has state '{name}' of shape {tuple(tensor.shape)}, but "
                    f"{tuple(saved.shape)} was saved: update state_tensors() in place without changing shapes, or "
                    f"define state() and load_state()")
            tensor.copy_(saved)

    @explaining_faults()
    @fixed_numerics()
    def run(self, train: bool = True, overwrite: bool = False) -> Results:
        """The whole run, continued where it was interrupted. A finished run computes nothing.

        Args:
            train: Train a prompt first, where the method does.
            overwrite: Start again in a folder that holds another run.

        Returns:
            The content of results.json.
        """
        with early_lines() as lines:
            self.cfg = retag(self.cfg, self.tag_values(), self.learns)
            asked = self.asked_run(overwrite)
        with self.run_dir.open(asked, self.dist, lines) as run_dir:
            if run_dir.results is not None:
                results = self.update_metrics(run_dir.results)
            else:
                run_dir.decide(self.dist, jacobian=self.decide_jacobian())
                if train:
                    self.train()
                results = self.test()
                if self.dist.is_main:
                    self.report_changed_files()
                    if self.log_name:
                        run_dir.note(result_block(results, train))
        logger.info("results in %s", run_dir.path)
        return results

    def asked_run(self, overwrite: bool = False) -> AskedRun:
        """The run as its folder needs to know it."""
        return AskedRun(self.record, self.listing, self.cfg.dump(), overwrite, self.log_name)

    def tag_values(self) -> dict[str, object]:
        """What settings stand for in the name of the run's folder, known from data and prompt.

        A limit above the number of images has no effect, so no folder is named after it. The prompts
        of several seeds lie under the name of their protocol.
        """
        values: dict[str, object] = {"TEST.LIMIT": self.data.available}
        protocol = self.prompt_facts.protocol
        if protocol is not None:
            values["MODEL.INIT_WEIGHTS"] = protocol.tag
        return values

    def report_changed_files(self) -> None:
        """Weights and prompt were copied into memory: a file that was replaced since is not the one of the results."""
        if self.given_model is None:
            self.report_changed_file("weights", self.cfg.MODEL.BACKBONE.NAME, weights_hash, self.weights)
        if self.cfg.MODEL.INIT_WEIGHTS:
            self.report_changed_file("prompt", self.cfg.MODEL.INIT_WEIGHTS, prompt_hash, self.prompt_facts.hash)

    def report_changed_file(self, kind: str, name: str, hash_of: Callable[[str], str], before: str) -> None:
        try:
            now = hash_of(name)
        except (UserError, OSError) as error:
            logger.warning("%s cannot be read any more (%s); the results are of the %s as loaded at the run's start "
                           "(hash %s)", name, error, kind, before)
            return
        if now != before:
            logger.warning("%s has changed during the run; the results are of the %s as loaded at its start "
                           "(hash %s)", name, kind, before)

    @explaining_faults()
    @fixed_numerics()
    def check(self) -> None:
        """Checks that settings, data and model fit together. Writes nothing."""
        cfg = without_few_shot_sampling(self.cfg)
        checked = type(self)(cfg, self.given_dataset, self.given_model)
        checked.record  # noqa: B018 - reads the data
        checked.clip  # noqa: B018 - loads the model

    @cached_property
    def data(self) -> EvalData:
        """The images of the run."""
        cfg = self.cfg
        dataset = self.given_dataset
        if dataset is None:
            if not cfg.DATASET.NAME:
                raise DataError("no data set given: use --dataset-config-file configs/datasets/<name>.yaml")
            dataset = build_dataset(cfg.DATASET.NAME, cfg.DATASET.ROOT, DataOptions.from_settings(cfg))
        return EvalData.from_settings(cfg, dataset, self.online)

    @property
    def num_images(self) -> int:
        """The images of the run; 0 for images in memory, whose number is not known before."""
        if self.has_given_classes:
            return 0
        return len(self.data.indices)

    @property
    def has_given_classes(self) -> bool:
        """Whether images in memory are predicted, without a data set."""
        return self.given_model is not None and len(self.given_model.classnames) > 0

    @property
    def classnames(self) -> Sequence[str]:
        if self.given_model is not None and self.has_given_classes:
            return self.given_model.classnames
        return self.data.classnames

    @cached_property
    def identity(self) -> ImageIdentity:
        """What the images are, by content. The main process looks at the files."""
        data = self.data  # in every process, before the broadcast
        identities: list[ImageIdentity] = []
        if self.dist.is_main:
            index = ImageIndex(self.cfg.CACHE.DIR)
            identities.append(identify(data.dataset, data.items, data.indices, index))
        (identity,) = self.dist.broadcast(identities)
        if identity.missing:
            data.dataset.check_files(data.selected)
        return identity

    @property
    def listing(self) -> dict[str, np.ndarray]:
        """Position in the split, identity and label of each image."""
        labels = [item.label for item in self.data.selected]
        return {"index": np.array(self.data.indices, dtype=np.int64), "image": self.identity.digests,
                "label": np.array(labels, dtype=np.int64)}

    @cached_property
    def weights(self) -> str:
        """Hash of the backbone's weights."""
        if self.given_model is not None:
            return self.given_model.weights
        return weights_hash(self.cfg.MODEL.BACKBONE.NAME)

    @cached_property
    def prompt_facts(self) -> make_record.PromptFacts:
        """The prompt that the run starts from, by its content."""
        cfg = self.cfg
        if cfg.MODEL.INIT_WEIGHTS:
            return make_record.learnt_prompt(cfg, prompt_hash(cfg.MODEL.INIT_WEIGHTS))
        texts = self.texts
        if texts is None:
            return make_record.PromptFacts()
        digest = texts.descriptions.digest if texts.descriptions else ""
        return make_record.PromptFacts(hash=digest, templates=texts.templates)

    @cached_property
    def record(self) -> RunRecord:
        """What the predictions depend on. Made without the model, so that a finished run needs none."""
        cfg = self.cfg
        identity = self.identity
        dataset = self.data.dataset
        default_precision = resolve_precision("auto", self.numerics.device)
        training = self.training_facts()
        record = RunRecord(
            data=make_record.data_section(cfg, self.data, identity),
            views=make_record.views_section(cfg, dataset, self.num_views),
            model=make_record.model_section(cfg, self.weights, self.prompt_facts),
            method=make_record.method_section(cfg, self.code, self.online, training),
            numerics=make_record.numerics_section(
                cfg, self.numerics.precision, self.numerics.device.type, self.tunes_context),
            seed=cfg.SEED,
            changed=make_record.changed_section(cfg, dataset, default_precision, training is not None),
            names=make_record.names_section(cfg, self.prompt_facts),
        )
        return self.dist.broadcast(record)

    @cached_property
    def run_dir(self) -> RunDir:
        """The folder of the run. `run` opens it."""
        return RunDir(run_path(self.cfg), self.record)

    @property
    def code(self) -> list[type]:
        """The classes whose code makes the predictions: the method's, and those of added terms."""
        terms = [find_method(term) for term in parse_regularisers(self.cfg.TRAINER.REGULARISERS)]
        return [type(self), *(term for term in terms if term is not None)]

    def training_facts(self) -> dict[str, object] | None:
        """What a prompt that the run trains itself depends on; None if it trains none."""
        return None

    @cached_property
    def clip(self) -> PromptedCLIP:
        """The model with the class names and the prompt that all images start from."""
        return self.make_clip(self.load_model())

    def load_model(self) -> LoadedModel:
        """The model that was given, or the backbone and the classes that the settings name."""
        if self.given_model is not None:
            return self.given_model._replace(classnames=self.classnames)
        name = self.cfg.MODEL.BACKBONE.NAME
        warn_of_small(name, self.cfg.DATASET.NAME)
        loaded = load_clip(name, self.numerics.device, self.weights)
        logger.info("%s on %s in %s", name, self.numerics.device, self.numerics.precision)
        return LoadedModel(as_backbone(loaded), self.data.classnames)

    def make_clip(self, model: LoadedModel) -> PromptedCLIP:
        """The model with the initial prompt of the settings. Some methods make another one."""
        return PromptedCLIP.from_settings(
            self.cfg, model.backbone, model.classnames, self.numerics.precision, self.texts,
            prompt_hash=self.prompt_facts.hash if self.cfg.MODEL.INIT_WEIGHTS else "",
        )

    @cached_property
    def texts(self) -> ClassTexts | None:
        """Templates and descriptions in place of PROMPT.CTX_INIT; None = there are none."""
        template: str | None = None
        ensemble: Sequence[str] = ()
        if not self.has_given_classes:  # for images in memory there is no data set
            template = self.data.dataset.template
            ensemble = self.data.dataset.ensemble
        templates = find_templates(
            self.cfg.PROMPT.TEMPLATE, self.cfg.DATASET.NAME, template, ensemble)
        return ClassTexts.find(self.cfg.PROMPT, templates, self.classnames)

    def decide_jacobian(self) -> bool:
        """Whether gradients of the first step go through a Jacobian: by counts and settings alone.

        It is that of the initial context, so it does not serve where the context is carried.
        """
        if not self.tunes_context or not self.cfg.TTA.STEPS or self.online:
            return False
        return decide_jacobian(self.cfg, self.clip.shape, self.num_images)

    @property
    def uses_jacobian(self) -> bool:
        """What was decided for this run, before its first part. For images in memory: False."""
        if self.has_given_classes:
            return False
        return self.run_dir.record.numerics["jacobian"] is True

    def with_jacobian(self) -> PromptedCLIP:
        """The model with the Jacobian of its initial prompt, cached or computed."""
        key = {
            "weights": self.weights,
            "precision": self.numerics.precision,
            "device_type": self.numerics.device.type,
            "classnames": list(self.clip.classnames),
            "position": self.cfg.TRAINER.COOP.CLASS_TOKEN_POSITION,
            "engine": self.numerics.engine,
        }
        jacobian = build_jacobian(self.clip, self.cfg.CACHE.DIR, key, self.dist)
        return self.clip.with_jacobian(jacobian)

    def view_features(self) -> ViewStore:
        """The features of the views of each test image."""
        return ViewStore(self.cfg, self.record, self.data, self.identity, self.clip.backbone)

    def train(self) -> None:
        """Test-time methods have nothing to train."""

    def prepare(self) -> None:
        """Computes what all images share, in all processes of a run at the same time."""
        self.clip  # noqa: B018 - loads the model

    def test(self) -> Results:
        """Predicts all test images. The main process then joins the parts, measures them and finishes the run."""
        self.prepare()
        predictor = Predictor(self, self.run_dir)
        predictor.predict()
        return self.dist.broadcast(self.finish(predictor) if self.dist.is_main else {})

    def finish(self, predictor: Predictor) -> Results:
        """Writes predictions.npz, the final TensorBoard entries and results.json."""
        names = [image_name(self.data.dataset, item) for item in self.data.selected]
        images = {"index": self.listing["index"], "image": self.identity.digests, "cluster": self.identity.clusters,
                  "filename": np.array(names, dtype=np.str_)}
        columns = self.run_dir.merge(predictor.parts, images, text=self.clip.text.cpu().numpy())
        cfg, n = self.cfg, len(columns["index"])
        if n == 0:
            raise DataError("no test image could be read")
        seconds = float(columns["seconds"].sum())
        results = {
            "trainer": cfg.TRAINER.NAME, "dataset": results_name(cfg), "backbone": cfg.MODEL.BACKBONE.NAME,
            "seed": cfg.SEED, "tag": cfg.TAG, "n": n, "classes": len(self.classnames), "split": cfg.TEST.SPLIT,
            **metrics(columns, cfg.TEST.BINS),
            "flagged": int(columns["flagged"].sum()),
            "skipped": columns["bad_reason"].tolist(),
            "seconds": seconds, "seconds_per_image": seconds / n,
            "adapt_seconds_per_image": float(columns["adapt_seconds"].sum()) / n,  # without reading and encoding images
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "predictions_bytes": (self.run_dir.path / "predictions.npz").stat().st_size,
            "data_hash": self.record.data["images"], "weights_hash": self.weights,
            "precision": self.numerics.precision, "views": self.record.views["pipeline"],
            **self.metadata(), **environment(self.numerics.device),
            "classnames": list(self.classnames), "plugins": plugin_modules(cfg),
        }
        write_final(self.run_dir.path, self.run_dir.record, {**results, "record": self.run_dir.record.to_json()})
        return self.run_dir.finish(results, cfg.dump())

    def metadata(self) -> dict[str, object]:
        """What else belongs in results.json: the initial prompt, facts about the backbone, for online methods how many
        classes follow each other, and what a method adds."""
        labels = [self.data.items[index].label for index in self.data.order]
        start = self.cfg.MODEL.INIT_WEIGHTS
        return {
            "init_weights": start, "init_weights_hash": self.prompt_facts.hash if start else "",
            "pixels": asdict(self.clip.backbone.pixels), "architecture": self.clip.backbone.architecture,
            **(self.texts.metadata() if self.texts else {}),
            **({f"classes_in_{WINDOW}": classes_in_window(labels)} if self.online else {}),
        }

    def update_metrics(self, results: Results) -> Results:
        """The results of a finished run, measured again where TEST.BINS differs from what it has."""
        bins = self.cfg.TEST.BINS
        if results["bins"] == bins:
            logger.info("finished before; nothing to compute")
            return results
        logger.info("the predictions are there; only the metrics are computed again")
        measured = metrics(read_predictions(self.run_dir.path), bins)
        if self.dist.is_main:
            results = self.run_dir.write_results({**results, **measured})
        return self.dist.broadcast(results)


def without_few_shot_sampling(cfg: CfgNode) -> CfgNode:
    """The settings of a run that trains nothing: no few-shot sample is drawn, and none written."""
    tag_is_automatic = tag_of(cfg) == cfg.TAG
    cfg = cfg.clone()
    cfg.defrost()
    cfg.DATASET.NUM_SHOTS = -1
    if tag_is_automatic:
        cfg.TAG = tag_of(cfg)
    cfg.freeze()
    return cfg
