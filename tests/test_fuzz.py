"""Arbitrary files: settings, splits and checkpoints either work or end in a line for the user, never in a crash."""
from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from promptcal.datasets import build_dataset
from promptcal.datasets.errors import UserError
from promptcal.trainers import build_cfg
from promptcal.trainers.defaults import get_cfg_default
from promptcal.trainers.validation import leaves
from promptcal.trainers.vlm.checkpoints import read_checkpoint

KEYS = sorted(leaves(get_cfg_default()))
scalars = st.none() | st.booleans() | st.integers(-5, 200) | st.floats() | st.text(max_size=8)
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.text(max_size=6), inner, max_size=3), max_leaves=8)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KEYS) | st.text(max_size=12), scalars), max_size=3))
def test_any_pairs(pairs):
    with contextlib.suppress(UserError):
        build_cfg("SoC", opts=[word for pair in pairs for word in pair])


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.dictionaries(st.sampled_from(["TTA", "OPTIM", "SEED", "X"]), anything).map(yaml.dump))
def test_any_config_file(text):
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(UserError):
        path = Path(folder) / "c.yaml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        build_cfg("SoC", config_file=str(path))


entries = st.lists(st.tuples(st.sampled_from(["a.jpg", "b/c.jpg", "../x", ""]), st.integers(-1, 3) | scalars,
                             st.sampled_from(["river", "sea", ""]) | scalars).map(list) | anything, max_size=4)


@settings(max_examples=100, deadline=None)
@given(st.fixed_dictionaries({}, optional={"train": entries, "val": entries, "test": entries}).map(json.dumps)
       | anything.map(json.dumps) | st.text(max_size=30))
def test_any_split_file(text):
    with tempfile.TemporaryDirectory() as root, contextlib.suppress(UserError):
        folder = Path(root) / "eurosat"
        (folder / "2750").mkdir(parents=True)
        (folder / "2750" / "a.jpg").touch()
        (folder / "split_zhou_EuroSAT.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        build_dataset("EuroSAT", root)


@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=6), st.floats(0, 1))
def test_any_damage_to_a_checkpoint(zip_format, changes, length):
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(UserError):
        path = Path(folder) / "x.pt"
        torch.save({"state_dict": {"ctx": torch.randn(4, 8)}, "epoch": 1}, path,
                   _use_new_zipfile_serialization=zip_format)
        content = bytearray(path.read_bytes())
        for place, value in changes:
            content[int(place * (len(content) - 1))] = value
        path.write_bytes(content[: max(1, int((0.5 + length) * len(content)))])
        read_checkpoint(path)
