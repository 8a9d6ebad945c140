"""Which images a run uses: known by content, copies numbered, corruptions of one image together."""
from __future__ import annotations

import importlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter
from promptcal.datasets import Dataset, build_dataset
from promptcal.datasets.checks import shared_images
from promptcal.datasets.identity import ImageIdentity, content_of, fingerprint, identify
from promptcal.datasets.image_folder import ImageFolder
from promptcal.datasets.image_index import ImageIndex
from promptcal.datasets.utils.errors import DataError

from common import make_image_folder
from data_roots import build_cifar, build_cifar_c, build_imagenet, build_imagenet_c


def identity_of(
    dataset: Dataset, split: str = "test", indices: range | list[int] | None = None
) -> ImageIdentity:
    items = getattr(dataset, split)
    if indices is None:
        indices = range(len(items))
    return identify(dataset, items, indices, ImageIndex(None))


def folder_identity(root: Path) -> ImageIdentity:
    return identity_of(build_dataset("ImageFolder", root))


def rows(array: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in array}


def test_the_same_images_elsewhere_are_the_same(tmp_path):
    """Under another root, with other names of files, folders and dates."""
    first = make_image_folder(tmp_path / "laptop")
    second = tmp_path / "cluster" / "photos"
    shutil.copytree(first, second, copy_function=shutil.copyfile)
    for path in sorted(second.rglob("*.png")):
        path.rename(path.with_name(f"image_{path.name}"))
    here = folder_identity(first)
    there = folder_identity(second)
    assert here.images == there.images and here.listing == there.listing
    assert np.array_equal(here.digests, there.digests)
    assert np.array_equal(here.clusters, there.clusters)


@pytest.mark.parametrize("change", ["pixels", "label", "order", "fewer"])
def test_what_makes_another_set(tmp_path, change):
    dataset = build_dataset("ImageFolder", make_image_folder(tmp_path))
    items = list(dataset.test)
    indices = list(range(12))
    before = identify(dataset, items, indices, ImageIndex(None))
    if change == "pixels":
        file = Path(items[3].impath)
        file.write_bytes(bytes(len(file.read_bytes())))
    elif change == "label":
        items[3] = replace(items[3], label=2)
    elif change == "order":
        indices.reverse()
    else:
        indices.pop()
    after = identify(dataset, items, indices, ImageIndex(None))
    assert before.listing != after.listing
    assert (before.images == after.images) is (change == "order")


def test_copies_of_a_picture_have_identities_of_their_own(tmp_path):
    """They are in two classes. Which copy is the first does not depend on the order of the list."""
    folder = make_image_folder(tmp_path)
    for copy in ("kind_a/9.png", "kind_d/0.png"):
        shutil.copy(folder / "kind_a" / "0.png", folder / copy)
    dataset = build_dataset("ImageFolder", folder)
    identity = identity_of(dataset)
    assert len(rows(identity.digests)) == len(dataset.test) == 13
    assert len(rows(identity.contents)) == len(np.unique(content_of(identity.digests))) == 11
    assert len(rows(identity.clusters)) == 11
    assert np.array_equal(identity.digests[0], identity.contents[0])
    backwards = identity_of(dataset, indices=range(12, -1, -1))
    assert np.array_equal(backwards.digests, identity.digests[::-1])
    for pilot in ([3, 5], [10], [0, 10], [1, 2]):  # also one that has the later copies alone
        assert np.array_equal(identity_of(dataset, indices=pilot).digests, identity.digests[pilot])


def test_cifars_images_are_known_by_their_pixels(tmp_path):
    build_cifar(tmp_path)
    arrays = build_cifar_c(tmp_path, ["fog", "snow"])
    fog = identity_of(build_dataset("CIFAR10C", tmp_path, corruption="fog"))
    assert len(rows(fog.digests)) == 20
    arrays["fog"][81] = arrays["fog"][80]  # a copy
    np.save(tmp_path / "CIFAR-10-C" / "fog.npy", arrays["fog"])
    copied = identity_of(build_dataset("CIFAR10C", tmp_path, corruption="fog"))
    assert len(rows(copied.digests)) == 20 and len(rows(copied.contents)) == 19
    assert np.array_equal(fog.digests[2:], copied.digests[2:]) and fog.images != copied.images


def corrupted_sets(name: str, root: Path) -> list[Dataset]:
    """The clean set first, then other corruptions and severities of it."""
    corrupted = f"{name}C"
    corruptions = (("fog", 3), ("fog", 5), ("snow", 5))
    if name == "LandCover":
        corrupted = name
        corruptions = (("fog", 3), ("contrast", 5))
    elif name == "ImageNet":
        images = root / "imagenet" / "images" / "val"
        build_imagenet("ImageNet", images)
        for path in images.rglob("*.JPEG"):
            # As ImageNet-C's.
            path.rename(path.with_name(f"ILSVRC2012_val_{path.stem[-1]:0>8}.JPEG"))
        build_imagenet_c(root, ["fog", "snow"], (103, 105))
        for path in (*root.glob("ImageNet-C/*/103"), *root.glob("ImageNet-C/*/105")):
            path.rename(path.with_name(path.name[-1]))  # shades that no clean image has
    else:
        build_cifar(root, int(name[5:]))
        build_cifar_c(root, ["fog", "snow"], int(name[5:]))
    datasets = [build_dataset(name, root)]
    for corruption, severity in corruptions:
        datasets.append(build_dataset(corrupted, root, corruption=corruption, severity=severity))
    return datasets


@pytest.mark.parametrize("name", ["LandCover", "ImageNet", "CIFAR10", "CIFAR100"])
def test_corruptions_of_an_image_are_one_cluster(name, tmp_path):
    clean, *corrupted = corrupted_sets(name, tmp_path)
    expected = identity_of(clean)
    assert len(rows(expected.clusters)) == len(clean.test)
    for dataset in corrupted:
        identity = identity_of(dataset)
        assert rows(identity.clusters) == rows(expected.clusters)
        assert not rows(identity.digests) & rows(expected.digests)


def test_other_splits_and_sets_are_other_clusters(tmp_path):
    build_cifar(tmp_path, 10)
    build_cifar(tmp_path, 100)
    ten = build_dataset("CIFAR10", tmp_path)
    hundred = build_dataset("CIFAR100", tmp_path)
    land = build_dataset("LandCover", "")
    identities = [
        identity_of(ten), identity_of(ten, "train"), identity_of(hundred), identity_of(land),
        identity_of(land, "val"), identity_of(build_dataset("LandCoverShift", "")),
    ]
    clusters = [rows(identity.clusters) for identity in identities]
    assert len(set.union(*clusters)) == sum(map(len, clusters))


def test_images_of_a_patient_are_one_cluster(tmp_path):
    dataset = build_dataset("ImageFolder", make_image_folder(tmp_path))
    for number, item in enumerate(dataset.test):
        dataset.test[number] = replace(item, group=f"patient {number % 5}")
    identity = identity_of(dataset)
    assert len(rows(identity.clusters)) == 5 and len(rows(identity.digests)) == 12
    assert np.array_equal(identity.clusters[0], identity.clusters[5])


PLUGIN = """
from PIL import ImageOps
from promptcal.datasets.image_folder import ImageFolder
from promptcal.datasets.landcover import LandCover
from strength import LEVELS

class Reduced(ImageFolder):
    def read_image(self, datum):
        return ImageOps.posterize(super().read_image(datum), LEVELS)

class Tiles(LandCover):
    draw_tile = staticmethod(lambda *key: LandCover.draw_tile(*key) // LEVELS)

class Listed(ImageFolder):
    "Changes no image."
"""


def plugin(folder: Path, monkeypatch: pytest.MonkeyPatch, levels: int, source: str = PLUGIN):
    """The module of a user's readers, as a new process would import it."""
    (folder / "readers.py").write_text(source)
    (folder / "strength.py").write_text(f"LEVELS = {levels}\n")
    monkeypatch.syspath_prepend(folder)
    for name in ("readers", "strength"):
        monkeypatch.delitem(importlib.sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return importlib.import_module("readers")


def test_a_plugin_that_makes_other_images_is_known_by_its_source_too(tmp_path, monkeypatch):
    """A module of its folder counts as well. A reader that changes no image has its files'
    identity."""
    images = make_image_folder(tmp_path / "images")
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    plain = folder_identity(images).images
    tiles = identity_of(build_dataset("LandCover", "")).images
    hashes = {"Reduced": [plain], "Tiles": [tiles], "Listed": []}
    edited = f"{PLUGIN}\n# edited"
    for number, (levels, source) in enumerate([(2, PLUGIN), (3, PLUGIN), (3, edited), (2, PLUGIN)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        readers = plugin(folder, monkeypatch, levels, source)
        for name, hashes_of_reader in hashes.items():
            hashes_of_reader.append(identity_of(getattr(readers, name)(images)).images)
    for name in ("Reduced", "Tiles"):
        # The first and the last are the same files in another folder.
        assert len(set(hashes[name])) == 4 and hashes[name][1] == hashes[name][4], name
    assert set(hashes["Listed"]) == {plain}


class Blurred(ImageFolder):
    """A reader with a parameter."""

    passes = 1

    def __init__(self, root: Path, radius: float) -> None:
        self.radius = radius
        super().__init__(root)

    def read_image(self, datum) -> Image.Image:
        image = super().read_image(datum)
        for _ in range(self.passes):
            image = image.filter(ImageFilter.GaussianBlur(self.radius))
        return image


def test_what_a_reader_of_a_plugin_was_given_counts(tmp_path, monkeypatch):
    """The images differ, though its source does not. A folder may be moved."""
    images = make_image_folder(tmp_path / "images")
    moved = shutil.copytree(images, tmp_path / "moved")
    weak = identity_of(Blurred(images, 1.0)).images
    assert identity_of(Blurred(moved, 1.0)).images == weak
    assert identity_of(Blurred(images, 4.0)).images != weak
    monkeypatch.setattr(Blurred, "passes", 3)
    assert identity_of(Blurred(images, 1.0)).images != weak


class Drawn(Dataset):
    """A reader as for version 1.0, whose paths are names."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.classnames = ["dark", "bright"]
        datum = build_dataset("LandCover", "").test[0]
        self.test = []
        for n in range(4):
            path = root / "shades" / str(n)
            self.test.append(replace(datum, impath=str(path), label=n // 2))

    def read_image(self, datum) -> Image.Image:
        return Image.new("RGB", (40, 40), (int(Path(datum.impath).name) * 60,) * 3)


def test_a_plugin_that_draws_images_has_no_missing_files(tmp_path):
    first = Drawn(tmp_path / "a")
    second = Drawn(tmp_path / "b")
    identity = identity_of(first)
    assert not identity.missing and len(rows(identity.digests)) == 4
    assert fingerprint(first, first.test) == fingerprint(second, second.test)


def test_bad_and_missing_files_have_an_identity(tmp_path):
    folder = make_image_folder(tmp_path)
    victim = folder / "kind_b" / "1.png"
    gone = folder / "kind_c" / "2.png"
    image_bytes = victim.read_bytes()
    dataset = build_dataset("ImageFolder", folder)
    good = identity_of(dataset)
    victim.write_bytes(bytes(len(image_bytes)))
    gone.unlink()
    bad = identity_of(dataset)
    assert bad.missing == [str(gone)] and len(rows(bad.digests)) == 12
    changed = (good.digests != bad.digests).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [4, 8]
    with pytest.raises(DataError, match="1 of 12 images are missing"):
        fingerprint(dataset, dataset.test)
    victim.write_bytes(image_bytes)
    assert np.array_equal(identity_of(dataset).digests[4], good.digests[4])


@pytest.mark.posix
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything"
)
def test_a_file_without_permission_has_an_identity(tmp_path):
    folder = make_image_folder(tmp_path)
    (folder / "kind_a" / "0.png").chmod(0)
    identity = folder_identity(folder)
    assert not identity.missing and identity.stamps[0] is None


def test_images_that_two_splits_share_are_found_by_content(tmp_path):
    """Copies under other names; of two copies in one split both count."""
    make_image_folder(tmp_path / "test")
    make_image_folder(tmp_path / "val", classes=5)  # draws the same first twelve
    shutil.copy(tmp_path / "val" / "kind_a" / "0.png", tmp_path / "val" / "kind_e" / "copy.png")
    for path in sorted((tmp_path / "val").rglob("[0-9].png")):
        path.rename(path.with_name(f"v{path.name}"))
    dataset = build_dataset("ImageFolder", tmp_path)
    val = identity_of(dataset, "val")
    test = identity_of(dataset)
    assert shared_images(val, test) == [*range(12), 12]
    assert shared_images(test, val) == list(range(12))
    assert Path(dataset.val[12].impath).name == "copy.png"
    assert shared_images(identity_of(dataset, "val", [13, 14]), test) == []
    assert shared_images(val, identity_of(dataset, indices=[3])) == [3]
