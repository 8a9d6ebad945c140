"""What a run's predictions depend on (fingerprint), and the folder of a run with these settings."""
from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from yacs.config import CfgNode

from ... import __version__
from ...datasets.base import DATASET_REGISTRY, run_name
from ...datasets.utils.errors import ConfigError
from ...datasets.views import pipeline
from .declared import find_setting, get_cfg_default, leaves
from .names import backbone_name, file_label, path_safe, short_hash
from .registry import TRAINER_REGISTRY, find_method, is_plugin
from .roles import influential_settings
from .settings import tag_of
from .validation import parse_regularisers

__all__ = [
    "DATA_SOURCE", "ENGINE", "SOURCE", "backbone_name", "check_same", "make_fingerprint", "path_safe",
    "plugin_modules", "prompt_name", "results_name", "run_path", "short_hash", "tag_of",
]

SOURCE = "source of "  # a class and, for one of this package, ` in <version>`
DATA_SOURCE = f"{SOURCE}data set "  # views depend on it
ENGINE = 1  # raised whenever a change of the code changes predictions
ONLY_RESUME = ("TEST.PART",)  # changes no prediction, but must stay the same until a run is finished
prompt_name = file_label


def make_fingerprint(cfg: CfgNode, **facts: str) -> dict[str, object]:
    """Settings, `facts` (hashes of data and weights, the precision in use) and code that a resumed run must share."""
    settings = {key: value for key, value in leaves(cfg).items() if key in ONLY_RESUME}
    settings |= influential_settings(leaves(cfg), cfg.TRAINER.NAME)
    settings = {key: value for key, value in settings.items() if not is_hashed(key)}
    return {**settings, **facts, **source_hashes(cfg), "engine": ENGINE, "views": pipeline()}


def is_hashed(key: str) -> bool:
    """Whether a setting names a file, whose hash is one of the facts."""
    return find_setting(key).names_file or key == "MODEL.BACKBONE.NAME"


def source_hashes(cfg: CfgNode) -> dict[str, str]:
    """Hashes of the source of the classes of a method and of the terms added to it: one that was edited is another
    method. So is a user's data set. Those of a user's classes cover what these use of their module; those of this
    package carry its version, since another release counts as the same method while ENGINE is the same."""
    package = __name__.partition(".trainers.")[0]
    terms = [find_method(term) for term in parse_regularisers(cfg.TRAINER.REGULARISERS)]
    methods = [TRAINER_REGISTRY.get(cfg.TRAINER.NAME), *filter(None, terms)]
    hashes = {}
    for cls in (cls for method in methods for cls in method.__mro__[:-1]):
        if cls.__module__ != f"{package}.trainers.base":
            release = "" if is_plugin(cls) else f" in {__version__}"
            hashes[f"{SOURCE}{cls.__name__}{release}"] = source_hash(cls)
    if cfg.DATASET.NAME in DATASET_REGISTRY:
        data = filter(is_plugin, DATASET_REGISTRY.get(cfg.DATASET.NAME).__mro__[:-1])
        hashes |= {f"{DATA_SOURCE}{cls.__name__}": source_hash(cls) for cls in data}
    return hashes


def source_hash(cls: type) -> str:
    source = "unknown"
    with suppress(OSError, TypeError):  # defined interactively, without a file
        source = inspect.getsource(cls) + (used_source(cls) if is_plugin(cls) else "")
    return short_hash(source.encode())


def used_source(cls: type) -> str:
    """The source of the functions, classes and constants of its module that a class uses, also through each other."""
    made: dict[str, ast.stmt] = {}
    source = "".join(inspect.findsource(cls)[0])
    for node in ast.parse(source).body:
        names = {node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else names_in(node, ast.Store)
        made |= dict.fromkeys(names, node)
    found, waiting = {cls.__name__}, [cls.__name__]
    while waiting:
        name = waiting.pop()
        used = names_in(made[name], ast.Load) & made.keys() - found if name in made else set()
        found |= used
        waiting += used
    others = sorted(found & made.keys() - {cls.__name__})
    return "".join(ast.get_source_segment(source, made[name]) or "" for name in others)  # alike in every Python


def names_in(node: ast.AST, context: type) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, context)}


def plugin_modules(cfg: CfgNode) -> dict[str, str]:
    """The modules outside this package that the run's method and data set come from, by name: what `--plugin` takes."""
    registered = ((TRAINER_REGISTRY, cfg.TRAINER.NAME), (DATASET_REGISTRY, cfg.DATASET.NAME))
    found = {name: registry.get(name) for registry, name in registered if name in registry}
    return {name: cls.__module__ for name, cls in found.items() if is_plugin(cls)}


def check_same(ours: Mapping, theirs: Mapping, folder: Path, finished: bool = False) -> None:
    """Refuses to resume a run that was started with other settings, data, weights or code, naming what differs. A
    setting that one side lacks counts as its default: the run is older, or newer, than the setting. For a
    `finished` run the code that makes views and the size of parts may differ."""
    defaults = leaves(get_cfg_default())
    other_release = {key for key in ours.keys() ^ theirs.keys() if key.startswith(SOURCE) and " in " in key}
    keys = sorted({*ours, *theirs} - other_release)
    pairs = {key: [side.get(key, defaults.get(key)) for side in (theirs, ours)] for key in keys}
    differences = "; ".join(
        f"{key} was {before!r}, is {now!r}" for key, (before, now) in pairs.items()
        if before != now and not (finished and (key == "views" or key in ONLY_RESUME)))
    if differences:
        raise ConfigError(f"{folder} holds a run with other settings ({differences}): choose another --output-dir")


def results_name(cfg: CfgNode) -> str:
    """What run folder and results call the data set."""
    data = cfg.DATASET
    return run_name(data.NAME, data.ROOT, data.CORRUPTION, data.SEVERITY)


def run_path(cfg: CfgNode) -> Path:
    """`--output-dir`, or output/<dataset>/<trainer>/<backbone>/<tag>/seed<k>."""
    if cfg.OUTPUT_DIR:
        return Path(cfg.OUTPUT_DIR)
    if Path(cfg.TAG).is_absolute() or ".." in Path(cfg.TAG).parts or not cfg.TAG.isprintable():
        raise ConfigError(f"TAG is {cfg.TAG!r}; it must be a name below output/<dataset>/<trainer>/<backbone>")
    backbone = path_safe(backbone_name(cfg.MODEL.BACKBONE.NAME))
    dataset = path_safe(results_name(cfg))
    return Path("output", dataset, path_safe(cfg.TRAINER.NAME), backbone, cfg.TAG, f"seed{cfg.SEED}")
