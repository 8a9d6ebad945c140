"""Makes the record of a run from its settings, data and model files, before the model is loaded."""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from ... import __version__
from ...datasets.base import dataset_label, run_name
from ...datasets.build import EvalData
from ...datasets.columns import parse_columns
from ...datasets.identity import ImageIdentity
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.source import (
    hash_files,
    imported_files,
    is_plugin,
    plugin_source,
    replaced_functions,
    source_file,
)
from ..config.build import dataset_file_of
from ..config.settings import (
    Role,
    backbone_name,
    changed_settings,
    effective_settings,
    find_setting,
    leaves,
)
from ..config.table import CLASS_TOKEN_POSITION, EVERY_IMAGE
from ..registry import backbone_label, method_info, method_key
from ..vlm.loading import PUBLISHED_WEIGHTS
from ..vlm.numerics import Numerics, resolve_precision
from ..vlm.prompt_files import read_metadata
from ..vlm.prompt_protocol import PromptProtocol, prompt_protocol
from .record import AUTO, RunRecord, content_hash

# Settings that have a place of their own in the record, outside `method.settings`. Full names, or
# prefixes that end in a dot.
RECORDED_ELSEWHERE = (
    "SEED", "DATASET.", "INPUT.", "DATALOADER.", "MODEL.", "PROMPT.", "TEST.", "TTA.VIEWS",
    "TTA.AUGMIX", "TTA.RESET", "TTA.JACOBIAN", "TTA.EPISODES", "TRAINER.NAME",
    CLASS_TOKEN_POSITION,
)
# The source of a method includes the formulas that it imports, but not base.py, which has none.
FORMULAS = Path(__file__).resolve().parents[1] / "functional"
LIFE_CYCLE = f"{__name__.partition('.trainers.')[0]}.trainers.base"
# What the training of a prompt depends on besides the method's settings.
TRAINING_SETTINGS = ("DATASET.NUM_SHOTS", "DATALOADER.TRAIN_X.BATCH_SIZE")


@dataclass(frozen=True, eq=False)
class RunFacts:
    """What the record of a run is made of.

    Attributes:
        cfg: All settings.
        data: The images.
        identity: The content hashes of these images.
        num_views: Number of views of each image that the method uses.
        weights: Hash of the backbone's weights.
        pixels: The backbone's own INPUT.PIXEL_MEAN and INPUT.PIXEL_STD, where the settings give
            values to compare with; {} otherwise.
        prompt: The prompt that the run starts from.
        source_classes: The trainer's class and those of added terms.
        online: Whether predictions depend on the order of the images.
        tunes_context: Whether the method tunes the context by gradients.
        training: Settings and images of a prompt that the run itself trains; None otherwise.
        numerics: Device, precision and batches.
        pipeline: Name of the code that makes views.
    """

    cfg: CfgNode
    data: EvalData
    identity: ImageIdentity
    num_views: int
    weights: str
    pixels: Mapping[str, Any]
    prompt: PromptFacts
    source_classes: Sequence[type]
    online: bool
    tunes_context: bool
    training: Mapping[str, Any] | None
    numerics: Numerics
    pipeline: str


@dataclass(frozen=True)
class PromptFacts:
    """The prompt that a run starts from.

    Attributes:
        hash: Hash of the content of a learnt prompt or of texts; "" for words.
        protocol: The protocol by which a learnt prompt was made; None for words and texts.
        templates: The templates that replace PROMPT.CTX_INIT, as they are for this data set.
        form: What the texts of descriptions are read as, sentences or phrases; "" without any.
        learnt_on: The other data set on which a prompt was learnt; "" = this one, or not known.
    """

    hash: str = ""
    protocol: PromptProtocol | None = None
    templates: Sequence[str] = ()
    form: str = ""
    learnt_on: str = ""


def learnt_prompt(cfg: CfgNode, digest: str) -> PromptFacts:
    """Returns facts about the prompt of MODEL.INIT_WEIGHTS.

    Args:
        cfg: All settings.
        digest: Hash of the checkpoint's content.
    """
    path = cfg.MODEL.INIT_WEIGHTS
    # All names that the data set may have in the checkpoint's path, such as EuroSAT and eurosat.
    names = [cfg.DATASET.NAME]
    if cfg.DATASET.NAME:
        names.append(run_name(cfg.DATASET.NAME, cfg.DATASET.ROOT, cfg.DATASET.CORRUPTION,
                              cfg.DATASET.SEVERITY))
        file = dataset_file_of(cfg.DATASET.NAME)
        if file is not None:
            names.append(file.stem)
    metadata = read_metadata(path)
    protocol = prompt_protocol(path, cfg.PROMPT.LABEL, metadata, names)
    learnt_on = metadata.get("dataset", "")
    names.append(dataset_label(cfg.DATASET.NAME, cfg.DATASET.ROOT))  # as `dataset_of_prompt` says
    if method_key(learnt_on) in {method_key(name) for name in names}:
        learnt_on = ""
    return PromptFacts(hash=digest, protocol=protocol, learnt_on=learnt_on)


def dataset_of_prompt(cfg: CfgNode, record: RunRecord) -> str:
    """The name of the data set on which a run learns a prompt, as its checkpoint states it.

    All folders of a user's images have one reader, so such a set is known by its folder's name.
    """
    name = str(record.data["dataset"])
    if run_name(name, cfg.DATASET.ROOT) != name:
        return dataset_label(name, cfg.DATASET.ROOT)
    return name


def make_record(facts: RunFacts) -> RunRecord:
    """Makes the record of a run, before its model is loaded."""
    cfg = facts.cfg
    augmix = facts.data.dataset.augmix
    # What `auto` stands for on this device and data set.
    resolved = {
        "MODEL.PREC": resolve_precision("auto", facts.numerics.device),
        "TTA.AUGMIX": "on" if augmix else "off",
        **facts.pixels,
    }
    trains = facts.training is not None
    changed = changed_settings(cfg, resolved, trains)
    return RunRecord(
        data=data_section(cfg, facts.data, facts.identity),
        views=views_section(facts, augmix, changed),
        model=model_section(cfg, facts.weights, facts.prompt),
        method=method_section(cfg, facts.source_classes, facts.online, facts.training),
        numerics=numerics_section(cfg, facts.numerics, facts.tunes_context),
        seed=cfg.SEED,
        changed=changed_section(changed),
        names=names_section(cfg, facts.data, facts.prompt),
    )


def data_section(cfg: CfgNode, data: EvalData, identity: ImageIdentity) -> dict[str, Any]:
    """Returns the section `data`: the images, known by their content.

    Args:
        cfg: All settings.
        data: The images.
        identity: The content hashes of these images.
    """
    corrupted = bool(data.dataset.corruption)
    section = {
        "dataset": cfg.DATASET.NAME or type(data.dataset).__name__,
        "split": data.split,
        "n": len(data.indices),
        "images": identity.images,
        "listing": identity.listing,
        "classes": f"{len(data.classnames)}:{content_hash(list(data.classnames))}",
        "corruption": data.dataset.corruption,
        "severity": data.dataset.severity if corrupted else 0,
        "subset": data.subset,
    }
    if identity.groups:
        section["groups"] = identity.groups
    if data.dataset.difference:
        section["difference"] = data.dataset.difference
    return section


def views_section(
    facts: RunFacts, augmix_by_default: bool, changed: Mapping[str, object],
) -> dict[str, Any]:
    """Returns the section `views`: how views are made.

    AugMix does not change the plain view, so a single view has no `augmix`.

    The size of the views and their normalisation are the backbone's, which its weights fix, unless
    INPUT says otherwise.

    Args:
        facts: What the record is made of.
        augmix_by_default: Whether TTA.AUGMIX auto means on, on this data set.
        changed: The settings that differ from the defaults.
    """
    cfg = facts.cfg
    num_views = facts.num_views
    section: dict[str, Any] = {"pipeline": facts.pipeline, "count": num_views}
    if num_views > 1 and cfg.TTA.AUGMIX == "auto":
        section["augmix"] = augmix_by_default
    elif num_views > 1:
        section["augmix"] = cfg.TTA.AUGMIX == "on"
    if changed.keys() & {"INPUT.PIXEL_MEAN", "INPUT.PIXEL_STD"}:
        section["pixels"] = {"mean": list(cfg.INPUT.PIXEL_MEAN), "std": list(cfg.INPUT.PIXEL_STD)}
    return section


def model_section(cfg: CfgNode, weights: str, prompt: PromptFacts) -> dict[str, Any]:
    """Returns the section `model`: the weights and the prompt, both known by their content.

    Args:
        cfg: All settings.
        weights: Hash of the backbone's weights.
        prompt: The prompt that the run starts from.
    """
    return {
        "backbone": PUBLISHED_WEIGHTS.get(weights) or backbone_family(cfg.MODEL.BACKBONE.NAME),
        "weights": weights,
        "prompt": prompt_section(cfg, prompt),
    }


def backbone_family(name: str) -> str:
    """What a backbone is called in a record: its library and model, without the path of a file."""
    family, colon, rest = name.partition(":")
    if not colon:
        return "file"
    model = rest.partition("@")[0]
    if family == "open_clip" and not Path(model).exists():
        return f"{family}:{model}"
    return family


def prompt_section(cfg: CfgNode, prompt: PromptFacts) -> dict[str, Any]:
    """Returns the prompt in the section `model`: what text features are made from.

    Args:
        cfg: All settings.
        prompt: The prompt that the run starts from.
    """
    section: dict[str, Any] = {"position": cfg.TRAINER.COOP.CLASS_TOKEN_POSITION}
    if prompt.protocol is not None:
        section |= {"kind": "learnt", "protocol": prompt.protocol.text, "hash": prompt.hash}
        if prompt.learnt_on:
            section["learnt_on"] = prompt.learnt_on
    elif cfg.PROMPT.TEMPLATE or cfg.PROMPT.DESCRIPTIONS:
        section |= {"kind": "texts", "ensemble": cfg.PROMPT.ENSEMBLE,
                    "templates": list(prompt.templates), "hash": prompt.hash}
        if prompt.form:
            section["form"] = prompt.form
    else:
        section |= {"kind": "words", "words": cfg.PROMPT.CTX_INIT}
    return section


def method_section(
    cfg: CfgNode, classes: Sequence[type], online: bool, training: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Returns the section `method`: the method with its effective settings and its code.

    Args:
        cfg: All settings.
        classes: The trainer's class and those of added terms.
        online: Whether predictions depend on the order of the images.
        training: Settings and images of a prompt that the run itself trains; None otherwise.
    """
    source = method_source(classes)
    settings = {}
    for key, value in effective_settings(cfg, trains=training is not None).items():
        if not is_elsewhere(key):
            settings[key] = value
    section: dict[str, Any] = {
        "trainer": cfg.TRAINER.NAME,
        "settings": settings,
        "source": source,
    }
    if online:
        section["stream"] = stream_section(cfg)
    if training is not None:
        section["training"] = dict(training)
    return section


def method_source(classes: Sequence[type]) -> dict[str, str]:
    """Returns the source of a method and of the terms that are added to it.

    Args:
        classes: The method's class and those of added regularisers.

    Returns:
        version: Version of this package, to whose files `hash` belongs.
        hash: Hash of the files of this package that define the classes, and of the formulas in
            `trainers/functional` that these files import.
        plugin: Hash of the files outside this package: those of the classes and the modules of
            their own folders that they import. Empty for a built-in method.
    """
    built_in: set[Path] = set()
    for method in classes:
        # The method's file and those of the classes that it is derived from. `plugin_source` hashes
        # those outside this package. The life cycle computes nothing that predictions depend on.
        for cls in method.__mro__:
            if cls is object or is_plugin(cls) or cls.__module__ == LIFE_CYCLE:
                continue
            for name in replaced_functions(cls):
                raise ConfigError(
                    f"{name} of {cls.__name__} was replaced by other code, so it is no longer that "
                    f"method: derive a class from {cls.__name__} and define what it does there"
                )
            path = source_file(cls)
            if path is not None:
                # Files of this package are known without links, as FORMULAS is.
                built_in |= imported_files(path.resolve(), FORMULAS)
    return {"version": __version__, "hash": hash_files(built_in), "plugin": plugin_source(classes)}


def is_elsewhere(key: str) -> bool:
    """Whether a setting has a place of its own in the record."""
    for name in RECORDED_ELSEWHERE:
        if key == name or (name.endswith(".") and key.startswith(name)):
            return True
    return False


def stream_section(cfg: CfgNode) -> dict[str, Any]:
    """The order in which an online method sees the images, and when it starts again."""
    section: dict[str, Any] = {"order": cfg.TEST.ORDER}
    if cfg.TEST.ORDER == "correlated":
        section["correlation"] = cfg.TEST.CORRELATION
    if str(cfg.TTA.RESET) not in EVERY_IMAGE:
        section["reset"] = str(cfg.TTA.RESET)
    return section


def training_section(cfg: CfgNode, images: str) -> dict[str, Any]:
    """Returns what a prompt that the run trains itself depends on besides the method's settings.

    Args:
        cfg: All settings.
        images: Identity of the set of training images.
    """
    settings = leaves(cfg)
    return {"settings": {key: settings[key] for key in TRAINING_SETTINGS if key in settings},
            "images": images}


def hash_of_protocol(record: RunRecord, cfg: CfgNode, stated: Collection[str] = ()) -> str:
    """A hash of how a run makes its prompt, equal for the seeds and data sets of one protocol.

    Args:
        record: The record of the run.
        cfg: All settings.
        stated: Settings that the checkpoint states by themselves.
    """
    settings = dict(record.method["settings"])
    training = record.method.get("training")
    if training is not None:
        settings.update(training["settings"])
    elif "PROMPT.CTX_INIT" in record.changed:
        # Of a prompt that is made without images: it stays close to these words.
        settings["PROMPT.CTX_INIT"] = record.model["prompt"]["words"]
    for key in stated:
        settings.pop(key, None)
    settings["DATASET.SUBSAMPLE_CLASSES"] = cfg.DATASET.SUBSAMPLE_CLASSES
    settings["MODEL.PREC"] = record.numerics["precision"]
    start = record.get("model.prompt.protocol")
    plugin = record.get("method.source.plugin")
    return content_hash(settings, start, plugin)


def numerics_section(cfg: CfgNode, numerics: Numerics, tunes_context: bool) -> dict[str, Any]:
    """Returns the section `numerics`: how numbers are computed.

    Whether the Jacobian is used is decided when the model is loaded, from counts and settings.
    Until then it is AUTO, which equals what a run has recorded.

    Args:
        cfg: All settings.
        numerics: Device, precision and batches.
        tunes_context: Whether the method tunes the context by gradients.
    """
    jacobian: bool | str = AUTO
    if not tunes_context or not cfg.TTA.STEPS:
        jacobian = False
    elif cfg.TTA.JACOBIAN != "auto":
        jacobian = cfg.TTA.JACOBIAN == "on"
    return {
        "precision": numerics.precision,
        "device_type": numerics.device.type,
        "jacobian": jacobian,
        "engine": numerics.engine,
        "tf32": numerics.tf32,  # pinned by `fixed_numerics`
        "part": cfg.TEST.PART,
        "episodes": numerics.episodes,
    }


def changed_section(changed: Mapping[str, tuple[object, object]]) -> dict[str, list[Any]]:
    """Returns the section `changed`: settings that differ from the method's defaults on this data.

    Settings of the data are left out, because the section `data` has them and they decide the
    column of a table, not the row. A learnt prompt is stated by `model.prompt.protocol`.

    Args:
        changed: For each changed setting its default and its value.
    """
    section: dict[str, list[Any]] = {}
    for key, (default, value) in changed.items():
        if find_setting(key).role is not Role.DATA and key != "MODEL.INIT_WEIGHTS":
            section[key] = [default, value]
    return section


def names_section(cfg: CfgNode, data: EvalData, prompt: PromptFacts) -> dict[str, str]:
    """Returns the section `names`: names of method, data set, its part, backbone, prompt in tables.

    Args:
        cfg: All settings.
        data: The images.
        prompt: The prompt that the run starts from.
    """
    prompt_name = ""
    if prompt.protocol is not None:
        prompt_name = prompt.protocol.label
    elif cfg.PROMPT.DESCRIPTIONS:
        prompt_name = cfg.PROMPT.LABEL
    names = {
        "method": method_info(cfg.TRAINER.NAME).label,
        "dataset": cfg.DATASET.LABEL or dataset_label(cfg.DATASET.NAME, cfg.DATASET.ROOT),
        "backbone": (cfg.MODEL.BACKBONE.LABEL
                     or backbone_label(backbone_name(cfg.MODEL.BACKBONE.NAME))),
        "prompt": prompt_name,
    }
    if "columns" in data.dataset.options:
        values = parse_columns(cfg.DATASET.COLUMNS).splits.get(data.split)
        if values:
            names["part"] = f"{data.split}={','.join(values)}"
    return names
