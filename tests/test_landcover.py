"""The drawn tiles and the data sets made of them."""
import subprocess
import sys

import numpy as np
import pytest
from promptcal.datasets import build_dataset
from promptcal.datasets.synthetic import CLASSNAMES, SIZE, shifted_tile, tile
from promptcal.datasets.utils.errors import DataError
from promptcal.trainers import build_cfg

from data_roots import labels_of, paths_of

MAKERS = {"LandCover": tile, "LandCoverShift": shifted_tile}
# Means of the first test tile of each class.
MEANS = {
    "LandCover": [
        97.79, 115.70, 85.13, 133.92, 105.10, 93.15, 113.10, 99.42, 116.72, 110.86, 118.29,
        141.16, 121.18, 121.29, 146.63, 123.34, 114.42, 109.16, 139.58, 130.23, 138.26, 65.87,
        61.49, 221.05,
    ],
    "LandCoverShift": [
        125.25, 134.67, 115.67, 86.52, 114.55, 107.33, 113.97, 104.93, 65.21, 104.57, 167.97,
        141.23, 140.95, 75.76, 103.56, 80.66, 78.72, 108.90, 111.96, 137.90, 100.98, 55.81,
        130.90, 186.47,
    ],
}


@pytest.mark.parametrize("name", MAKERS)
def test_tiles_are_the_recorded_ones(name):
    make = MAKERS[name]
    tiles = [make("test", classname, 0) for classname in CLASSNAMES]
    assert np.mean(tiles, axis=(1, 2, 3)) == pytest.approx(MEANS[name], abs=0.01)
    tiles += [make("train", "forest", 0), make("val", "forest", 0), make("test", "forest", 1)]
    contents = set()
    for drawn in tiles:
        assert drawn.shape == (SIZE, SIZE, 3) and drawn.dtype == np.uint8
        contents.add(drawn.tobytes())
    assert len(contents) == len(tiles)


CODE = """
import sys
from promptcal.datasets.synthetic import shifted_tile, tile

tile("test", "sea", 1)
for make in (shifted_tile, tile):
    sys.stdout.buffer.write(make("test", "vineyard", 12).tobytes())
"""


def test_a_tile_depends_on_its_key_alone():
    """The same in another process and another order."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True)
    plain = tile("test", "vineyard", 12)
    shifted = shifted_tile("test", "vineyard", 12)
    assert done.stdout == shifted.tobytes() + plain.tobytes()


@pytest.mark.parametrize(("name", "train"), [("LandCover", 32), ("LandCoverShift", 0)])
def test_sets_are_balanced_and_need_no_root(name, train):
    data = build_dataset(name, "no/such/folder")
    assert data.classnames == CLASSNAMES and len(set(CLASSNAMES)) == 24
    for items, count in ((data.train, train), (data.test, 40)):
        numbers = np.bincount(labels_of(items), minlength=24)
        assert numbers.tolist() == [count] * 24
    for item in data.test:
        assert item.classname == data.classnames[item.label]
    data.check_files(data.test)


def test_the_shifted_set_cannot_be_trained_on():
    with pytest.raises(DataError, match="no training images.*use LandCover for training"):
        build_dataset("LandCoverShift", "", num_shots=2)


def test_the_path_names_the_drawing():
    data = build_dataset("LandCover", "")
    paths = paths_of(data.test)
    item = data.test[paths.index("landcover/test/car_park/00012.png")]
    assert (np.asarray(data.read_image(item)) == tile("test", "car park", 12)).all()
    with pytest.raises(DataError, match="not a tile of LandCoverShift"):
        build_dataset("LandCoverShift", "").read_image(item)


def test_configs_name_the_set_and_weaken_the_regularisers_under_shift():
    for method, plain, shifted in (("CTPT", 50, 20), ("OTPT", 18, 2), ("SoC", 30, 14)):
        for name, strength in (("landcover", plain), ("landcover_shift", shifted)):
            cfg = build_cfg(method, name)
            assert cfg.DATASET.NAME.lower() == name.replace("_", "")
            assert cfg.MODEL.BACKBONE.NAME == "small"
            assert strength == cfg.TRAINER[method.upper()].LAMBDA
