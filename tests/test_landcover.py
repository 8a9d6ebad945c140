"""The drawn tiles and the data sets made of them."""
import subprocess
import sys

import numpy as np
import pytest
from promptcal.datasets import build_dataset
from promptcal.datasets.identity import fingerprint
from promptcal.datasets.synthetic.canvas import SIZE
from promptcal.datasets.synthetic.tiles import CLASSNAMES, CONDITIONS, draw, shifted_tile, tile, tile_rng, under
from promptcal.datasets.utils.errors import DataError
from promptcal.trainers import build_cfg

MAKERS = {"LandCover": tile, "LandCoverShift": shifted_tile}
# Means of the first test tile of each class.
MEANS = {
    "LandCover": [
        97.79, 115.70, 85.13, 133.92, 105.10, 93.15, 113.10, 99.42, 116.72, 110.86, 118.29, 141.16, 121.18, 121.29,
        146.63, 123.34, 114.42, 109.16, 139.58, 130.23, 138.26, 65.87, 61.49, 221.05,
    ],
    "LandCoverShift": [
        125.25, 134.67, 115.67, 86.52, 114.55, 107.33, 113.97, 104.93, 65.21, 104.57, 167.97, 141.23, 140.95, 75.76,
        103.56, 80.66, 78.72, 108.90, 111.96, 137.90, 100.98, 55.81, 130.90, 186.47,
    ],
}


@pytest.mark.parametrize("name", MAKERS)
def test_tiles_are_the_recorded_ones(name):
    tiles = [MAKERS[name]("test", classname, 0) for classname in CLASSNAMES]
    assert [t.mean() for t in tiles] == pytest.approx(MEANS[name], abs=0.01)
    tiles += [MAKERS[name](split, "forest", number) for split, number in (("train", 0), ("val", 0), ("test", 1))]
    assert all(t.shape == (SIZE, SIZE, 3) and t.dtype == np.uint8 for t in tiles)
    assert len({t.tobytes() for t in tiles}) == len(tiles)


def test_a_tile_depends_on_its_key_alone():
    """The same in another process and another order."""
    code = ("import sys; from promptcal.datasets.synthetic.tiles import shifted_tile, "
            "tile\ntile('test', 'sea', 1)\nfor make in (shifted_tile, tile): "
            "sys.stdout.buffer.write(make('test', 'vineyard', 12).tobytes())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"".join(make("test", "vineyard", 12).tobytes() for make in (shifted_tile, tile))


@pytest.mark.parametrize("condition", CONDITIONS[1:])
def test_a_stronger_condition_changes_a_tile_more(condition):
    plain = draw("residential area", tile_rng("plain"))
    change = [np.abs(under(condition, plain, tile_rng("same"), s) - plain).mean() for s in (0.3, 1.0)]
    assert 0.01 < change[0] < change[1]


@pytest.mark.parametrize(("name", "train", "test"), [("LandCover", 32, 40), ("LandCoverShift", 0, 40)])
def test_sets_are_balanced_and_need_no_root(name, train, test):
    data = build_dataset(name, "no/such/folder")
    assert data.classnames == CLASSNAMES and len(set(CLASSNAMES)) == 24
    for items, count in ((data.train, train), (data.test, test)):
        assert np.bincount([item.label for item in items], minlength=24).tolist() == [count] * 24
    assert all(item.classname == data.classnames[item.label] for item in data.test)
    data.check_files(data.test)


def test_the_path_names_the_drawing():
    data = build_dataset("LandCover", "")
    item = next(item for item in data.test if item.impath == "landcover/test/car_park/00012.png")
    assert (np.asarray(data.read_image(item)) == tile("test", "car park", 12)).all()
    with pytest.raises(DataError, match="not a tile of LandCoverShift"):
        build_dataset("LandCoverShift", "").read_image(item)


def test_few_shots_and_halves():
    first, again, other = (build_dataset("LandCover", "", num_shots=16, seed=s) for s in (1, 1, 2))
    assert first.train == again.train != other.train
    assert np.bincount([item.label for item in first.train]).tolist() == [16] * 24
    with pytest.raises(DataError, match="no training images"):
        build_dataset("LandCoverShift", "", num_shots=2)
    base, new = (build_dataset("LandCover", "", subsample_classes=half) for half in ("base", "new"))
    assert base.classnames + new.classnames == CLASSNAMES
    assert {(item.label, item.classname) for item in new.test} == set(enumerate(new.classnames))


def test_fingerprint_depends_on_items_and_set_but_not_on_the_root():
    here, there, shift = (build_dataset(*given) for given in (
        ("LandCover", "a"), ("LandCover", "b"), ("LandCoverShift", "a")))
    prints = [fingerprint(here, here.test), fingerprint(here, here.test[1:]), fingerprint(here, here.test[::-1]),
              fingerprint(shift, shift.test)]
    assert len(set(prints)) == len(prints) and fingerprint(there, there.test) == prints[0]


def test_configs_name_the_set_and_weaken_the_regularisers_under_shift():
    plain, shift = (build_cfg("SoC", f"configs/datasets/{name}.yaml") for name in ("landcover", "landcover_shift"))
    assert (plain.DATASET.NAME, shift.DATASET.NAME) == ("LandCover", "LandCoverShift")
    assert plain.MODEL.BACKBONE.NAME == shift.MODEL.BACKBONE.NAME == "small"
    for method, strengths in {"CTPT": [50, 20], "OTPT": [18, 2], "SoC": [30, 14]}.items():
        configs = [build_cfg(method, name) for name in ("landcover", "landcover_shift")]
        assert [cfg.TRAINER[method.upper()].LAMBDA for cfg in configs] == strengths
