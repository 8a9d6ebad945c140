"""Records of runs for tests: one, and others that differ from it."""
from __future__ import annotations

import copy

from promptcal.trainers.runs.record import RunRecord

BASE = {
    "data": {
        "dataset": "UCF101", "split": "test", "n": 3783, "images": "i0", "listing": "l0",
        "classes": "c0", "corruption": "", "severity": 0, "subset": "",
    },
    "views": {"pipeline": "views-1", "count": 64, "augmix": True},
    "model": {
        "backbone": "ViT-B/16", "weights": "w0",
        "prompt": {"kind": "words", "words": "a photo of a", "position": "end"},
    },
    "method": {
        "trainer": "SoC", "settings": {"TRAINER.SOC.LAMBDA": 30.0, "TTA.STEPS": 1},
        "source": {"version": "1.1.0", "hash": "s0", "plugin": ""},
    },
    "numerics": {
        "precision": "fp32", "device_type": "cpu", "jacobian": False, "engine": 2,
        "tf32": False, "part": 64, "episodes": 8,
    },
    "seed": 0,
    "changed": {},
    "names": {"method": "SoC", "dataset": "UCF101", "backbone": "ViT-B/16", "prompt": ""},
}


def make(**changes: object) -> RunRecord:
    """The base record with other values, given by path."""
    content = copy.deepcopy(BASE)
    for path, value in changes.items():
        *groups, leaf = path.split(".")
        section = content
        for group in groups:
            section = section[group]
        section[leaf] = value
    return RunRecord.from_json(content)
