"""The drawn tiles and the data sets made of them."""
import hashlib
import subprocess
import sys

import numpy as np
import pytest
from promptcal.datasets import build_dataset
from promptcal.datasets.synthetic.canvas import SIZE
from promptcal.datasets.synthetic.conditions import CONDITIONS
from promptcal.datasets.synthetic.tiles import CLASSNAMES, draw, shifted_tile, tile, tile_rng, under
from promptcal.datasets.utils.errors import DataError
from promptcal.trainers import build_cfg


def digest(picture: np.ndarray) -> str:
    return hashlib.sha256(picture.tobytes()).hexdigest()


@pytest.mark.parametrize("make", [tile, shifted_tile])
def test_tiles_are_pictures_and_all_different(make):
    pictures = [make("test", name, number) for name in CLASSNAMES for number in range(3)]
    pictures += [make(split, "forest", 0) for split in ("train", "val")]
    assert all(p.shape == (SIZE, SIZE, 3) and p.dtype == np.uint8 for p in pictures)
    assert len({digest(p) for p in pictures}) == len(pictures)
    assert min(p.std() for p in pictures) > 1  # none is flat


def test_a_tile_depends_on_its_key_alone():
    """The same in another process and another order, and as version 1.0 draws them."""
    code = (
        "import hashlib; from promptcal.datasets.synthetic.tiles import shifted_tile, tile\n"
        "tile('test', 'sea', 1)\n"
        "for make in (shifted_tile, tile): print(hashlib.sha256(make('test', 'vineyard', 12).tobytes()).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [digest(make("test", "vineyard", 12)) for make in (shifted_tile, tile)]


def test_colours_are_what_a_person_expects():
    def mean(name):
        return np.mean([draw(name, tile_rng("colours", name, n)) for n in range(8)], axis=(0, 1, 2))

    assert mean("snow").min() > 0.7
    assert mean("sea").argmax() == 2
    assert mean("forest").argmax() == 1 and mean("forest").max() < 0.35
    assert mean("desert").argmax() == 0 and mean("desert")[0] > mean("desert")[2] + 0.15


@pytest.mark.parametrize("condition", [c for c in CONDITIONS if c != "clear"])
def test_a_stronger_condition_changes_a_tile_more(condition):
    plain = draw("residential area", tile_rng("plain"))
    change = [np.abs(under(condition, plain, tile_rng("same"), s) - plain).mean() for s in (0.3, 1.0)]
    assert 0.01 < change[0] < change[1]


@pytest.mark.parametrize("name, train, test", [("LandCover", 32, 40), ("LandCoverShift", 0, 40)])
def test_sets_are_balanced_and_need_no_root(name, train, test):
    data = build_dataset(name, "no/such/folder")
    assert data.classnames == CLASSNAMES and len(set(CLASSNAMES)) == 24
    for split, count in (("train", train), ("test", test)):
        labels = [item.label for item in getattr(data, split)]
        assert np.bincount(labels, minlength=24).tolist() == [count] * 24
    assert all(item.classname == data.classnames[item.label] for item in data.test)
    image = data.read_image(data.test[500])
    assert image.mode == "RGB" and image.size == (SIZE, SIZE)


def test_the_path_names_the_drawing():
    data = build_dataset("LandCover", "")
    item = next(item for item in data.test if item.impath == "landcover/test/car_park/00012.png")
    assert (np.asarray(data.read_image(item)) == tile("test", "car park", 12)).all()
    with pytest.raises(DataError, match="not a tile of LandCoverShift"):
        build_dataset("LandCoverShift", "").read_image(item)


def test_few_shot_samples_follow_the_seed():
    first, again, other = (build_dataset("LandCover", "", num_shots=16, seed=s) for s in (1, 1, 2))
    assert first.train == again.train != other.train
    assert np.bincount([item.label for item in first.train]).tolist() == [16] * 24
    with pytest.raises(DataError, match="no training images"):
        build_dataset("LandCoverShift", "", num_shots=2)


def test_base_and_new_classes_share_nothing():
    base, new = (build_dataset("LandCover", "", subsample_classes=half) for half in ("base", "new"))
    assert base.classnames + new.classnames == CLASSNAMES
    assert {item.label for item in new.test} == set(range(12))
    assert {item.classname for item in new.test} == set(new.classnames)


def test_fingerprint_tells_items_and_sets_apart_but_not_roots():
    here, there = build_dataset("LandCover", "a"), build_dataset("LandCover", "b")
    shift = build_dataset("LandCoverShift", "a")
    prints = [here.fingerprint(here.test), here.fingerprint(here.test[1:]), here.fingerprint(here.test[::-1]),
              shift.fingerprint(shift.test)]
    assert len(set(prints)) == len(prints)
    assert there.fingerprint(there.test) == prints[0]


def test_configs_name_the_set_and_weaken_the_regularisers_under_shift():
    plain = build_cfg("SoC", "configs/datasets/landcover.yaml")
    shift = build_cfg("SoC", "configs/datasets/landcover_shift.yaml")
    assert (plain.DATASET.NAME, shift.DATASET.NAME) == ("LandCover", "LandCoverShift")
    assert plain.MODEL.BACKBONE.NAME == shift.MODEL.BACKBONE.NAME == "small"
    strengths = [(c.TRAINER.CTPT.LAMBDA, c.TRAINER.OTPT.LAMBDA, c.TRAINER.SOC.LAMBDA) for c in (plain, shift)]
    assert strengths == [(50.0, 18.0, 30.0), (20.0, 2.0, 14.0)]
