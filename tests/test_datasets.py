"""What every data set goes through before a model is loaded: the root, the split file, labels, names and files."""
import logging
import os
import shutil

import pytest
from data_roots import IMAGE_DIRS, build, entries, picture, write_split
from promptcal.datasets import DATASET_REGISTRY, Dataset, Datum, build_dataset
from promptcal.datasets.utils.errors import ConfigError, DataError, UnknownNameError

DEAD_PROXY = "http://127.0.0.1:9"  # nothing listens there: every download fails at once, on any machine


@pytest.fixture
def textures(tmp_path):
    build("DescribableTextures", tmp_path)
    return tmp_path


@pytest.fixture
def offline(monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, DEAD_PROXY)


def test_unknown_names_get_the_nearest():
    with pytest.raises(UnknownNameError, match=r"Did you mean 'UCF101'\?"):
        build_dataset("UFC101", "anywhere")


def test_registering_twice_is_refused():
    with pytest.raises(KeyError, match="registered twice"):
        DATASET_REGISTRY.register()(DATASET_REGISTRY.get("UCF101"))


@pytest.mark.parametrize(("arguments", "message"), [
    ({"subsample_classes": "bases"}, "one of all, base, new. Did you mean 'base'"),
    ({"num_shots": 0}, "NUM_SHOTS is 0"),
    ({"num_shots": -2}, "NUM_SHOTS is -2"),
])
def test_bad_settings(arguments, message, textures):
    with pytest.raises(ConfigError, match=message):
        build_dataset("DescribableTextures", textures, **arguments)


def test_a_root_that_is_not_there():
    with pytest.raises(DataError, match=r"data root /nowhere is not a folder: give the one that holds dtd/"):
        build_dataset("DescribableTextures", "/nowhere")


def test_a_root_without_the_set(tmp_path):
    with pytest.raises(DataError, match=r"no folder .*ucf101; .*python tools/download.py ucf101 --root"):
        build_dataset("UCF101", tmp_path)


def test_the_sets_own_folder_given_as_root(textures):
    with pytest.raises(DataError, match=f"give the folder above, {textures}$"):
        build_dataset("DescribableTextures", textures / "dtd")


def test_no_image_folder(textures):
    shutil.rmtree(textures / "dtd" / "images")
    with pytest.raises(DataError, match=r"no images: there is no folder .*dtd/images"):
        build_dataset("DescribableTextures", textures)


def test_home_folder_in_the_root(textures, monkeypatch):
    monkeypatch.setenv("HOME", str(textures.parent))
    assert len(build_dataset("DescribableTextures", f"~/{textures.name}").test) == 6


def test_a_missing_split_file_is_explained_with_id_and_folder(textures, offline):
    (textures / "dtd" / "split_zhou_DescribableTextures.json").unlink()
    with pytest.raises(DataError) as caught:
        build_dataset("DescribableTextures", textures)
    message = str(caught.value)
    assert "1u3_QfB467jqHgNXC00UIzbLZRQCg2S7x" in message
    assert f"save it as split_zhou_DescribableTextures.json in {textures / 'dtd'}" in message
    assert "published numbers need the published file" in message
    assert "\n" not in message
    assert sorted(path.name for path in (textures / "dtd").iterdir()) == ["images"]  # nothing half-loaded, nothing made


def test_missing_aircraft_lists_come_with_the_archive(tmp_path):
    build("FGVCAircraft", tmp_path)
    (tmp_path / "fgvc_aircraft" / "images_variant_train.txt").unlink()
    assert build_dataset("FGVCAircraft", tmp_path).train == []  # testing needs no training list
    with pytest.raises(DataError, match=r"images_variant_train.txt is missing; it comes with the images' archive"):
        build_dataset("FGVCAircraft", tmp_path, num_shots=1)


def test_an_aircraft_of_no_known_variant(tmp_path):
    build("FGVCAircraft", tmp_path)
    with (tmp_path / "fgvc_aircraft" / "images_variant_test.txt").open("a") as file:
        file.write("0000001 Concorde\n0000002\n")
    with pytest.raises(DataError, match=r"variant of variants.txt: 0000001 Concorde, 0000002$"):
        build_dataset("FGVCAircraft", tmp_path)


@pytest.mark.parametrize("text", ['{"test": [', "", "\x00\x01", "[]", '{"train": []}', '{"test": {}}', '"test"'])
def test_bad_json(text, textures):
    (textures / "dtd" / "split_zhou_DescribableTextures.json").write_text(text)
    with pytest.raises(DataError, match=r"split_zhou_DescribableTextures.json is (not readable JSON|no split file)"):
        build_dataset("DescribableTextures", textures)


@pytest.mark.parametrize("entry", [
    ["a.jpg", 0], ["a.jpg", "0", "banded"], ["a.jpg", -1, "banded"], ["a.jpg", True, "banded"], ["a.jpg", 0, " "],
    ["", 0, "banded"], "a.jpg", None,
])
def test_bad_entries_are_shown(entry, textures):
    splits = entries("DescribableTextures")
    splits["test"].insert(2, entry)
    write_split(textures, "DescribableTextures", splits)
    with pytest.raises(DataError, match=r"test has entries that are not \[path, label, class name\]: "):
        build_dataset("DescribableTextures", textures)


def test_label_gaps(textures):
    splits = {split: [row for row in rows if row[1] != 1] for split, rows in entries("DescribableTextures").items()}
    write_split(textures, "DescribableTextures", splits)
    with pytest.raises(DataError, match=r"gaps in its labels: no image of label 1$"):
        build_dataset("DescribableTextures", textures)


def test_one_label_with_two_names(textures):
    splits = entries("DescribableTextures")
    splits["test"][0][2] = "striped"
    write_split(textures, "DescribableTextures", splits)
    with pytest.raises(DataError, match=r"banded/image_0001.jpg calls label 0 'striped', elsewhere it is 'banded'"):
        build_dataset("DescribableTextures", textures)


def test_an_image_listed_twice(textures):
    splits = entries("DescribableTextures")
    splits["test"].append(splits["test"][0])
    write_split(textures, "DescribableTextures", splits)
    with pytest.raises(DataError, match=r"lists images twice: .*banded/image_0001.jpg"):
        build_dataset("DescribableTextures", textures)


def test_test_images_that_are_training_images_too(textures, caplog):
    splits = entries("DescribableTextures")
    splits["train"].append(splits["test"][0])
    write_split(textures, "DescribableTextures", splits)
    build_dataset("DescribableTextures", textures)
    assert "1 test images are training images too" in caplog.text


def test_no_test_images(textures):
    write_split(textures, "DescribableTextures", entries("DescribableTextures") | {"test": []})
    with pytest.raises(DataError, match=r"is no split file: .*list of images under \"test\"; delete it"):
        build_dataset("DescribableTextures", textures)


def test_absent_files_are_named_five_at_most(tmp_path):
    build("EuroSAT", tmp_path)
    for path in (tmp_path / IMAGE_DIRS["EuroSAT"]).glob("*/image_0002.jpg"):
        path.unlink()
    with pytest.raises(DataError) as caught:
        build_dataset("EuroSAT", tmp_path)
    message = str(caught.value)
    assert "10 of 20 images are not there" in message
    assert message.count("image_0002.jpg") == 5
    assert message.endswith(f"and 5 more; move {tmp_path / 'eurosat'} away and run: "
                            f"python tools/download.py eurosat --root {tmp_path}")


def refusing(monkeypatch, folder, *calls):
    """The system refuses `folder` and what is in it, as to a user without permission; tests may run as root."""
    for name in calls:
        real = getattr(os, name)

        def call(path=".", *args, real=real, **options):
            if str(path) == str(folder) or str(path).startswith(f"{folder}{os.sep}"):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *args, **options)

        monkeypatch.setattr(os, name, call)


def test_an_unreadable_root(textures, monkeypatch):
    refusing(monkeypatch, textures / "dtd", "stat", "listdir")
    with pytest.raises(DataError, match=rf"^cannot read {textures / 'dtd'}: Permission denied$"):
        build_dataset("DescribableTextures", textures)


@pytest.mark.parametrize("name", ["DescribableTextures", "ImageNetA", "ImageNetV2"])
def test_an_unreadable_class_folder(name, tmp_path, monkeypatch):
    build(name, tmp_path)
    folder = next(path for path in sorted((tmp_path / IMAGE_DIRS[name]).iterdir()) if path.is_dir())
    refusing(monkeypatch, folder, "listdir")
    with pytest.raises(DataError, match=rf"^cannot read {folder}: Permission denied$"):
        build_dataset(name, tmp_path)


def test_a_folder_that_leads_in_circles(textures):
    folder = textures / "dtd" / "images" / "banded"
    shutil.rmtree(folder)
    folder.symlink_to(folder)
    with pytest.raises(DataError, match=rf"^cannot read {folder}: Too many levels of symbolic links$"):
        build_dataset("DescribableTextures", textures)


@pytest.mark.parametrize("file", ["dtd/split_zhou_DescribableTextures.json", "imagenet/classnames.txt"])
def test_an_unreadable_list(file, tmp_path, monkeypatch):
    build("DescribableTextures", tmp_path)
    build("ImageNet", tmp_path)
    real = os.open

    def refuse(path, *args, **options):
        if str(path) == str(tmp_path / file):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DataError, match=rf"^cannot read {tmp_path / file}: Permission denied$"):
        build_dataset("ImageNet" if "imagenet" in file else "DescribableTextures", tmp_path)


def test_images_that_vanish_later(textures):
    dataset = build_dataset("DescribableTextures", textures)
    shutil.rmtree(textures / "dtd" / "images")
    with pytest.raises(DataError, match=rf"^cannot read {dataset.test[0].impath}: No such file or directory$"):
        dataset.fingerprint(dataset.test)


def test_a_copy_for_testing_needs_only_test_images(textures):
    for path in (textures / IMAGE_DIRS["DescribableTextures"]).glob("*/*.jpg"):
        if path.stem not in ("image_0001", "image_0002"):
            path.unlink()
    dataset = build_dataset("DescribableTextures", textures)
    assert len(dataset.train) == 18
    with pytest.raises(DataError, match="18 of 18 images are not there"):
        dataset.check_files(dataset.train)
    with pytest.raises(DataError, match="6 of 6 images are not there"):
        build_dataset("DescribableTextures", textures, num_shots=2)


def test_a_whole_set_passes_in_silence(textures, caplog, monkeypatch):
    cls = DATASET_REGISTRY.get("DescribableTextures")
    monkeypatch.setattr(cls, "expected_test", 6)
    monkeypatch.setattr(cls, "expected_classes", 3)
    monkeypatch.setattr(cls, "published_test", "")
    build_dataset("DescribableTextures", textures)
    assert not caplog.records
    monkeypatch.setattr(cls, "published_test", "0123456789ab")
    build_dataset("DescribableTextures", textures)
    assert "is not the published one (0123456789ab)" in caplog.text


def test_fingerprint_does_not_depend_on_the_root(textures, tmp_path_factory):
    other = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(textures, other, dirs_exist_ok=True)
    first, second = (build_dataset("DescribableTextures", root) for root in (textures, other))
    assert first.fingerprint(first.test) == second.fingerprint(second.test)
    assert first.split_hash == second.split_hash
    picture(other / "dtd" / "images" / "banded" / "image_0001.jpg", 200)
    with (other / "dtd" / "images" / "banded" / "image_0001.jpg").open("ab") as file:
        file.write(b"more")
    assert first.fingerprint(first.test) != second.fingerprint(second.test)


def test_relative_roots(textures, monkeypatch):
    monkeypatch.chdir(textures)
    dataset = build_dataset("DescribableTextures", ".")
    assert all(os.path.exists(item.impath) for item in dataset.test)  # noqa: PTH110
    assert dataset.split_hash == build_dataset("DescribableTextures", textures).split_hash


def test_a_datum_is_as_in_dassl():
    datum = Datum("a.jpg", 3, 0, "cat")
    assert (datum.impath, datum.label, datum.domain, datum.classname) == ("a.jpg", 3, 0, "cat")
    with pytest.raises(AttributeError):
        datum.label = 4


def test_sets_without_files_have_none_to_check():
    assert Dataset("anywhere").check_files([Datum("nowhere.jpg", 0)]) is None


def test_partial_counts_are_a_warning_with_both_numbers(textures, caplog):
    with caplog.at_level(logging.WARNING):
        build_dataset("DescribableTextures", textures)
    assert "6 test images of 3 classes here, 1692 of 47 in the published set" in caplog.text
