"""Arbitrary settings, splits and checkpoints either work or end in one line for the user, never in a crash; valid ones
work."""
from __future__ import annotations

import contextlib
import json
import re
import tempfile
from functools import reduce
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
odd = st.sampled_from(
    ["2024-13-45", "0x_", "0b_", "!!int ''", "!!timestamp x", "!!bool x", "&a [*a]", "1e400", "[" * 999])
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.text(max_size=6), inner, max_size=3), max_leaves=8)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["SoC", ""]), st.lists(
    st.tuples(st.sampled_from(["TRAINER.NAME", *DEFAULTS]) | st.text(max_size=12), scalars | odd), max_size=3))
def test_any_pairs(trainer, pairs):
    with contextlib.suppress(UserError):
        build_cfg(trainer, opts=[word for pair in pairs for word in pair])


def read_config(trainer, text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return build_cfg(trainer, config_file=str(path))


@settings(max_examples=30, deadline=None)
@given(st.sets(st.sampled_from(sorted(DEFAULTS)), max_size=5))
def test_defaults_are_accepted_as_pairs_and_as_files(keys):
    pairs, tree = [], {}
    for key in keys - {"TRAINER.NAME"}:
        *groups, name = key.split(".")
        reduce(lambda node, group: node.setdefault(group, {}), groups, tree)[name] = DEFAULTS[key]
        pairs += [key, DEFAULTS[key]]
    assert build_cfg("SoC") == build_cfg("SoC", opts=pairs) == read_config("SoC", yaml.safe_dump(tree))


def trainer_of(key):
    """A trainer that has a setting: SoC, or the method whose own it is."""
    if key in leaves(get_cfg_default(["SoC"])):
        return "SoC"
    return next(name for name in TRAINER_REGISTRY if key in leaves(get_cfg_default([name])))


@pytest.mark.parametrize("key", sorted(DEFAULTS.keys() - {"TRAINER.NAME", "DATASET.NAME", "TAG"}))
def test_good_and_bad_values_of_the_table(key):
    """A bad value is refused by name. A good one works, or another setting does not fit it."""
    row = find_setting(key)
    trainer = trainer_of(key)
    good, bad = row.examples()
    for value in good:
        assert not row.problem(value)
        try:
            assert leaves(build_cfg(trainer, opts=[key, value]))[key] == row.canonical(value)
        except UserError as error:
            assert key.partition(".")[0] in str(error) and value != row.default
    for value in bad:
        with pytest.raises(UserError, match=re.escape(key)):
            build_cfg(trainer, opts=[key, value])


trees = st.dictionaries(st.sampled_from(["TTA", "OPTIM", "SEED", "X"]), anything) | st.fixed_dictionaries(
    {"TRAINER": anything | st.fixed_dictionaries({"NAME": anything | st.sampled_from(["SoC", "ZeroShot"])})})


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["SoC", ""]), st.text(max_size=60) | trees.map(yaml.dump) | odd.map("SEED: {}".format) | odd)
def test_any_config_file(trainer, text):
    with contextlib.suppress(UserError):
        read_config(trainer, text)


entries = st.lists(st.tuples(st.sampled_from(["a.jpg", "b/c.jpg", "../x", ""]), st.integers(-1, 3) | scalars,
                             st.sampled_from(["river", "sea", ""]) | scalars).map(list) | anything, max_size=4)


def read_split(text):
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "eurosat"
        (folder / "2750").mkdir(parents=True)
        for name in "abcdef":
            (folder / "2750" / f"{name}.jpg").touch()
        (folder / "split_zhou_EuroSAT.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        return build_dataset("EuroSAT", root)


@settings(max_examples=100, deadline=None)
@given(st.fixed_dictionaries({}, optional={"train": entries, "val": entries, "test": entries}).map(json.dumps)
       | anything.map(json.dumps) | st.text(max_size=30))
def test_any_split_file(text):
    with contextlib.suppress(UserError):
        read_split(text)


@settings(max_examples=20, deadline=None)
@given(st.permutations("abcdef"), st.permutations(["river", "sea"]))
def test_valid_split_files_are_read(files, names):
    rows = [[f"{file}.jpg", i % 2, names[i % 2]] for i, file in enumerate(files)]
    dataset = read_split(json.dumps({"train": rows[:2], "val": rows[2:4], "test": rows[4:]}))
    assert dataset.classnames == names and [datum.label for datum in dataset.test] == [0, 1]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=6), st.floats(0, 1))
def test_any_damage_to_a_checkpoint(changes, length):
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(UserError):
        path = Path(folder) / "x.pt"
        torch.save({"state_dict": {"ctx": torch.randn(4, 8)}, "epoch": 1}, path)
        content = bytearray(path.read_bytes())
        for place, value in changes:
            content[int(place * (len(content) - 1))] = value
        path.write_bytes(content[: max(1, int((0.5 + length) * len(content)))])
        with contextlib.suppress(UserError):
            read_checkpoint(path)
