"""Orders of the test stream and unequal classes: seeded, stated in the report, without effect on
episodic methods."""
import json
from collections import Counter

import numpy as np
import pytest
from promptcal.datasets.selection import classes_in_window, image_order, long_tailed, shuffled
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import build_cfg
from promptcal.trainers.runs.make_record import stream_section
from promptcal.trainers.runs.run_dir import read_predictions, read_results

from common import run_tool

SETS = {"CIFAR-10": (10, 200), "DTD": (47, 36), "ImageNet-V2": (1000, 3), "uneven": (30, None)}
FEW = ("TTA.VIEWS", 10, "TEST.PART", 4)


def labels_of(name: str) -> list[int]:
    classes, each = SETS[name]
    labels = []
    for k in range(classes):
        labels += [k] * (each or 1 + k % 7)
    return labels


def rotta(labels: list[int], gamma: float, rng: np.random.Generator) -> list[int]:
    """The sampler of RoTTA, written out."""
    classes = sorted(set(labels))
    slots = min(len(classes), 100)
    shares = rng.dirichlet([gamma] * slots, len(classes))
    held: list[dict[int, list[int]]] = [{} for _ in range(slots)]
    positions = {k: [] for k in classes}
    for at, label in enumerate(labels):
        positions[label].append(at)
    for (k, own), share in zip(positions.items(), shares, strict=True):
        cuts = [0, *(int(part * len(own)) for part in np.cumsum(share)[:-1]), len(own)]
        for slot in range(slots):
            held[slot][k] = own[cuts[slot] : cuts[slot + 1]]
    order = []
    for slot in held:
        for k in rng.permutation(classes):
            order += slot[k]
    return order


@pytest.mark.parametrize("name", SETS)
def test_correlated_is_rottas_and_always_ends(name):
    labels = labels_of(name)
    indices = list(range(len(labels)))
    mixed = []
    for gamma in (1e-300, 0.1, 1000):
        order = image_order(indices, labels, "correlated", gamma, seed=3)
        assert sorted(order) == indices
        assert order == rotta(labels, gamma, np.random.default_rng([3, len(labels)]))
        mixed.append(classes_in_window([labels[at] for at in order]))
    assert mixed[0] < mixed[1] < mixed[2]
    assert image_order(indices, labels, "correlated", 0.1, seed=4) != image_order(
        indices, labels, "correlated", 0.1, 3
    )


def test_sorted_and_random():
    indices = [5, 2, 9, 7, 1, 4]
    labels = [1, 0, 1, 0, 2, 1]
    # As it was before there were orders.
    assert image_order(indices, labels, "random", 0.1, 1) == shuffled(indices, 1)
    order = image_order(indices, labels, "sorted", 0.1, 1)
    assert [labels[indices.index(at)] for at in order] == [0, 0, 1, 1, 1, 2]
    assert sorted(order) == sorted(indices)
    assert len({tuple(image_order(indices, labels, "sorted", 0.1, seed)) for seed in range(9)}) > 1


def test_classes_among_successive_images():
    assert classes_in_window([0, 0, 1, 1, 2], window=2) == pytest.approx((1 + 2 + 1 + 2) / 4)
    assert classes_in_window([3, 3, 1]) == 2  # fewer images than a window


def test_unequal_classes():
    labels = labels_of("DTD")
    for exponent, most in ((0.5, 36), (2, 36)):
        positions = long_tailed(labels, exponent)
        counts = [count for _, count in Counter(labels[at] for at in positions).most_common()]
        # no image twice, no class lost
        assert positions == sorted(set(positions)) and len(counts) == 47
        assert counts == [max(1, round(most * rank ** -exponent)) for rank in range(1, 48)]
    assert long_tailed(labels, 0) == list(range(len(labels)))
    uneven = Counter(np.take(labels_of("uneven"), long_tailed(labels_of("uneven"), 1)).tolist())
    for k in range(30):
        assert 1 <= uneven[k] <= 1 + k % 7


def test_what_cannot_be_drawn_gets_one_line():
    for order in ("random", "sorted"):
        assert len(image_order(range(3), [0, 1, 2], order, 0.1, 0)) == 3
    with pytest.raises(ConfigError, match=r"correlated cannot be drawn: each of the 3 images .* "
                                          r"TEST.ORDER random or"):
        image_order(range(3), [0, 1, 2], "correlated", 0.1, 0)
    with pytest.raises(ConfigError, match=r"TEST.CORRELATION 1e\+308 cannot be drawn"):
        image_order(range(3), [0, 1, 1], "correlated", 1e308, 0)
    with pytest.raises(ConfigError, match="TEST.IMBALANCE 1 cannot be drawn"):
        long_tailed([0, 1, 2], 1)
    for key, value in (("ORDER", "shuffled"), ("CORRELATION", 0), ("IMBALANCE", -1)):
        with pytest.raises(ConfigError, match=f"TEST.{key} is .* it must be"):
            build_cfg("TDA", "dtd", opts=[f"TEST.{key}", value])


def test_an_order_enters_only_where_it_has_an_effect():
    orders = [[], ["TEST.ORDER", "sorted"], ["TEST.ORDER", "correlated"], ["TEST.CORRELATION", 1],
              ["TEST.ORDER", "correlated", "TEST.CORRELATION", 1]]
    for trainer, reset, different in (
        ("TPT", "image", 1),
        ("ZeroShot", "image", 1),
        ("TDA", "image", 4),
        ("TPT", "1", 1),
        ("TPT", "never", 4),
    ):
        configs = [build_cfg(trainer, "dtd", opts=[*opts, "TTA.RESET", reset]) for opts in orders]
        assert len({cfg.TAG for cfg in configs}) == different
        if different > 1:
            assert len({json.dumps(stream_section(cfg)) for cfg in configs}) == different
        assert build_cfg(trainer, "dtd", opts=["TEST.IMBALANCE", 1]).TAG == "IMBALANCE-1.0"


def test_episodic_methods_are_unaffected_by_the_order(train, tmp_path):
    predictions = []
    for order in ("random", "sorted", "correlated"):
        done = train("TPT", "TEST.ORDER", order, "--output-dir", tmp_path / order, *FEW)
        assert done.returncode == 0, done.stderr
        predictions.append(read_predictions(tmp_path / order))
        assert "classes_in_64" not in read_results(tmp_path / order)
    for columns in predictions[1:]:
        for name, column in predictions[0].items():
            np.testing.assert_array_equal(columns[name], column, err_msg=name)
    done = train("TPT", "TEST.ORDER", "sorted", "--output-dir", tmp_path / "random", *FEW)
    assert "nothing to compute" in done.stdout  # it is the same run


def test_online_methods_follow_the_order_and_the_report_states_it(train, tmp_path):
    results = {}
    for order in ("random", "sorted", "correlated"):
        folder = tmp_path / "runs" / order
        stream = ("TEST.ORDER", order, "TEST.CORRELATION", 0.01)
        done = train("TDA", *stream, "--output-dir", folder)
        assert done.returncode == 0, done.stderr
        results[order] = read_results(folder)["classes_in_64"]
        assert read_predictions(folder)["index"].tolist() == list(range(12))
    assert results == dict.fromkeys(results, 4)  # 12 images are one window
    refused = train("TDA", "TEST.ORDER", "random", "--output-dir", tmp_path / "runs" / "sorted")
    assert refused.returncode == 2 and "TEST.ORDER was 'sorted', is 'random'" in refused.stderr
    done = run_tool("report.py", tmp_path / "runs", "--out", tmp_path / "report", "--no-figures")
    assert done.returncode == 0, done.stderr
    tables = (tmp_path / "report" / "tables.md").read_text()
    assert "Classes among 64 successive images, on average: TDA: " in tables
    assert "order of the images" in tables
    assert "TDA, sorted" in tables
    assert "TDA, correlated" in tables


def test_unequal_classes_in_a_run(train, tmp_path):
    done = train("ZeroShot", "TEST.IMBALANCE", 1)
    assert done.returncode == 0, done.stderr
    assert "images (imbalance 1), 7 test images of 4 classes" in done.stdout
    results = read_results(tmp_path / "run")
    columns = read_predictions(tmp_path / "run")
    assert results["n"] == 7 and sorted(Counter(columns["label"].tolist()).values()) == [1, 1, 2, 3]
    done = train("TPT", "TEST.LIMIT", 6, "TEST.IMBALANCE", 1, "--output-dir", tmp_path / "tpt", *FEW)
    assert done.returncode == 0, done.stderr
    # A part of the same images.
    assert set(read_predictions(tmp_path / "tpt")["index"]) < set(columns["index"])
