"""Implements the life cycle of a run, the same for all methods.

From top to bottom: what a method declares and defines, `run`, what the run is (data, record,
folder), the model, and the steps of the run.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from ..datasets import DataOptions, Dataset, build_dataset
from ..datasets.build import EvalData
from ..datasets.identity import ImageIdentity, identify
from ..datasets.image_index import ImageIndex
from ..datasets.selection import WINDOW, classes_in_window
from ..datasets.utils.cli import LOGGER
from ..datasets.utils.errors import ConfigError, DataError, UserError, explaining_faults
from ..datasets.views.kernel_cache import view_pipeline
from .config.build import parse_regularisers
from .config.settings import Setting, results_name, retag, run_path, tag_of
from .config.table import is_openai
from .engine.adapted import Adapted
from .engine.features import ViewStore
from .engine.predict import Predictor
from .registry import LAST, find_method
from .runs.dist import Distributed
from .runs.make_record import PromptFacts, RunFacts, learnt_prompt, make_record
from .runs.record import RunRecord
from .runs.run_dir import AskedRun, Results, RunDir, read_predictions
from .runs.summary import environment, metrics, plugin_modules, result_block, summarise
from .runs.tensorboard import write_final, write_other_bins
from .vlm.class_texts import ClassTexts, find_templates
from .vlm.loading import load_backbone, warn_of_small, weights_hash
from .vlm.numerics import (
    BF16_WARNING,
    Numerics,
    fixed_numerics,
    refuse_shared_gpu,
    reset_peak_memory,
)
from .vlm.prompt_files import prompt_file, prompt_hash
from .vlm.prompted_clip import LoadedModel, PromptedCLIP

logger = logging.getLogger(__name__)


class BaseTrainer:
    """One run of a method on a data set, with Dassl's life cycle.

    A method defines `adapt`, and `num_views` if it does not use TTA.VIEWS.
    """

    label = ""  # name in tables and figures; "" = the class's name
    colour = ""  # colour in figures; "" = one of the spare colours
    marker = "v"  # marker in figures
    display_order = LAST  # place in lists of methods, lowest first
    tuned = True  # adapts to test images
    tunes_context = False  # tunes the context by gradients, so that a Jacobian may save time
    own_views = False  # its yaml overrides the data set's: it uses the same views everywhere
    trained = False  # learns from labelled images first
    online = False  # carries state from image to image
    takes_regularisers = False  # uses TRAINER.REGULARISERS
    # The settings of the method, with keys relative to TRAINER.<NAME>.
    settings: ClassVar[Sequence[Setting]] = ()
    # Allowed values of settings from extend_defaults.
    choices: ClassVar[Mapping[str, Sequence[str]]] = {}

    learns = True  # a method that is trained learns its prompt in this run
    log_name = "log.txt"  # file in the folder of the run; "" = none

    # What a method defines.

    @classmethod
    def extend_defaults(cls, cfg: CfgNode) -> None:
        """Adds settings to the defaults, as methods for version 1.0 do instead of `settings`."""

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        """Refuses combinations of settings that cannot work. `settings` checks single values."""

    @classmethod
    def used_settings(cls, settings: Mapping[str, object]) -> Collection[str] | None:
        """Returns the settings of TTA, OPTIM and TRAINER.REGULARISERS that predictions depend on.

        None means all of them, or not known. The others are in no record and no label.

        Args:
            settings: The values of all settings by their full keys.
        """
        return None

    def __init__(
        self, cfg: CfgNode, dataset: Dataset | None = None, model: LoadedModel | None = None,
    ) -> None:
        """
        Args:
            cfg: The settings.
            dataset: A data set that is used instead of the one that `cfg` names; None = that one.
            model: A model that is used instead of the backbone that `cfg` names; None = that one.
                With class names it is for images in memory, and there is no data set.
        """
        self.cfg = cfg
        self.given_dataset = dataset
        self.given_model = model
        self.dist = Distributed()
        self.numerics = Numerics.from_settings(cfg)
        reset_peak_memory(self.numerics.device)  # an earlier run in this process has its own peak
        if model is None:  # a given model is on its device already
            refuse_shared_gpu(self.numerics.device, self.dist.world)

    def set_known_hashes(self, weights: str, identity: ImageIdentity | None = None) -> None:
        """Sets hashes that are known already, so that the run does not read the same files again.

        Args:
            weights: Hash of the backbone's weights.
            identity: Content hashes of the images of the run; None if they are not known yet.
        """
        self.weights = weights
        if identity is not None:
            self.identity = identity

    @property
    def num_views(self) -> int:
        """Number of views of each image that the method uses."""
        return self.cfg.TTA.VIEWS

    def adapt(self, views: Tensor) -> Adapted:
        """Predicts B images: each on its own, or one after the other if the method is online.

        Args:
            views: Unit view features (B, V, d), view 0 the plain one.

        Returns:
            The logits of the B images, before and after adaptation.
        """
        raise TypeError(f"{type(self).__name__} does not define adapt()")

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Returns the state of an online method: all that the next prediction depends on besides
        its image.

        The method updates the tensors in place and keeps their shapes.
        """
        raise ConfigError(f"{type(self).__name__} is online but does not declare its state: define "
                          f"state_tensors(), or both state() and load_state()")

    def state(self) -> Mapping[str, np.ndarray]:
        """Returns a copy of the state of an online method, to be saved with each part."""
        state = {}
        for name, tensor in self.state_tensors().items():
            state[name] = tensor.cpu().numpy().copy()
        return state

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a state of an online method that `state()` returned."""
        for name, tensor in self.state_tensors().items():
            saved = torch.from_numpy(np.array(state[name]))
            if saved.shape != tensor.shape:
                raise ConfigError(
                    f"{type(self).__name__} has state '{name}' of shape {tuple(tensor.shape)}, but "
                    f"{tuple(saved.shape)} was saved: update state_tensors() in place without "
                    f"changing shapes, or define state() and load_state()")
            tensor.copy_(saved)

    # The run.

    @explaining_faults()
    @fixed_numerics()
    def run(self, train: bool = True, overwrite: bool = False) -> Results:
        """Makes the whole run, or continues it where it was interrupted.

        A finished run computes nothing.

        Args:
            train: Whether a method that learns from labelled images trains its prompt first.
            overwrite: Whether the run starts again in a folder that holds another run.

        Returns:
            The content of results.json.
        """
        # The folder is named after settings that only data and prompt tell. What is logged while
        # these are read goes to the log in the folder later.
        with early_lines() as lines:
            self.cfg = retag(self.cfg, self.tag_values(), self.learns)
            refuse_cache_in_run(self.cfg.CACHE.DIR, run_path(self.cfg))
            for folder in (run_path(self.cfg), self.cfg.CACHE.DIR):
                refuse_among_classes(folder, self.data.dataset)
            if overwrite:
                refuse_prompt_in_run(self.cfg.MODEL.INIT_WEIGHTS, run_path(self.cfg))
            asked = self.asked_run(overwrite)
        if overwrite:
            self.clip  # noqa: B018 - a run that cannot start must not remove another one
        with self.run_dir.open(asked, self.dist, lines) as run_dir:
            if run_dir.results is not None:
                results = self.update_metrics(run_dir.results)
            else:
                if train:
                    self.train()
                results = self.test()
                if self.dist.is_main:
                    self.report_changed_files()
                    if self.log_name:
                        run_dir.note(result_block(results, trained=train))
        logger.info("results in %s", run_dir.path)
        return results

    def asked_run(self, overwrite: bool = False) -> AskedRun:
        """Returns what the content of the run's folder is compared with, for `RunDir.open`."""
        listing = self.listing
        return AskedRun(self.record, listing, self.cfg.dump(), overwrite, self.log_name)

    def tag_values(self) -> dict[str, object]:
        """Returns what settings stand for in the name of the run's folder, by key.

        A limit above the number of images has no effect, so no folder is named after it. The
        prompts of several seeds lie under the name of their protocol.
        """
        values: dict[str, object] = {}
        protocol = self.prompt_facts.protocol
        if protocol is not None:
            values["MODEL.INIT_WEIGHTS"] = protocol.tag
        values.update(self.backbone_pixels)
        values["TEST.LIMIT"] = self.data.available
        return values

    def report_changed_files(self) -> None:
        """Warns of weights and prompts that were replaced during the run.

        Both were copied into memory, so the files are no longer those of the results.
        """
        cfg = self.cfg
        if self.given_model is None:
            warn_if_changed("weights", cfg.MODEL.BACKBONE.NAME, weights_hash, self.weights)
        if cfg.MODEL.INIT_WEIGHTS:
            warn_if_changed("prompt", cfg.MODEL.INIT_WEIGHTS, prompt_hash, self.prompt_facts.hash)

    @explaining_faults()
    @fixed_numerics()
    def check(self) -> None:
        """Checks that settings, data and model fit together. Writes nothing."""
        # Drawing a few-shot sample would write it to the data root.
        cfg = without_few_shot_sampling(self.cfg)
        checked = type(self)(cfg, self.given_dataset, self.given_model)
        checked.record  # noqa: B018 - reads the data
        checked.clip  # noqa: B018 - loads the model

    # What the run is: the images and their identity, weights and prompt by their hashes, the record
    # of all that, and the folder. Each is computed on first use. They need no model
    # (`backbone_pixels` is an exception), so a finished run is recognised without it.

    @cached_property
    def data(self) -> EvalData:
        """The images of the run."""
        cfg = self.cfg
        dataset = self.given_dataset
        if dataset is None:
            if not cfg.DATASET.NAME:
                raise DataError("no data set given: use --dataset-config-file NAME, such as dtd, "
                                "or landcover, which needs no data")
            options = DataOptions.from_settings(cfg)
            dataset = build_dataset(cfg.DATASET.NAME, cfg.DATASET.ROOT, options)
        return EvalData.from_settings(cfg, dataset, self.online)

    @property
    def num_images(self) -> int:
        """Number of images of the run; 0 for images in memory, whose number is not known before."""
        if self.given_classes:
            return 0
        return len(self.data.indices)

    @property
    def given_classes(self) -> Sequence[str]:
        """Class names that were given with the model, for images in memory; empty for a data set.
        """
        if self.given_model is None:
            return ()
        return self.given_model.classnames

    @property
    def classnames(self) -> Sequence[str]:
        """Names of the K classes: those that were given with the model, or those of the data set.
        """
        return self.given_classes or self.data.classnames

    @cached_property
    def identity(self) -> ImageIdentity:
        """Content hashes of the images. The main process reads the files."""
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
        return {
            "index": np.array(self.data.indices, dtype=np.int64),
            "image": self.identity.digests,
            "label": np.array(labels, dtype=np.int64),
        }

    @cached_property
    def weights(self) -> str:
        """Hash of the backbone's weights."""
        if self.given_model is not None:
            return self.given_model.weights
        return weights_hash(self.cfg.MODEL.BACKBONE.NAME)

    @cached_property
    def prompt_facts(self) -> PromptFacts:
        """The prompt that the run starts from, by its content."""
        cfg = self.cfg
        if cfg.MODEL.INIT_WEIGHTS:
            return learnt_prompt(cfg, prompt_hash(cfg.MODEL.INIT_WEIGHTS))
        texts = self.texts
        if texts is None:
            return PromptFacts()
        descriptions = texts.descriptions
        if descriptions is None:
            return PromptFacts(templates=texts.templates)
        return PromptFacts(
            hash=descriptions.digest, templates=texts.templates, form=descriptions.form)

    @cached_property
    def record(self) -> RunRecord:
        """The record, which states what the predictions depend on.

        It is made without the model, so that a finished run needs none.
        """
        facts = RunFacts(
            cfg=self.cfg,
            data=self.data,
            identity=self.identity,
            num_views=self.num_views,
            pixels=self.backbone_pixels,
            prompt=self.prompt_facts,
            source_classes=self.source_classes,
            online=self.online,
            tunes_context=self.tunes_context,
            training=self.training_facts(),
            weights=self.weights,
            numerics=self.numerics,
            pipeline=view_pipeline(),
        )
        return self.dist.broadcast(make_record(facts))

    @property
    def backbone_pixels(self) -> dict[str, list[float]]:
        """The backbone's own normalisation, if the settings give one to compare with it; else {}.

        INPUT.PIXEL_MEAN and INPUT.PIXEL_STD with the backbone's own numbers count as unset. The
        numbers of OpenAI's models are known without the model; for others it is loaded.
        """
        is_given = self.cfg.INPUT.PIXEL_MEAN or self.cfg.INPUT.PIXEL_STD
        if not is_given or is_openai({"MODEL.BACKBONE.NAME": self.cfg.MODEL.BACKBONE.NAME}):
            return {}
        pixels = self.loaded_model.backbone.pixels
        return {"INPUT.PIXEL_MEAN": list(pixels.mean), "INPUT.PIXEL_STD": list(pixels.std)}

    @cached_property
    def run_dir(self) -> RunDir:
        """The folder of the run. `run` opens it."""
        return RunDir(run_path(self.cfg), self.record)

    @property
    def source_classes(self) -> list[type]:
        """The classes whose code makes the predictions: the method's, and those of added terms."""
        classes: list[type] = [type(self)]
        for term in parse_regularisers(self.cfg.TRAINER.REGULARISERS):
            method = find_method(term)
            if method is not None:
                classes.append(method)
        return classes

    def training_facts(self) -> dict[str, object] | None:
        """Returns what a prompt that the run trains itself depends on; None if it trains none."""
        return None

    # The model.

    @cached_property
    def clip(self) -> PromptedCLIP:
        """The model with the class names and the prompt that all images start from."""
        clip = self.make_clip(self.loaded_model)
        self.check_clip(clip)
        return clip

    @cached_property
    def loaded_model(self) -> LoadedModel:
        """The model that was given, or the backbone and the classes that the settings name."""
        if self.given_model is not None:
            return self.given_model._replace(classnames=self.classnames)
        name = self.cfg.MODEL.BACKBONE.NAME
        backbone = load_backbone(name, self.numerics.device, self.weights)
        logger.info("%s on %s in %s", name, self.numerics.device, self.numerics.precision)
        warn_of_small(name, self.cfg.DATASET.NAME)
        if self.numerics.precision == "bf16":
            logger.warning(BF16_WARNING)
        return LoadedModel(backbone, self.classnames)

    def make_clip(self, model: LoadedModel) -> PromptedCLIP:
        """Builds the model with the initial prompt of the settings. Some methods make another one.
        """
        return PromptedCLIP.from_settings(
            self.cfg, model.backbone, model.classnames, self.numerics.precision, self.texts,
            prompt_hash=self.prompt_facts.hash if self.cfg.MODEL.INIT_WEIGHTS else "",
        )

    def check_clip(self, clip: PromptedCLIP) -> None:
        """Warns where a method cannot do its work with a model and its classes."""

    @cached_property
    def texts(self) -> ClassTexts | None:
        """Templates and descriptions in place of PROMPT.CTX_INIT; None = there are none."""
        if not self.cfg.PROMPT.TEMPLATE and not self.cfg.PROMPT.DESCRIPTIONS:
            return None
        template: str | None = None
        ensemble: Sequence[str] = ()
        if not self.given_classes:  # for images in memory there is no data set
            template = self.data.dataset.template
            ensemble = self.data.dataset.ensemble
        templates = find_templates(
            self.cfg.PROMPT.TEMPLATE, self.cfg.DATASET.NAME, template, ensemble)
        return ClassTexts.find(self.cfg.PROMPT, templates, self.classnames)

    def view_features(self) -> ViewStore:
        """Returns the store of the view features of the test images."""
        return ViewStore(self.cfg, self.record, self.data, self.identity, self.clip)

    # The steps of a run.

    def train(self) -> None:
        """Trains the prompt. Test-time methods have nothing to train."""

    def prepare(self) -> None:
        """Computes what all images share, in all processes of a run at the same time.

        Decisions about numerics are recorded here, before the first part.
        """
        self.run_dir.decide(self.dist, jacobian=False)
        self.clip  # noqa: B018 - loads the model

    def test(self) -> Results:
        """Predicts all test images. The main process then measures them and finishes the run."""
        features = self.view_features()
        self.prepare()
        predictor = Predictor(self, features, self.run_dir)
        predictor.predict()
        results: Results = {}
        if self.dist.is_main:
            results = self.finish(predictor)
        return self.dist.broadcast(results)

    def finish(self, predictor: Predictor) -> Results:
        """Writes predictions.npz, results.json and the final TensorBoard entries.

        They are written in this order, because a run is done when its results.json is there. A run
        that is killed before is finished from its parts.

        Args:
            predictor: The predictor, which has predicted all parts.

        Returns:
            The content of results.json.
        """
        run_dir = self.run_dir
        images = self.image_columns()
        facts = self.result_fields()
        columns = run_dir.merge(predictor.parts, images, text=self.clip.text.cpu().numpy())
        if len(columns["index"]) == 0:
            raise DataError("no test image could be read")
        results = {
            **facts,
            "plugins": plugin_modules(self.cfg),
            **environment(self.numerics.device, self.numerics.device_name),
            **summarise(columns, self.cfg.TEST.BINS),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "predictions_bytes": (run_dir.path / "predictions.npz").stat().st_size,
        }
        results = run_dir.finish(results, self.cfg.dump())  # it adds the hashes of the files
        write_final(run_dir.path, run_dir.record, results)
        return results

    def image_columns(self) -> dict[str, np.ndarray]:
        """Returns the columns of predictions.npz that say which images these are."""
        return {
            "index": self.listing["index"],
            "image": self.identity.digests,
            "cluster": self.identity.clusters,
            "filename": np.array(self.identity.names, dtype=np.str_),
        }

    def result_fields(self) -> dict[str, object]:
        """Returns what results.json says of the run besides its predictions."""
        cfg = self.cfg
        # The settings have no name for a data set that was given as an object of a class that is
        # not registered; the record has.
        dataset = results_name(cfg) or self.record.data["dataset"]
        return {
            "trainer": cfg.TRAINER.NAME,
            "dataset": dataset,
            "backbone": cfg.MODEL.BACKBONE.NAME,
            "seed": cfg.SEED,
            "tag": cfg.TAG,
            "classes": len(self.data.classnames),
            "split": cfg.TEST.SPLIT,
            "data_hash": self.record.data["images"],
            "weights_hash": self.weights,
            "precision": self.numerics.precision,
            "views": self.record.views["pipeline"],  # not their number, which config.yaml has
            **self.metadata(),
            "classnames": list(self.data.classnames),
        }

    def metadata(self) -> dict[str, object]:
        """Returns facts for results.json: prompt, backbone, stream, and what a method adds."""
        start = self.cfg.MODEL.INIT_WEIGHTS
        backbone = self.clip.backbone
        metadata: dict[str, object] = {
            "init_weights": start,
            "init_weights_hash": self.prompt_facts.hash if start else "",
            "pixels": asdict(backbone.pixels),
            "architecture": backbone.architecture,
        }
        if self.texts is not None:
            metadata.update(self.texts.metadata())
        if self.online:
            labels = [self.data.items[index].label for index in self.data.order]
            metadata[f"classes_in_{WINDOW}"] = classes_in_window(labels)
            if "reset" in self.record.method["stream"]:
                metadata["reset"] = self.cfg.TTA.RESET
        return metadata

    def update_metrics(self, results: Results) -> Results:
        """Returns the results of a finished run, measured again if TEST.BINS has changed."""
        bins = self.cfg.TEST.BINS
        if results["bins"] == bins:
            logger.info("finished before; nothing to compute")
            return results
        logger.info("the predictions are there; only the metrics are computed again")
        if self.dist.is_main:
            measured = metrics(read_predictions(self.run_dir.path), bins)
            results = self.run_dir.write_results({**results, **measured})
            write_other_bins(self.run_dir.path, results)
            if self.log_name:
                self.run_dir.note(result_block(results, self.learns))
        return self.dist.broadcast(results)


@contextmanager
def early_lines() -> Iterator[list[logging.LogRecord]]:
    """Collects log lines while a run has no folder yet."""
    # A level that no line has: the handler never passes them on by itself.
    handler = MemoryHandler(capacity=10_000, flushLevel=logging.CRITICAL + 1)
    LOGGER.addHandler(handler)
    try:
        yield handler.buffer
    finally:
        LOGGER.removeHandler(handler)


def warn_if_changed(kind: str, name: str, hash_of: Callable[[str], str], before: str) -> None:
    """Warns if a file is no longer the one that a run has loaded, or cannot be read any more.

    Args:
        kind: A word for the content of the file, such as "weights".
        name: Name of the file or of the backbone.
        hash_of: A function that returns the hash of the content for the name.
        before: The hash at the start of the run.
    """
    try:
        now = hash_of(name)
    except (UserError, OSError) as error:
        logger.warning(
            "%s cannot be read any more (%s); the results are of the %s as loaded at the "
            "run's start (hash %s)",
            name,
            error,
            kind,
            before,
        )
        return
    if now != before:
        logger.warning("%s has changed during the run; the results are of the %s as loaded at its "
                       "start (hash %s)", name, kind, before)


def refuse_cache_in_run(cache_dir: str, run_folder: Path) -> None:
    """Refuses a cache in the folder of the run, which holds nothing but what the run writes.

    Args:
        cache_dir: The value of CACHE.DIR; "" = no cache.
        run_folder: The folder of the run.
    """
    if not cache_dir:
        return
    cache = Path(cache_dir).absolute()
    if run_folder.absolute() in (cache, *cache.parents):
        raise ConfigError(f"CACHE.DIR {cache_dir} is inside the folder of the run: choose one "
                          f"beside it, which other runs can use too")


def refuse_among_classes(folder: str | Path, dataset: Dataset) -> None:
    """Refuses a folder where the next run would take it for a class of images.

    Args:
        folder: The folder of the run, or of the cache; "" = none.
        dataset: The images.
    """
    if not folder:
        return
    path = Path(folder).expanduser().resolve()
    for parent in dataset.class_parents:
        if parent.resolve() in path.parents:
            raise ConfigError(f"{folder} is inside {parent}, where every folder is a class of "
                              f"images: run the command elsewhere, or choose another --output-dir "
                              f"and CACHE.DIR")


def refuse_prompt_in_run(prompt: str, run_folder: Path) -> None:
    """Refuses to remove a run whose prompt the new run starts from.

    Args:
        prompt: Value of MODEL.INIT_WEIGHTS; "" = none.
        run_folder: The folder of the run.
    """
    if not prompt:
        return
    if run_folder.resolve() in prompt_file(prompt).resolve().parents:
        raise ConfigError(f"--overwrite would remove the prompt {prompt}, from which this run "
                          f"starts: use another --output-dir")


def without_few_shot_sampling(cfg: CfgNode) -> CfgNode:
    """Returns the settings without few-shot training, so that no sample is drawn or written."""
    tag_is_automatic = tag_of(cfg) == cfg.TAG  # made of the settings, not chosen by the user
    cfg = cfg.clone()
    cfg.defrost()
    cfg.DATASET.NUM_SHOTS = -1
    if tag_is_automatic:
        cfg.TAG = tag_of(cfg)
    cfg.freeze()
    return cfg
