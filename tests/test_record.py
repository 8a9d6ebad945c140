"""Which runs are the same for which purpose: two runs that differ in one thing, for every purpose."""
import json
from dataclasses import replace

import pytest
from promptcal.trainers.runs.record import (
    PURPOSES,
    RunRecord,
    describe_difference,
    group_records,
)

from records import BASE, make

R, F, V, J, T, ROW, COL, TAB, POOL, VAL = (
    "resume", "finished", "view features", "jacobian", "training", "row", "column", "table", "pool", "validation")

# What differs -> the change, and the purposes for which the two runs are then not the same.
MATRIX = {
    "nothing": ({}, []),
    "seed": ({"seed": 1}, [T, R, F, V, VAL]),
    "method": ({"method.trainer": "TPT"}, [T, R, F, ROW, POOL, VAL]),
    "swept value": ({"method.settings": {"TRAINER.SOC.LAMBDA": 10.0, "TTA.STEPS": 1},
                     "changed": {"TRAINER.SOC.LAMBDA": [30.0, 10.0]}}, [T, R, F, ROW, POOL, VAL]),
    "default of its data set": ({"method.settings": {"TRAINER.SOC.LAMBDA": 14.0, "TTA.STEPS": 1}},
                                [T, R, F, POOL, VAL]),
    "edited code": ({"method.source": {"version": "1.1.0", "hash": "s1", "plugin": ""}}, [T, R, F, ROW, POOL, VAL]),
    "plugin's code": ({"method.source": {"version": "1.2.0", "hash": "s1", "plugin": "p1"}}, [T, R, F, ROW, POOL, VAL]),
    "another release": ({"method.source": {"version": "1.2.0", "hash": "s1", "plugin": ""}}, []),
    "engine": ({"numerics.engine": 3}, [T, R, F, V, J, ROW, POOL, VAL]),
    "precision": ({"numerics.precision": "bf16"}, [T, R, F, V, J, ROW, POOL, VAL]),
    "TF32": ({"numerics.tf32": True}, [T, R, F, V, J]),
    "device type": ({"numerics.device_type": "cuda"}, [T, R, V, J]),
    "use of the Jacobian": ({"numerics.jacobian": True}, [R, F]),
    "size of parts": ({"numerics.part": 32}, [R]),
    "images at once": ({"numerics.episodes": 4}, [R]),
    "views without numba": ({"views.pipeline": "pillow-13.0.0"}, [R, F, V, ROW, POOL, VAL]),
    "number of views": ({"views.count": 16, "changed": {"TTA.VIEWS": [64, 16]}}, [R, F, V, ROW, POOL, VAL]),
    "AugMix": ({"views.augmix": False, "changed": {"TTA.AUGMIX": ["on", "off"]}}, [R, F, V, ROW, POOL, VAL]),
    "images": ({"data.images": "i1", "data.listing": "l1"}, [R, F, COL, POOL]),
    "order of images": ({"data.listing": "l1"}, [R, F]),
    "groups of images": ({"data.groups": "g1"}, [R, F]),
    "class names": ({"data.classes": "c1"}, [T, R, F, J, COL, POOL, VAL]),
    "pilot": ({"data.n": 20, "data.images": "i2", "data.listing": "l2", "data.subset": "20 of 3,783 images"},
              [R, F, COL, POOL]),
    "corruption": ({"data.corruption": "fog", "data.severity": 5, "data.images": "i3", "data.listing": "l3"},
                   [R, F, COL, POOL]),
    "split": ({"data.split": "val", "data.images": "i4", "data.listing": "l4", "data.n": 1898}, [R, F, COL, POOL]),
    "weights": ({"model.weights": "w1"}, [T, R, F, V, J, TAB, POOL, VAL]),
    "weights under another name": ({"names": {**BASE["names"], "backbone": "mine"}}, []),
    "label of the data set": ({"names": {**BASE["names"], "dataset": "actions"}}, [VAL]),
    "words of the prompt": ({"model.prompt.words": "itap of a",
                             "changed": {"PROMPT.CTX_INIT": ["a photo of a", "itap of a"]}},
                            [T, R, F, J, ROW, POOL, VAL]),
    "prompt of one protocol": ({"model.prompt.hash": "p1"}, [T, R, F, J, VAL]),
    "prompt of another protocol": ({"model.prompt.kind": "learnt", "model.prompt.hash": "p1",
                                    "model.prompt.protocol": "CoOp 2 shots"}, [T, R, F, J, ROW, POOL, VAL]),
    "descriptions file": ({"model.prompt.hash": "d1", "changed": {"PROMPT.DESCRIPTIONS": ["", "cupl-d1"]}},
                          [T, R, F, J, ROW, POOL, VAL]),
    "order of a stream": ({"method.stream": {"order": "sorted"}}, [T, R, F, ROW, POOL, VAL]),
    "training": ({"method.training": {"settings": {"DATASET.NUM_SHOTS": 2}, "images": "t1"}}, [T, R, F, POOL, VAL]),
    "training images": ({"method.training": {"settings": {}, "images": "t1"}}, [T, R, F, VAL]),
}
PURPOSES_TESTED = (R, F, V, J, T, ROW, COL, TAB, POOL, VAL)


@pytest.mark.parametrize("what", MATRIX)
def test_two_runs_that_differ(what):
    changes, expected = MATRIX[what]
    first, second = make(), make(**changes)
    differing = {purpose for purpose in PURPOSES_TESTED if first.difference(second, purpose)}
    assert differing == set(expected)
    # Pairs compare images one by one. Without the key of a sweep, a choice pools as seeds do.
    assert first.is_same(second, "pair") is (TAB not in expected)
    assert first.is_same(second, "choice") is first.is_same(second, "pool")
    for purpose in PURPOSES_TESTED:
        same = purpose not in expected
        assert first.is_same(second, purpose) is same
        assert second.is_same(first, purpose) is same
        assert len(group_records([first, second], purpose, lambda record: record)) == (1 if same else 2)
        if what != "another release":  # whose key differs, although it is the same method
            assert (first.key(purpose) == second.key(purpose)) is same


@pytest.mark.parametrize("what", MATRIX)
def test_the_id_covers_all_but_names_and_labels(what):
    changes, _ = MATRIX[what]
    only_described = all(path in ("changed", "names") for path in changes)
    assert (make(**changes).id == make().id) is only_described


def test_every_purpose_is_in_the_matrix():
    assert set(PURPOSES) == {*PURPOSES_TESTED, "pair", "choice"}


def test_a_choice_may_differ_in_its_key_alone():
    low = make(changed={"TRAINER.SOC.LAMBDA": [30.0, 10.0]})
    high = make(changed={"TRAINER.SOC.LAMBDA": [30.0, 60.0]})
    steps = make(**{"method.settings": {"TRAINER.SOC.LAMBDA": 60.0, "TTA.STEPS": 2}},
                 changed={"TRAINER.SOC.LAMBDA": [30.0, 60.0], "TTA.STEPS": [1, 2]})
    key = "TRAINER.SOC.LAMBDA"
    assert low.is_same(high, "choice", without=key)
    assert low.is_same(make(), "choice", without=key)  # the default is a candidate too
    assert low.difference(steps, "choice", without=key) == {"TTA.STEPS": (1, 2)}
    few = make(**{"views.count": 16}, changed={"TTA.VIEWS": [64, 16]})
    assert few.is_same(make(), "choice", without="TTA.VIEWS")  # views.count states this setting too


def test_a_difference_is_described_by_both_values():
    assert make().difference(make(seed=3), "finished") == {"seed": (0, 3)}
    assert describe_difference(make().difference(make(**{"views.count": 16}), "finished")) == "TTA.VIEWS was 64, is 16"
    settings = {"TRAINER.SOC.LAMBDA": 30.0, "TTA.STEPS": 2}
    assert describe_difference(make().difference(make(**{"method.settings": settings}), "finished")) == (
        "TTA.STEPS was 1, is 2")


def test_a_record_survives_json_and_keeps_its_id():
    record = make(changed={"INPUT.PIXEL_MEAN": [[0.5, 0.5, 0.5], [0.4, 0.4, 0.4]]})
    read = RunRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert read == record
    assert read.id == record.id
    assert record.renamed({"method": "Ours"}).id == record.id


def test_what_is_not_decided_yet_equals_what_a_run_recorded():
    asked = make(**{"numerics.jacobian": "auto"})
    for decision in (True, False):
        recorded = asked.decided(jacobian=decision)
        assert asked.is_same(recorded, "resume") and recorded.is_same(asked, "resume")
    assert not asked.decided(jacobian=True).is_same(asked.decided(jacobian=False), "finished")


def test_lists_and_tuples_are_equal_values():
    first = replace(make(), changed={"A.B": ([], (1, 2))})
    second = make(changed={"A.B": [[], [1, 2]]})
    assert first.is_same(second, "row")


@pytest.mark.parametrize(("content", "message"), [
    (None, "not a record"), ([], "not a record"), ({}, "no section 'data'"),
    ({**BASE, "names": 3}, "no section 'names'"), ({**BASE, "seed": "0"}, "no seed"),
    ({**BASE, "model": {}}, "no prompt"), ({**BASE, "changed": {"A": 1}}, "two values for A"),
])
def test_what_is_no_record_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        RunRecord.from_json(content)
