"""What a run's predictions depend on (fingerprint), and the folder of a run with these settings."""
from __future__ import annotations

import ast
import hashlib
import inspect
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from yacs.config import CfgNode

from ... import __version__
from ...datasets.base import DATASET_REGISTRY, run_name
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.files import read_regular
from ...datasets.views import pipeline
from ..registry import TRAINER_REGISTRY, find_method
from .defaults import get_cfg_default
from .roles import influential_settings, leaves, setting_of
from .validation import parse_regularisers

SOURCE = "source of "  # a class and, for one of this package, ` in <version>`
DATA_SOURCE = f"{SOURCE}data set "  # views depend on it
ENGINE = 1  # raised whenever a change of the code changes predictions
MAX_LENGTH = 100  # characters of a part of a run folder's path


def make_fingerprint(cfg: CfgNode, **facts: str) -> dict[str, object]:
    """Settings, `facts` (hashes of data and weights, the precision in use) and code that a resumed run must share."""
    settings = {key: value for key, value in leaves(cfg).items() if setting_of(key).fixed}
    settings |= influential_settings(leaves(cfg), cfg.TRAINER.NAME)
    settings = {key: value for key, value in settings.items() if not setting_of(key).hashed}
    return {**settings, **facts, **source_hashes(cfg), "engine": ENGINE, "views": pipeline()}


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


def is_plugin(cls: type) -> bool:
    return not cls.__module__.startswith(f"{__name__.partition('.trainers.')[0]}.")


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
        if before != now and not (finished and (key == "views" or setting_of(key).fixed)))
    if differences:
        raise ConfigError(f"{folder} holds a run with other settings ({differences}): choose another --output-dir")


def tag_of(settings: Mapping[str, object], baseline: Mapping[str, object]) -> str:
    """A readable folder name from the settings that differ from the baseline: `default`, or `STEPS-2_LAMBDA-10.0`."""
    changed = [
        f"{key.rsplit('.', 1)[-1]}-{prompt_name(str(value)) if setting_of(key).hashed else value}"
        for key, value in settings.items() if not setting_of(key).in_path and value != baseline.get(key)
    ]
    return path_safe("_".join(changed)) or "default"


def prompt_name(name: str) -> str:
    """The short name of a prompt or list: of a file the part of its path that differs between prompts (CoOp names every
    file prompt_learner/model.pth.tar-<epoch>) and a hash of its content, or of its path if it is absent."""
    path, content = Path(name), b""
    with suppress(OSError):
        content = read_regular(path)
    if not content and path.name == name:  # an embedded prompt
        return name
    run = path.parent.parent.name if path.parent.name == "prompt_learner" else ""
    return f"{run or path.name.split('.')[0]}-{short_hash(content or name.encode())}"


def path_safe(text: str) -> str:
    """`text` as a part of a path. A long one is cut and ends with a hash of the whole: runs may differ in the rest."""
    safe = re.sub(r"[^\w.+-]+", "-", text).strip("-.")
    return safe if len(safe) <= MAX_LENGTH else f"{safe[: MAX_LENGTH - 9].rstrip('-.')}-{short_hash(text.encode())}"


def short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


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


def backbone_name(name: str) -> str:
    """A backbone's short name: of a file or folder its last name, after the family and the model if they are given."""
    family, colon, rest = name.partition(":")
    if not colon:
        return Path(name).stem if Path(name).suffix else name
    model, _, file = rest.partition("@")
    model = Path(model).name if Path(model).is_dir() else model
    return "-".join([family, model, *([Path(file).stem] if file else [])])
