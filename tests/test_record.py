"""Which runs are the same for which purpose: two runs that differ in one thing, for every
purpose."""
import json
from dataclasses import replace

import pytest
import torch
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.report.words import FIELD_WORDS, STATE_SETTINGS
from promptcal.trainers.runs.record import PURPOSES, WORDS, RunRecord, describe_difference, group_records
from safetensors.torch import save_file

from common import make_image_folder
from records import BASE, make

MATRIX_PURPOSES = set(PURPOSES) - {"pair", "choice"}
# What most changes of a run make another: the run itself, its row, and what goes with the row.
RUN = "training, resume, finished"
ROW = "row, pool, validation"
SOC_STEPS = {"TRAINER.SOC.LAMBDA": 30.0, "TTA.STEPS": 1}

# What differs: the changes, and the purposes for which the two runs are then not the same.
MATRIX = {
    "nothing": ({}, ""),
    "seed": ({"seed": 1}, f"{RUN}, view features, validation"),
    "method": ({"method.trainer": "TPT"}, f"{RUN}, {ROW}"),
    "swept value": (
        {
            "method.settings": {**SOC_STEPS, "TRAINER.SOC.LAMBDA": 10.0},
            "changed": {"TRAINER.SOC.LAMBDA": [30.0, 10.0]},
        },
        f"{RUN}, {ROW}, values",
    ),
    "default of its data set": (
        {"method.settings": {**SOC_STEPS, "TRAINER.SOC.LAMBDA": 14.0}},
        f"{RUN}, pool, validation, values",
    ),
    "edited code": ({"method.source": {"version": "1.1.0", "hash": "s1", "plugin": ""}}, f"{RUN}, {ROW}"),
    "plugin's code": ({"method.source": {"version": "1.2.0", "hash": "s1", "plugin": "p1"}}, f"{RUN}, {ROW}"),
    "another release": ({"method.source": {"version": "1.2.0", "hash": "s1", "plugin": ""}}, ""),
    "engine": ({"numerics.engine": 3}, f"{RUN}, view features, jacobian, {ROW}"),
    "precision": ({"numerics.precision": "bf16"}, f"{RUN}, view features, jacobian, {ROW}"),
    "TF32": ({"numerics.tf32": True}, f"{RUN}, view features, jacobian"),
    "device type": ({"numerics.device_type": "cuda"}, "training, resume, view features, jacobian"),
    "use of the Jacobian": ({"numerics.jacobian": True}, "resume, finished"),
    "size of parts": ({"numerics.part": 32}, "resume"),
    "images at once": ({"numerics.episodes": 4}, "resume"),
    "views without numba": ({"views.pipeline": "pillow-13.0.0"}, f"resume, finished, view features, {ROW}"),
    "number of views": (
        {"views.count": 16, "changed": {"TTA.VIEWS": [64, 16]}},
        f"resume, finished, view features, {ROW}, values",
    ),
    "AugMix": (
        {"views.augmix": False, "changed": {"TTA.AUGMIX": ["on", "off"]}},
        f"resume, finished, view features, {ROW}, values",
    ),
    "images": ({"data.images": "i1", "data.listing": "l1"}, "resume, finished, column, pool"),
    "order of images": ({"data.listing": "l1"}, "resume, finished"),
    "groups of images": ({"data.groups": "g1"}, "resume, finished"),
    "class names": ({"data.classes": "c1"}, f"{RUN}, jacobian, column, pool, validation"),
    "pilot": (
        {"data.n": 20, "data.images": "i2", "data.listing": "l2", "data.subset": "20 of 3,783 images"},
        "resume, finished, column, pool",
    ),
    "corruption": (
        {"data.corruption": "fog", "data.severity": 5, "data.images": "i3", "data.listing": "l3"},
        "resume, finished, column, pool",
    ),
    "split": (
        {"data.split": "val", "data.images": "i4", "data.listing": "l4", "data.n": 1898},
        "resume, finished, column, pool",
    ),
    "weights": ({"model.weights": "w1"}, f"{RUN}, view features, jacobian, table, pool, validation"),
    "weights under another name": ({"names": {**BASE["names"], "backbone": "mine"}}, ""),
    "label of the data set": ({"names": {**BASE["names"], "dataset": "actions"}}, "validation"),
    "words of the prompt": (
        {"model.prompt.words": "itap of a", "changed": {"PROMPT.CTX_INIT": ["a photo of a", "itap of a"]}},
        f"{RUN}, jacobian, {ROW}",
    ),
    "prompt of one protocol": ({"model.prompt.hash": "p1"}, f"{RUN}, jacobian, validation"),
    "prompt of another protocol": (
        {"model.prompt.kind": "learnt", "model.prompt.hash": "p1", "model.prompt.protocol": "CoOp 2 shots"},
        f"{RUN}, jacobian, {ROW}",
    ),
    "descriptions file": (
        {"model.prompt.hash": "d1", "changed": {"PROMPT.DESCRIPTIONS": ["", "cupl-d1"]}},
        f"{RUN}, jacobian, {ROW}",
    ),
    "data set of the prompt": (
        {"model.prompt.learnt_on": "EuroSAT", "model.prompt.hash": "p1"},
        f"{RUN}, jacobian, pool, validation",
    ),
    "form of descriptions": (
        {"model.prompt.form": "phrases", "changed": {"PROMPT.DESCRIPTION_FORMAT": ["auto", "phrases"]}},
        f"{RUN}, jacobian, {ROW}",
    ),
    "order of a stream": ({"method.stream": {"order": "sorted"}}, f"{RUN}, {ROW}"),
    "training": (
        {"method.training": {"settings": {"DATASET.NUM_SHOTS": 2}, "images": "t1"}},
        f"{RUN}, pool, validation, values",
    ),
    "training images": ({"method.training": {"settings": {}, "images": "t1"}}, f"{RUN}, validation"),
}


@pytest.mark.parametrize("case", MATRIX)
def test_two_runs_that_differ(case):
    changes, purposes = MATRIX[case]
    differing = set(purposes.split(", ")) - {""}
    first = make()
    second = make(**changes)
    for purpose in MATRIX_PURPOSES:
        is_same = purpose not in differing
        assert (not first.difference(second, purpose)) is is_same, purpose
        assert first.is_same(second, purpose) is is_same, purpose
        assert second.is_same(first, purpose) is is_same, purpose
        groups = group_records([first, second], purpose, lambda record: record)
        assert len(groups) == 2 - is_same, purpose
        if case != "another release":  # whose key differs, although it is the same method
            assert (first.key(purpose) == second.key(purpose)) is is_same, purpose
    # Pairs compare images one by one. Without the key of a sweep, a choice pools as seeds do.
    assert first.is_same(second, "pair") is ("table" not in differing)
    assert first.is_same(second, "choice") is ("pool" not in differing)
    # The id covers all but names and labels.
    assert (first.id == second.id) is (changes.keys() <= {"changed", "names"})


def test_every_field_that_is_compared_or_named_is_in_the_record_of_a_run(
    clip_file, image_folder, tmp_path, clip_model
):
    """A misspelt path would be absent in every record, and so compare as equal."""
    table = make_image_folder(tmp_path / "table", classes=2)
    rows = ["path,label,split,patient_id"]
    for number, file in enumerate(sorted(table.rglob("*.png"))):
        rows.append(f"{file.relative_to(table)},{file.parent.name},test,p{number // 2}")
    (table / "labels.csv").write_text("\n".join(rows), encoding="utf-8")
    for split in ("train", "test"):
        make_image_folder(tmp_path / "splits" / split)
    prompt = tmp_path / "model.safetensors"
    width = clip_model.text_projection.shape[0]
    save_file({"ctx": torch.zeros(4, width)}, prompt, {"method": "CoOp", "dataset": "EuroSAT"})
    descriptions = tmp_path / "texts.json"
    descriptions.write_text(json.dumps({f"kind {letter}": ["a kind"] for letter in "abcd"}))
    settings_of_runs = {
        "SoC": ["MODEL.INIT_WEIGHTS", prompt, "TTA.RESET", "never", "TEST.ORDER", "correlated"],
        "ZeroShot": ["PROMPT.DESCRIPTIONS", descriptions, "PROMPT.ENSEMBLE", "similarity",
                     "INPUT.PIXEL_MEAN", "[0.5,0.5,0.5]", "INPUT.PIXEL_STD", "[0.5,0.5,0.5]"],
        "TDA": ["DATASET.NAME", "Table", "DATASET.ROOT", table],
        "CoOp": ["DATASET.NUM_SHOTS", 1, "DATASET.ROOT", tmp_path / "splits"],
    }
    records = []
    for method, settings in settings_of_runs.items():
        cfg = build_cfg(method, "configs/datasets/image_folder.yaml", opts=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file,
            "OUTPUT_DIR", tmp_path / method, *settings,
        ])
        records.append(build_trainer(cfg).record)
    paths = {*WORDS, *FIELD_WORDS, *STATE_SETTINGS}
    for fields in PURPOSES.values():
        paths.update(fields)
    absent = set()
    for path in paths:
        if all(record.get(path) is None for record in records):
            absent.add(path)
    assert not absent


def test_a_choice_may_differ_in_its_key_alone():
    key = "TRAINER.SOC.LAMBDA"
    low = make(changed={key: [30.0, 10.0]})
    assert low.is_same(make(changed={key: [30.0, 60.0]}), "choice", without=key)
    assert low.is_same(make(), "choice", without=key)  # the default is a candidate too
    steps = make(**{"method.settings": {key: 60.0, "TTA.STEPS": 2}},
                 changed={key: [30.0, 60.0], "TTA.STEPS": [1, 2]})
    assert low.difference(steps, "choice", without=key) == {"TTA.STEPS": (1, 2)}
    few = make(**{"views.count": 16}, changed={"TTA.VIEWS": [64, 16]})
    assert few.is_same(make(), "choice", without="TTA.VIEWS")  # views.count states this setting too


def test_a_difference_is_described_by_both_values():
    few_views = make(**{"views.count": 16})
    two_steps = make(**{"method.settings": {**SOC_STEPS, "TTA.STEPS": 2}})
    for other, words in (
        (make(seed=3), "SEED was 0, is 3"),
        (few_views, "TTA.VIEWS was 64, is 16"),
        (two_steps, "TTA.STEPS was 1, is 2"),
    ):
        assert describe_difference(make().difference(other, "finished")) == words


def test_a_record_survives_json_and_names_do_not_change_its_id():
    """Lists and tuples are equal values."""
    changed = {"INPUT.PIXEL_MEAN": [[0.5, 0.5, 0.5], [0.4, 0.4, 0.4]]}
    record = make(changed=changed)
    read = RunRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert read == record and read.id == record.id == record.renamed({"method": "Ours"}).id
    tuples = replace(make(), changed={"INPUT.PIXEL_MEAN": tuple(map(tuple, changed["INPUT.PIXEL_MEAN"]))})
    assert tuples.is_same(record, "row")


def test_what_is_not_decided_yet_equals_what_a_run_recorded():
    asked = make(**{"numerics.jacobian": "auto"})
    for used in (True, False):
        recorded = make(**{"numerics.jacobian": used})
        assert asked.is_same(recorded, "resume") and recorded.is_same(asked, "resume")


@pytest.mark.parametrize(("content", "message"), [
    (None, "not a record"), ([], "not a record"), ({}, "no section 'data'"),
    ({**BASE, "names": 3}, "no section 'names'"), ({**BASE, "seed": "0"}, "no seed"),
    ({**BASE, "model": {}}, "no prompt"), ({**BASE, "changed": {"A": 1}}, "two values for A"),
])
def test_what_is_no_record_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        RunRecord.from_json(content)
