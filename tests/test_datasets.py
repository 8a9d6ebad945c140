"""What every data set goes through before a model is loaded: root, split file, labels, names,
files."""
import os
import shutil
from functools import partial

import pytest
from promptcal.datasets import DATASET_REGISTRY, build_dataset
from promptcal.datasets.identity import fingerprint
from promptcal.datasets.utils.errors import ConfigError, DataError, UnknownNameError

from data_roots import IMAGE_DIRS, WNIDS, build, entries, paths_of, refused, write_split
from folders import names

DTD = "DescribableTextures"


@pytest.fixture
def textures(tmp_path):
    build(DTD, tmp_path)
    return tmp_path


def refuse(monkeypatch, path, name):
    """The system refuses `path` and what is below it, as for a user without permission.

    Permissions themselves have no effect where the tests run as root.
    """
    real = getattr(os, name)

    def call(target=".", *args, **options):
        if str(target) == str(path) or str(target).startswith(f"{path}{os.sep}"):
            raise PermissionError(13, "Permission denied", str(target))
        return real(target, *args, **options)

    monkeypatch.setattr(os, name, call)


def test_names_are_registered_once_and_unknown_ones_get_the_nearest():
    with pytest.raises(UnknownNameError, match=r"Did you mean 'UCF101'\?"):
        build_dataset("UFC101", "anywhere")
    with pytest.raises(ConfigError, match="registered twice"):
        DATASET_REGISTRY.register()(DATASET_REGISTRY.get("UCF101"))


def test_names_are_found_in_any_spelling(textures):
    for name in ("DescribableTextures", "describable_textures", "dtd"):
        assert type(build_dataset(name, textures)).__name__ == "DescribableTextures"


@pytest.mark.parametrize(("arguments", "message"), [
    ({"subsample_classes": "bases"}, "it must be all, base or new"),
    ({"num_shots": 0}, "NUM_SHOTS is 0"), ({"num_shots": -2}, "NUM_SHOTS is -2"),
])
def test_bad_settings(arguments, message, textures):
    with pytest.raises(ConfigError, match=message):
        build_dataset(DTD, textures, **arguments)


def test_wrong_roots_are_explained(textures, monkeypatch):
    with pytest.raises(DataError, match=(
        r"data root /nowhere is not a folder: give the one that holds dtd/ .*, or run: python "
        r"tools/download.py dtd --root /nowhere. To try without data: --dataset-config-file "
        r"landcover --backbone small$")):
        build_dataset(DTD, "/nowhere")
    refused(r"no folder .*ucf101; .*python tools/download.py ucf101 --root", "UCF101", textures)
    refused(f"give the folder above, {textures}$", DTD, textures / "dtd")
    monkeypatch.setenv("HOME", str(textures.parent))
    assert len(build_dataset(DTD, f"~/{textures.name}").test) == 6
    shutil.rmtree(textures / "dtd" / "images")
    refused(r"no images: there is no folder .*dtd/images", DTD, textures)


def test_a_missing_split_file_is_explained_with_id_and_folder(textures, no_internet):
    (textures / "dtd" / "split_zhou_DescribableTextures.json").unlink()
    with pytest.raises(DataError, match="is missing and could not be downloaded") as caught:
        build_dataset(DTD, textures)
    message = str(caught.value)
    assert "1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x" in message and "\n" not in message
    assert f"save it as split_zhou_DescribableTextures.json in {textures / 'dtd'}" in message
    assert names(textures / "dtd") == ["images"]  # no partial file


def test_aircraft_lists(tmp_path):
    build("FGVCAircraft", tmp_path)
    lists = tmp_path / "fgvc_aircraft"
    (lists / "images_variant_train.txt").unlink()
    assert not build_dataset("FGVCAircraft", tmp_path).train  # testing needs no training list
    refused("no training images for DATASET.NUM_SHOTS 1; .*download.py fgvc", "FGVCAircraft", tmp_path, num_shots=1)
    with (lists / "images_variant_test.txt").open("a") as file:
        file.write("0000001 Concorde\n0000002\n")
    refused(r"variant of variants.txt: 0000001 Concorde, 0000002$", "FGVCAircraft", tmp_path)
    (lists / "images_variant_test.txt").unlink()
    refused(r"images_variant_test.txt is missing; it is part of the images' archive", "FGVCAircraft", tmp_path)


NOT_ENTRIES = r"test has entries that are not \[path, label, class name\]: "


@pytest.mark.parametrize(("entry", "message"), [
    (["a.jpg", 0], NOT_ENTRIES),
    (["a.jpg", "0", "banded"], NOT_ENTRIES),
    (["a.jpg", -1, "banded"], NOT_ENTRIES),
    (["a.jpg", True, "banded"], NOT_ENTRIES),
    (["a.jpg", 0, " "], NOT_ENTRIES),
    (["", 0, "banded"], NOT_ENTRIES),
    ("a.jpg", NOT_ENTRIES),
    (None, NOT_ENTRIES),
    (["a.jpg", 4, "x"], r"gaps in its labels: no image of label 3$"),
    (["a.jpg", 0, "striped"], "a.jpg calls label 0 'striped', elsewhere it is 'banded'"),
    (["banded/image_0001.jpg", 0, "banded"], "lists images twice: .*banded/image_0001.jpg"),
])
def test_bad_entries(entry, message, textures):
    splits = entries(DTD)
    splits["test"].append(entry)
    write_split(textures, DTD, splits)
    refused(message, DTD, textures)


def test_missing_images_are_named_five_at_most(tmp_path):
    build("EuroSAT", tmp_path)
    for path in (tmp_path / IMAGE_DIRS["EuroSAT"]).glob("*/image_0002.jpg"):
        path.unlink()
    dataset = build_dataset("EuroSAT", tmp_path)
    for check in (partial(fingerprint, dataset), dataset.check_files):
        with pytest.raises(DataError, match="10 of 20 images are missing") as caught:
            check(dataset.test)
        assert str(caught.value).count("image_0002.jpg") == 5
        assert str(caught.value).endswith("and 5 more; for the expected layout, run: "
                                          f"python tools/download.py eurosat --root {tmp_path}")


def test_each_test_file_is_looked_at_once(textures, monkeypatch):
    """Only when the fingerprint is made, not when the lists are read."""
    looked_at = []

    def counting(call):
        def look(path, *args, **options):
            if str(path).endswith(".jpg"):
                looked_at.append(str(path))
            return call(path, *args, **options)
        return look

    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, counting(getattr(os, name)))
    dataset = build_dataset(DTD, textures)
    assert looked_at == []
    fingerprint(dataset, dataset.test)
    assert looked_at == paths_of(dataset.test)


@pytest.mark.posix
def test_what_the_system_refuses_is_one_line(tmp_path, monkeypatch):
    build(DTD, tmp_path)
    build("ImageNetA", tmp_path)
    build("ImageNet", tmp_path)
    for name, place, call in (
        (DTD, "dtd", "stat"),
        (DTD, "dtd/split_zhou_DescribableTextures.json", "open"),
        ("ImageNet", "imagenet/classnames.txt", "open"),
        ("ImageNetA", f"{IMAGE_DIRS['ImageNetA']}/{next(iter(WNIDS))}", "listdir"),
    ):
        path = tmp_path / place
        with monkeypatch.context() as patch:
            refuse(patch, path, call)
            refused(rf"^cannot read {path}: Permission denied$", name, tmp_path)
    folder = tmp_path / "dtd" / "images" / "banded"
    shutil.rmtree(folder)
    folder.symlink_to(folder)
    dataset = build_dataset(DTD, tmp_path)
    with pytest.raises(DataError, match=rf"^cannot read {folder}.*: Too many levels of symbolic links$"):
        fingerprint(dataset, dataset.test)


@pytest.mark.posix
@pytest.mark.parametrize(("name", "file"), [
    (DTD, "dtd/split_zhou_DescribableTextures.json"),
    ("ImageNet", "imagenet/classnames.txt"),
    ("FGVCAircraft", "fgvc_aircraft/variants.txt"),
    ("FGVCAircraft", "fgvc_aircraft/images_variant_train.txt"),
])
def test_pipes_and_devices_as_lists(name, file, tmp_path):
    build(name, tmp_path)
    for make_it in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (tmp_path / file).unlink()
        make_it(tmp_path / file)
        refused(rf"^cannot read {tmp_path / file}: Not a regular file$", name, tmp_path)


def test_a_copy_for_testing_needs_only_test_images(textures):
    for path in (textures / IMAGE_DIRS[DTD]).glob("*/*.jpg"):
        if path.stem not in ("image_0001", "image_0002"):
            path.unlink()
    dataset = build_dataset(DTD, textures)
    assert len(dataset.train) == 18 and fingerprint(dataset, dataset.test)
    with pytest.raises(DataError, match="18 of 18 images are missing"):
        dataset.check_files(dataset.train)
    refused("6 of 6 images are missing", DTD, textures, num_shots=2)
