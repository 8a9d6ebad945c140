"""Arbitrary settings, splits and checkpoints work or end in one line for the user, never in a crash."""
from __future__ import annotations

import contextlib
import itertools
import json
import re
import tempfile
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from promptcal.datasets import build_dataset
from promptcal.datasets.utils.errors import UserError
from promptcal.trainers import TRAINER_REGISTRY, build_cfg
from promptcal.trainers.config.settings import find_setting, get_cfg_default, leaves
from promptcal.trainers.vlm.checkpoints import read_checkpoint

DEFAULTS = leaves(get_cfg_default())
scalars = st.none() | st.booleans() | st.integers(-5, 200) | st.floats() | st.text(max_size=8)
# Looks like a date, a number or a structure to yaml, but is none.
odd = st.sampled_from([
    "2024-13-45", "0x_", "0b_", "!!int ''", "!!timestamp x", "!!bool x", "&a [*a]", "1e400", "[" * 999,
])
keys = st.sampled_from(["TRAINER.NAME", *DEFAULTS]) | st.text(max_size=12)


def lists_and_groups(values):
    return st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=6), values, max_size=3)


anything = st.recursive(scalars, lists_and_groups, max_leaves=8)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["SoC", ""]), st.lists(st.tuples(keys, scalars | odd), max_size=3))
def test_any_pairs(trainer, pairs):
    with contextlib.suppress(UserError):
        build_cfg(trainer, opts=list(itertools.chain(*pairs)))


def trainer_of(key):
    """A trainer that has a setting: SoC, or the method whose own it is."""
    for name in ["SoC", *TRAINER_REGISTRY]:
        if key in leaves(get_cfg_default([name])):
            return name
    raise LookupError(f"no method has {key}")


@pytest.mark.parametrize("key", sorted(DEFAULTS.keys() - {"TRAINER.NAME", "DATASET.NAME", "TAG"}))
def test_good_and_bad_values_of_the_table(key):
    """A bad value is refused by name. A good one works, or another setting does not fit it."""
    row = find_setting(key)
    trainer = trainer_of(key)
    good, bad = row.examples()
    for value in good:
        assert not row.problem(value)
        try:
            canonical = value if row.canonical is None else row.canonical(value)
            assert leaves(build_cfg(trainer, opts=[key, value]))[key] == canonical
        except UserError as error:
            assert key.partition(".")[0] in str(error) and value != row.default
    for value in bad:
        with pytest.raises(UserError, match=re.escape(key)):
            build_cfg(trainer, opts=[key, value])


names = st.sampled_from(["SoC", "ZeroShot"])
trainers = st.fixed_dictionaries({"NAME": anything | names})
trees = st.dictionaries(st.sampled_from(["TTA", "OPTIM", "SEED", "X"]), anything)
trees |= st.fixed_dictionaries({"TRAINER": anything | trainers})
config_texts = st.text(max_size=60) | trees.map(yaml.dump) | odd.map("SEED: {}".format) | odd


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["SoC", ""]), config_texts)
def test_any_config_file(trainer, text):
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(UserError):
        path = Path(folder) / "c.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        build_cfg(trainer, config_file=str(path))


paths = st.sampled_from(["a.jpg", "b/c.jpg", "../x", ""])
labels = st.integers(-1, 3) | scalars
classnames = st.sampled_from(["river", "sea", ""]) | scalars
entries = st.lists(st.tuples(paths, labels, classnames).map(list) | anything, max_size=4)
splits = st.fixed_dictionaries({}, optional={"train": entries, "val": entries, "test": entries})
split_texts = (splits | anything).map(json.dumps) | st.text(max_size=30)


@settings(max_examples=100, deadline=None)
@given(split_texts)
def test_any_split_file(text):
    with tempfile.TemporaryDirectory() as root, contextlib.suppress(UserError):
        folder = Path(root) / "eurosat"
        (folder / "2750").mkdir(parents=True)
        (folder / "2750" / "a.jpg").touch()
        (folder / "split_zhou_EuroSAT.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        build_dataset("EuroSAT", root)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=6), st.floats(0, 1))
def test_any_damage_to_a_checkpoint(changes, length):
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(UserError):
        path = Path(folder) / "x.pt"
        torch.save({"state_dict": {"ctx": torch.randn(4, 8)}, "epoch": 1}, path)
        content = bytearray(path.read_bytes())
        for position, value in changes:
            content[int(position * (len(content) - 1))] = value
        path.write_bytes(content[: max(1, int((0.5 + length) * len(content)))])
        with contextlib.suppress(UserError):
            read_checkpoint(path)
