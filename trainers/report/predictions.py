"""The predictions of a finished run, checked against its results before anything is measured."""
from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ...datasets.utils.errors import DataError
from ...datasets.utils.files import Damaged, file_hash, read_arrays
from ..functional.arrays import Array
from ..runs.record import UNKNOWN_IMAGES, RunRecord

FILE_NAME = "predictions.npz"
IDENTITY_BYTES = 16


@dataclass(frozen=True)
class ArrayKind:
    """What an array of predictions.npz must be.

    Attributes:
        kinds: Letters of numpy's kinds of numbers.
        axes: The name or length of each axis.
        finite: Whether every number must be finite.
        required: Whether every run has it.
    """

    kinds: str
    axes: tuple[str | int, ...]
    finite: bool = True
    required: bool = False


ARRAYS: Mapping[str, ArrayKind] = {
    "index": ArrayKind("iu", ("n",), required=True),
    "label": ArrayKind("iu", ("n",), required=True),
    "logits": ArrayKind("fiu", ("n", "classes"), required=True),
    "zero_shot_logits": ArrayKind("fiu", ("n", "classes"), required=True),
    "flagged": ArrayKind("biu", ("n",), required=True),
    "image": ArrayKind("u", ("n", IDENTITY_BYTES)),
    "cluster": ArrayKind("u", ("n", IDENTITY_BYTES)),
    "filename": ArrayKind("U", ("n",)),
    "text": ArrayKind("fiu", ("classes", "width")),
    "cots_tau": ArrayKind("fiu", ("n",), finite=False),
    "strong_log_p": ArrayKind("fiu", ("n", "classes"), finite=False),
    "position": ArrayKind("iu", ("n",)),
}
# In place of logits, of a run that was exported without them: the top class and its confidence.
EXPORTED: Mapping[str, ArrayKind] = {
    "prediction": ArrayKind("iu", ("n",), required=True),
    "confidence": ArrayKind("f", ("n",), required=True),
    "zero_shot_prediction": ArrayKind("iu", ("n",)),
    "zero_shot_confidence": ArrayKind("f", ("n",)),
}


@dataclass(frozen=True)
class Predictions:
    """Per-image outputs of a run, sorted by index.

    Attributes:
        index: Position of each image in its split, (N,).
        label: (N,).
        logits: After adaptation, (N, K).
        zero_shot_logits: Before adaptation, (N, K).
        flagged: Images that fell back to zero-shot, (N,).
        image: Identity of each image, (N,) of 16 bytes; None if it is not known.
        cluster: Identity of each image's cluster, (N,) of 16 bytes; None as above. Images of one
            cluster, such as those of a patient, are not independent.
        filename: Path of each image below its data set's folder, (N,).
        text: Class features before adaptation, (K, d).
        cots_tau: CoTS's temperatures, of methods that use several views, (N,).
        strong_log_p: Mean log-prediction of the strong views at these temperatures, (N, K).
        position: Place in the stream, of online methods, (N,).
        has_logits: False for a run that was exported without logits. Its logits are then made from
            the top class and its confidence: these two are right, and nothing else is.
    """

    index: Array
    label: Array
    logits: Array
    zero_shot_logits: Array
    flagged: Array
    image: Array | None = None
    cluster: Array | None = None
    filename: Array | None = None
    text: Array | None = None
    cots_tau: Array | None = None
    strong_log_p: Array | None = None
    position: Array | None = None
    has_logits: bool = True

    def take(self, chosen: Array) -> Predictions:
        """The predictions of some images, given by a mask or by positions (M,)."""
        columns = {}
        for column in fields(self):
            values = getattr(self, column.name)
            if values is not None and column.name not in ("text", "has_logits"):
                values = values[chosen]
            columns[column.name] = values
        return Predictions(**columns)


def read_predictions(
    folder: Path, record: RunRecord, results: Mapping[str, Any], has_zero_shot: bool,
) -> Predictions:
    """The arrays of predictions.npz. They can take hundreds of megabytes, so nothing keeps them.

    Args:
        record: The record that results.json has.
        has_zero_shot: Whether the run has zero-shot predictions. If not, as in runs of other
            toolboxes, `zero_shot_logits` are the run's logits.

    Raises:
        DataError: If the file is damaged, belongs to another run, or does not fit the results.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        raise DataError(f"{FILE_NAME} is missing; run the evaluation again")
    check_hash(path, results)
    try:
        stored = read_arrays(path)
    except Damaged as damage:
        raise DataError(
            f"{FILE_NAME} cannot be read ({damage}); run the evaluation again"
        ) from damage
    if not record.is_1_0:
        check_record(stored, record)

    has_logits = "logits" in stored
    if not has_logits and results.get("exported"):
        add_logits(stored, results)
    columns = {name: stored[name] for name in ARRAYS if name in stored}
    if not has_zero_shot and "logits" in columns:
        columns.setdefault("zero_shot_logits", columns["logits"])
    check_arrays(columns, results)
    order = np.argsort(columns["index"], kind="stable")  # online methods shuffle the images
    for name in columns:
        if name != "text":
            columns[name] = columns[name][order]
    check_values(columns, results["classes"])
    add_identities(columns, record)
    return Predictions(**columns, has_logits=has_logits)


def add_logits(stored: dict[str, Array], results: Mapping[str, Any]) -> None:
    """Adds logits with the top class and the confidence of an exported run.

    The other classes share the rest of the probability evenly, which only keeps the sum at 1.

    Args:
        stored: The arrays of predictions.npz by name, changed in place.
    """
    check_arrays({name: stored[name] for name in EXPORTED if name in stored}, results, EXPORTED)
    for prefix in ("", "zero_shot_"):
        if f"{prefix}confidence" in stored and f"{prefix}prediction" in stored:
            stored[f"{prefix}logits"] = logits_of_top_class(
                stored[f"{prefix}prediction"], stored[f"{prefix}confidence"], results["classes"])


def logits_of_top_class(prediction: Array, confidence: Array, classes: int) -> Array:
    """Logits (N, K) whose softmax has `confidence` (N,) at the class `prediction` (N,).

    Args:
        prediction: Top class of each image, (N,).
        confidence: Probability of the predicted class, from 1 / K to 1, (N,).
        classes: Number of classes K. The other classes share the rest equally.

    Raises:
        DataError: If a class is unknown, or a confidence is not that of a top class.
    """
    least = (1 - 1e-6) / classes
    if prediction.min() < 0 or prediction.max() >= classes:
        raise DataError(f"{FILE_NAME} holds predictions of unknown classes")
    if confidence.min() < least or confidence.max() > 1:
        raise DataError(f"{FILE_NAME}: confidence must lie between {1 / classes:.3g} and 1")
    # The other classes share what the predicted class leaves.
    of_each_other = (1 - confidence) / max(classes - 1, 1)
    probability = np.repeat(of_each_other[:, None], classes, axis=1)
    probability[np.arange(len(prediction)), prediction] = confidence
    return np.log(np.maximum(probability, np.finfo(np.float64).tiny))


def check_hash(path: Path, results: Mapping[str, Any]) -> None:
    """Refuses a file whose hash is not the one in results.json.

    Args:
        results: The content of results.json. Runs of version 1.0 have no hashes there.
    """
    expected = (results.get("files") or {}).get(path.name)
    if expected is None:
        return
    if file_hash(path) != expected:
        raise DataError(f"{path.name} is not the file that results.json belongs to")


def check_record(stored: Mapping[str, Array], record: RunRecord) -> None:
    """Refuses predictions that carry the record of another run."""
    text = stored.get("record")
    try:
        theirs = RunRecord.from_json(json.loads(str(text)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{FILE_NAME} does not say which run it belongs to") from error
    if not theirs.is_same_run(record):
        raise DataError(f"{FILE_NAME} belongs to another run than results.json")


def check_arrays(
    columns: Mapping[str, Array], results: Mapping[str, Any],
    kinds: Mapping[str, ArrayKind] = ARRAYS,
) -> None:
    """Refuses arrays that are missing, or whose type or shape does not fit the results.

    Args:
        columns: The arrays of predictions.npz by name.
        kinds: What each array must be.
    """
    missing = [name for name, kind in kinds.items() if kind.required and name not in columns]
    if missing:
        raise DataError(f"{FILE_NAME} has no {' and '.join(missing)}; run the evaluation again")
    sizes = {"n": results["n"], "classes": results["classes"]}
    for name, column in columns.items():
        kind = kinds[name]
        fits = column.dtype.kind in kind.kinds and column.ndim == len(kind.axes)
        for axis, length in zip(kind.axes, column.shape, strict=False):
            expected = sizes.get(axis, length) if isinstance(axis, str) else axis
            fits = fits and length == expected
        if not fits:
            raise DataError(
                f"{FILE_NAME}: '{name}' is {column.dtype} of shape {column.shape}, which does not "
                f"fit {sizes['n']:,} images and {sizes['classes']:,} classes in results.json")
        if kind.finite and column.dtype.kind == "f" and not np.isfinite(column).all():
            raise DataError(f"{FILE_NAME}: '{name}' holds numbers that are not finite; "
                            "run the evaluation again")


def check_values(columns: Mapping[str, Array], classes: int) -> None:
    """Refuses positions that occur twice, and labels of unknown classes; columns are sorted.

    Args:
        columns: The arrays by name, sorted by `index`.
    """
    index = columns["index"]
    if index[0] < 0 or (np.diff(index) == 0).any():
        raise DataError(f"{FILE_NAME}: 'index' must hold each position once, from 0; "
                        "run the evaluation again")
    label = columns["label"]
    if label.min() < 0 or label.max() >= classes:
        raise DataError(f"{FILE_NAME} holds labels from {label.min()} to {label.max()} "
                        f"for {classes} classes")


def add_identities(columns: dict[str, Array], record: RunRecord) -> None:
    """Makes identities one value of 16 bytes per image; those of 1.0 follow from the position.

    Args:
        columns: The arrays by name, changed in place.
    """
    images = str(record.data.get("images") or "")
    if record.is_1_0:
        digests = []
        for position in columns["index"].tolist():
            text = f"{images}:{position}".encode()
            digests.append(hashlib.blake2b(text, digest_size=IDENTITY_BYTES).digest())
        columns["image"] = np.array(digests, dtype=f"V{IDENTITY_BYTES}").view(f"S{IDENTITY_BYTES}")
        columns["cluster"] = columns["image"]
        return
    if images.startswith(UNKNOWN_IMAGES):
        columns.pop("image", None)
        columns.pop("cluster", None)
        return
    for name in ("image", "cluster"):
        if name not in columns:
            raise DataError(f"{FILE_NAME} has no {name}; run the evaluation again")
        rows = np.ascontiguousarray(columns[name].astype(np.uint8))
        columns[name] = rows.view(f"S{IDENTITY_BYTES}").ravel()
    if len(np.unique(columns["image"])) < len(columns["image"]):
        raise DataError(f"{FILE_NAME}: 'image' must be another one in each row; "
                        "run the evaluation again")
