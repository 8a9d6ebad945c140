"""The record of a run: what its predictions depend on, written once and compared everywhere.

A run writes its record as `record.json` when it starts. `predictions.npz` and `results.json` carry
the same record, so that the files of a folder are tied to each other. Whether two runs are the
same, belong into one row, or may share cached numbers is decided here and nowhere else: by
`RunRecord.key` and `RunRecord.difference`. Labels, notes and refusals read the same record.
"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from ...datasets.utils.files import file_hash, read_json

FILE_NAME = "record.json"
RESULTS_FILE = "results.json"
# A value of `numerics` that is not decided yet. It equals whatever a run has recorded. The record
# of a run that has computed something does not hold it.
AUTO = "auto"
# Begins `data.images` where nothing says which images these were: a name and a number follow.
UNKNOWN_IMAGES = "name:"

# The sections of a record that its identity covers. `changed` and `names` describe it for readers.
IDENTITY = ("data", "views", "model", "method", "numerics", "seed")

# Fields by their path in the record, as "section.field".
DATA = ("data.dataset", "data.split", "data.n", "data.images", "data.listing", "data.groups",
        "data.classes", "data.corruption", "data.severity", "data.subset")
VIEWS = ("views.pipeline", "views.count", "views.augmix", "views.pixels")
MODEL = ("model.weights", "model.prompt.kind", "model.prompt.words", "model.prompt.templates",
         "model.prompt.learnt_on", "model.prompt.hash", "model.prompt.form",
         "model.prompt.position", "model.prompt.ensemble")
METHOD = ("method.trainer", "method.settings", "method.stream", "method.source",
          "method.training.settings", "method.training.images")
NUMERICS = ("numerics.precision", "numerics.jacobian", "numerics.engine", "numerics.tf32")
ONLY_RESUME = ("numerics.device_type", "numerics.part", "numerics.episodes")

# A row of a table: one method with one set of choices, on any data set and with any seed.
ROW = ("method.trainer", "method.source", "method.stream", "numerics.engine",
       "numerics.precision", "views.pipeline", "model.prompt.protocol", "changed")
COLUMN = ("data.images", "data.classes", "data.subset")
TABLE = ("model.weights",)
# The values of all settings. On one data set these must agree, not only that both are the defaults:
# a default may have been edited between two runs.
VALUES = ("method.settings", "method.training.settings", "views.count", "views.augmix",
          "views.pixels")

# What must be equal for each purpose. Whatever is not listed may differ.
PURPOSES: Mapping[str, tuple[str, ...]] = {
    "resume": (*DATA, *VIEWS, *MODEL, *METHOD, *NUMERICS, *ONLY_RESUME, "seed"),
    "finished": (*DATA, *VIEWS, *MODEL, *METHOD, *NUMERICS, "seed"),
    # The image's digest and position are added for each image.
    "view features": (*VIEWS, "model.weights", "numerics.precision", "numerics.device_type",
                      "numerics.engine", "numerics.tf32", "seed"),
    "jacobian": (*MODEL, "data.classes", "numerics.precision", "numerics.device_type",
                 "numerics.engine", "numerics.tf32"),
    # What a prompt that the run trains depends on: not on the images that are tested.
    "training": (*MODEL, *METHOD, "data.classes", "numerics.precision", "numerics.device_type",
                 "numerics.engine", "numerics.tf32", "seed"),
    "row": ROW,
    "column": COLUMN,
    "table": TABLE,
    # Two runs of one method on the same images, given the same settings, differ only if a default
    # was edited.
    "values": VALUES,
    # Each seed of CoOp draws its own training images, but of one data set.
    "pool": (*ROW, *COLUMN, *TABLE, *VALUES, "data.split", "model.prompt.learnt_on"),
    "pair": TABLE,
    "validation": (*ROW, *TABLE, *VALUES, "seed", "method.training.images", "model.prompt.hash",
                   "data.dataset", "data.classes", "names.dataset"),
    # The key of the sweep is given as `without`.
    "choice": (*ROW, *COLUMN, *TABLE, *VALUES, "data.split", "model.prompt.learnt_on"),
}

# What a field is called in messages: the setting that decides it, if one does.
WORDS: Mapping[str, str] = {
    "data.dataset": "data set", "data.split": "TEST.SPLIT", "data.n": "number of images",
    "data.images": "images or labels", "data.listing": "order of the images",
    "data.groups": "groups of the images",
    "data.classes": "class names", "data.corruption": "DATASET.CORRUPTION",
    "data.severity": "DATASET.SEVERITY", "data.subset": "subset",
    "views.pipeline": "code that makes views", "views.count": "TTA.VIEWS",
    "views.augmix": "TTA.AUGMIX",
    "views.pixels.mean": "INPUT.PIXEL_MEAN", "views.pixels.std": "INPUT.PIXEL_STD",
    "model.weights": "weights", "model.prompt.kind": "kind of prompt",
    "model.prompt.protocol": "prompt", "model.prompt.words": "PROMPT.CTX_INIT",
    "model.prompt.templates": "PROMPT.TEMPLATE",
    "model.prompt.hash": "content of the prompt",
    "model.prompt.form": "PROMPT.DESCRIPTION_FORMAT",
    "model.prompt.learnt_on": "data set of the prompt",
    "model.prompt.position": "TRAINER.COOP.CLASS_TOKEN_POSITION",
    "model.prompt.ensemble": "PROMPT.ENSEMBLE", "method.trainer": "TRAINER.NAME",
    "method.source": "code of the method", "method.stream.order": "TEST.ORDER",
    "method.stream.correlation": "TEST.CORRELATION", "method.stream.reset": "TTA.RESET",
    "method.training.images": "training images", "numerics.precision": "precision",
    "numerics.device_type": "type of device", "numerics.jacobian": "TTA.JACOBIAN",
    "numerics.engine": "engine", "numerics.tf32": "TF32", "numerics.part": "TEST.PART",
    "numerics.episodes": "TTA.EPISODES", "seed": "SEED",
}

Difference = dict[str, tuple[object, object]]  # field or setting -> its value in both records
T = TypeVar("T")


@dataclass(frozen=True)
class RunRecord:
    """What a run's predictions depend on, as plain JSON.

    Values are effective: `auto` is resolved, and settings without an effect are absent. No value
    is a path: a file is known by its content.

    Attributes:
        data: dataset, split, n, images (hash of the set of images and labels), listing (hash of
            the ordered list), groups (hash of which image is of which patient or other group;
            absent without groups), classes (hash of the class names), corruption, severity,
            subset, difference (of the split from the published one; absent if none is known).
        views: pipeline, count, augmix, pixels. Their size is the backbone's, which its weights fix.
        model: backbone, weights (hash), prompt {kind, protocol, learnt_on (if it is
            another data set), words, templates, hash, form (of descriptions), position, ensemble}.
        method: trainer, settings, stream (order, correlation, reset; online methods only), source,
            training (settings and images; methods that learn from labelled images only).
        numerics: precision, device_type, jacobian, engine, tf32, part, episodes.
        seed: Seed of views, samples and orders.
        changed: Settings that differ from the defaults that the data set had then, as
            {KEY: [default, value]}. A file is given by its label and hash.
        names: Names of method, dataset, part (such as the fold `test=0` of a table), backbone and
            prompt, as tables show them.
    """

    data: Mapping[str, Any]
    views: Mapping[str, Any]
    model: Mapping[str, Any]
    method: Mapping[str, Any]
    numerics: Mapping[str, Any]
    seed: int
    changed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """SHA-256 of the canonical JSON of all that predictions depend on."""
        content = self.to_json()
        identity = {section: content[section] for section in IDENTITY}
        return hashlib.sha256(canonical_json(identity).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The record as plain JSON values."""
        return json.loads(canonical_json(asdict(self)))

    @classmethod
    def from_json(cls, content: object) -> RunRecord:
        """Reads a record.

        Raises:
            ValueError: If `content` is not a record; the message names the section.
        """
        if not isinstance(content, dict):
            raise ValueError("it is not a record of a run")
        for section in ("data", "views", "model", "method", "numerics", "changed", "names"):
            if not isinstance(content.get(section), dict):
                raise ValueError(f"its record has no section '{section}'")
        if type(content.get("seed")) is not int:
            raise ValueError("its record has no seed")
        if not isinstance(content["model"].get("prompt"), dict):
            raise ValueError("its record has no prompt in section 'model'")
        for key, pair in content["changed"].items():
            if not isinstance(pair, list) or len(pair) != 2:
                raise ValueError(f"'changed' in its record must hold two values for {key}")
        known = {section: content[section] for section in (*IDENTITY, "changed", "names")}
        return cls(**known)

    def get(self, path: str) -> Any:
        """The value at a path such as `model.prompt.hash`; None if the record has none."""
        value: Any = getattr(self, path.partition(".")[0])
        for part in path.split(".")[1:]:
            if not isinstance(value, Mapping):
                return None
            value = value.get(part)
        return value

    def fields(self, purpose: str, without: str | Sequence[str] = "") -> dict[str, Any]:
        """Returns what must be equal for a purpose, by field or setting.

        Settings of the method are listed one by one. Those in `changed` count by their value
        alone: two runs with λ 10 are equal, whatever the default was.

        Args:
            purpose: A key of PURPOSES.
            without: Settings or fields that may differ, such as the key of a sweep. A field that
                states such a setting may differ too.
        """
        values: dict[str, Any] = {}
        for path in PURPOSES[purpose]:
            if path == "changed":
                for key, (_, value) in self.changed.items():
                    values[key] = value
            elif path == "method.settings":
                values.update(self.get(path))
            elif path == "method.training.settings":
                values.update(self.get(path) or {})
            elif path in ("method.stream", "views.pixels"):
                for name, value in (self.get(path) or {}).items():
                    values[f"{path}.{name}"] = value
            else:
                values[path] = self.get(path)
        if isinstance(without, str):
            without = [without]
        for name in without:
            values.pop(name, None)
            for path in fields_that_state(name):
                values.pop(path, None)
        return values

    def key(self, purpose: str, without: str | Sequence[str] = "") -> str:
        """Returns a text that is equal only for records that are the same for this purpose.

        Records of two releases with the same method have different texts, because the code of the
        built-in method differs. `difference` and `group_records` take that into account.

        Args:
            purpose: A key of PURPOSES.
            without: Settings that may differ, by their full names.
        """
        return canonical_json(self.fields(purpose, without))

    def difference(
        self, other: RunRecord, purpose: str, without: str | Sequence[str] = ""
    ) -> Difference:
        """Returns the fields and settings that differ for a purpose, each with both values.

        The code of a built-in method is compared within one version of this package. Between
        versions `numerics.engine` decides, which is raised whenever predictions change.

        Args:
            other: The record to compare with.
            purpose: A key of PURPOSES.
            without: Settings that may differ, by their full names.

        Returns:
            Empty if the records are the same for the purpose.
        """
        ours = self.fields(purpose, without)
        theirs = other.fields(purpose, without)
        if "method.source" in ours:
            pair = comparable_sources(ours["method.source"], theirs["method.source"])
            ours["method.source"], theirs["method.source"] = pair
        differing: Difference = {}
        for name in dict.fromkeys([*ours, *theirs]):
            before = ours.get(name)
            after = theirs.get(name)
            # What is not decided yet takes the other record's value.
            if name.startswith("numerics.") and AUTO in (before, after):
                continue
            # As JSON, because one record may be read from a file: there tuples are lists.
            if canonical_json(before) != canonical_json(after):
                differing[name] = (before, after)
        return differing

    def is_same(self, other: RunRecord, purpose: str, without: str | Sequence[str] = "") -> bool:
        """Whether two records are the same for a purpose. Arguments are those of `difference`."""
        return not self.difference(other, purpose, without)

    def is_same_run(self, other: RunRecord) -> bool:
        """Whether both are the record of one run; its names may have been changed since."""
        return self.renamed({}) == other.renamed({})

    def renamed(self, names: Mapping[str, str]) -> RunRecord:
        """Returns the record of the same run with other names."""
        return replace(self, names=dict(names))

    @property
    def online(self) -> bool:
        """Whether predictions depend on the order of the images."""
        return self.method.get("stream") is not None

    @property
    def dataset_name(self) -> str:
        """What tables call the data set."""
        return str(self.names.get("dataset") or self.data.get("dataset"))

    @property
    def images_name(self) -> str:
        """The data set with its corruption, and its fold if it has several."""
        words = [self.dataset_name]
        if self.data.get("corruption"):
            corruption = str(self.data["corruption"]).replace("_", " ")
            words[0] += f" {corruption} {self.data.get('severity')}"
        if self.names.get("part"):
            words.append(str(self.names["part"]))
        return ", ".join(words)

    @property
    def part_words(self) -> list[str]:
        """Which part of the data set was used. The number of images is stated elsewhere."""
        words = []
        if self.names.get("part"):
            words.append(str(self.names["part"]))
        for part in str(self.data.get("subset") or "").split(", "):
            is_count = part.endswith(" images") or part.startswith("limit ")
            if part and not is_count:
                words.append(part)
        return words

    @property
    def is_1_0(self) -> bool:
        """Whether it was derived from the files of a 1.0 run, which have no record."""
        return str(self.data.get("images", "")).startswith("1.0:")


def fields_that_state(key: str) -> list[str]:
    """Returns the fields that hold the value of a setting, such as `views.count` for TTA.VIEWS.

    The fields of a stream depend on each other: only a correlated order has a correlation.
    """
    paths = [path for path, name in WORDS.items() if name == key]
    if any(path.startswith("method.stream.") for path in paths):
        return [path for path in WORDS if path.startswith("method.stream.")]
    return paths


@dataclass
class RecordGroup(Generic[T]):
    """Items whose records are the same for a purpose.

    Attributes:
        items: The items, in the order in which they were given.
        records: One record for each key that the items have. There are several keys where the items
            are of several releases of this package, see `RunRecord.key`.
    """

    items: list[T] = field(default_factory=list)
    records: list[RunRecord] = field(default_factory=list)

    def takes(self, record: RunRecord, purpose: str, without: Sequence[str]) -> bool:
        """Whether a record is the same as all records of the group.

        With two releases of a method the code is not compared. So of two records of one release
        whose code differs, both may be the same as one of another release: the first one counts.

        Args:
            record: A record with another key.
            purpose: A key of PURPOSES.
            without: Settings that may differ all the same, by their full names.
        """
        return all(known.is_same(record, purpose, without) for known in self.records)


def group_records(
    items: Iterable[T], purpose: str, record_of: Callable[[T], RunRecord],
    without: str | Sequence[str] = (),
) -> list[list[T]]:
    """Groups items whose records are the same for a purpose, in order of first appearance.

    Args:
        items: Objects that have a record, such as runs.
        purpose: A key of PURPOSES.
        record_of: A function that returns the record of an item.
        without: Settings that may differ, by their full names.
    """
    if isinstance(without, str):
        without = [without]
    groups: list[RecordGroup[T]] = []
    by_key: dict[str, RecordGroup[T]] = {}
    # Groups that agree in all but the code of the method. Only their records need a comparison.
    similar_groups: dict[str, list[RecordGroup[T]]] = {}
    for item in items:
        record = record_of(item)
        key = record.key(purpose, without)
        if key not in by_key:
            similar = similar_groups.setdefault(
                record.key(purpose, [*without, "method.source"]), [])
            for group in similar:
                if group.takes(record, purpose, without):
                    break
            else:
                group = RecordGroup()
                groups.append(group)
                similar.append(group)
            group.records.append(record)
            by_key[key] = group
        by_key[key].items.append(item)
    return [group.items for group in groups]


def describe_difference(difference: Difference) -> str:
    """Says what differs: `TTA.VIEWS was 64, is 16; weights was 'a1…', is 'b2…'`.

    The first record of the difference is the earlier one.
    """
    parts = []
    for name, (before, after) in difference.items():
        parts.append(f"{WORDS.get(name, name)} was {shown_value(before)}, is {shown_value(after)}")
    return "; ".join(parts)


def shown_value(value: object) -> str:
    """Returns a value as messages state it: long ones are cut, and None is `absent`."""
    if value is None:
        return "absent"
    if isinstance(value, Mapping):
        return canonical_json(value)[:60]
    text = repr(value)
    if len(text) <= 40:
        return text
    return f"{text[:16]}…{text[-1]}"  # the last is the quotation mark


def value_label(value: Any) -> Any:
    """Returns a value of `changed` as a label states it: for a file, the file's label."""
    if isinstance(value, Mapping):
        return value.get("label") or "-".join(str(part) for part in value.values())
    return value


def comparable_sources(first: Any, second: Any) -> tuple[Any, Any]:
    """Returns the parts of two sources that are compared.

    Between releases of this package its own files differ, so that only those of plugins count.

    Args:
        first: The field `method.source` of a record.
        second: The field `method.source` of the other record.
    """
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return first, second
    if first.get("version") == second.get("version"):
        return first, second
    return {"plugin": first.get("plugin")}, {"plugin": second.get("plugin")}


def canonical_json(value: object) -> str:
    """Returns JSON that is equal for equal values: keys are sorted, and tuples count as lists."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False,
                      default=plain_json)


def plain_json(value: object) -> object:
    """Converts values that JSON does not know: mappings and sequences of other types."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be part of a record")


def hashes_of_files(
    folder: Path, results: Mapping[str, Any], names: Sequence[str]
) -> dict[str, str]:
    """Returns the hashes that results.json has of the files of a finished run, itself included.

    A file of another run, or one that was edited, has another hash.

    Args:
        folder: The folder of the run.
        results: The content of its results.json, without these hashes.
        names: The names of the other files.

    Returns:
        For each file the hash of its content; for results.json that of `results`.
    """
    hashes = {RESULTS_FILE: results_hash(results)}
    for name in names:
        hashes[name] = file_hash(folder / name)
    return hashes


def broken_tie(folder: Path, results: Mapping[str, Any], names: Sequence[str]) -> str:
    """Says which file of a finished run belongs to another run or was edited.

    Args:
        folder: The folder of the run.
        results: The content of its results.json.
        names: Names of the other files whose hashes are in results.json.

    Returns:
        The file and the fault in words; "" if there is none.
    """
    try:
        record = RunRecord.from_json(results.get("record"))
    except ValueError as error:
        return f"{RESULTS_FILE} cannot be used, because {error}"
    try:
        record_file = RunRecord.from_json(read_json(folder / FILE_NAME))
    except ValueError:
        return f"{FILE_NAME} is missing or damaged"
    if not record.is_same_run(record_file):
        return f"{FILE_NAME} is not that of {RESULTS_FILE}"
    hashes = results.get("files")
    if not isinstance(hashes, dict):
        return f"{RESULTS_FILE} does not name its files"
    if hashes.get(RESULTS_FILE) != results_hash(results):
        return f"{RESULTS_FILE} was edited"
    for name in names:
        if not (folder / name).is_file():
            return f"{name} is missing"
        try:
            digest = file_hash(folder / name)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if digest != hashes.get(name):
            return f"{name} is not the one that {RESULTS_FILE} was made with"
    return ""


def results_hash(results: Mapping[str, Any]) -> str:
    """The hash of the content of results.json, without the hashes in it."""
    content = {name: value for name, value in results.items() if name != "files"}
    # The values as they are when they are read from the file: a tuple, for one, is a list there.
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(canonical_json(plain).encode(errors="surrogatepass")).hexdigest()


def content_hash(*parts: object) -> str:
    """A short hash of plain values."""
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:16]
