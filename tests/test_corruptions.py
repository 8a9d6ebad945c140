"""ImageNet-C, CIFAR, CIFAR-C and LandCover's corruptions, on files made here in the true
layouts."""
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from promptcal.datasets import DATASET_REGISTRY, build_dataset
from promptcal.datasets.base import SEVERITIES, dataset_info
from promptcal.datasets.download.verify import inspect
from promptcal.datasets.identity import fingerprint
from promptcal.datasets.synthetic import STRENGTHS, tile
from promptcal.datasets.utils.errors import ConfigError, DataError
from promptcal.trainers import build_cfg
from promptcal.trainers.config.settings import run_path
from promptcal.trainers.runs.run_dir import read_predictions
from promptcal.trainers.vlm.class_texts import find_templates

from common import run_tool
from data_roots import WNIDS, build_cifar, build_cifar_c, build_imagenet_c, labels_of, paths_of, refused
from folders import results_of


@pytest.mark.parametrize(("classes", "protocol"), [(10, 2), (10, 4), (10, 5), (100, 2)])
def test_cifar_is_read_from_torchvisions_files(classes, protocol, tmp_path):
    images = build_cifar(tmp_path, classes, protocol=protocol)
    data = build_dataset(f"CIFAR{classes}", tmp_path)
    assert labels_of(data.test) == [n % classes for n in range(20)]
    assert np.array_equal([np.asarray(data.read_image(item)) for item in data.test], images)
    assert len(data.train) == (100 if classes == 10 else 20)
    assert data.read_image(data.train[-1]).size == (32, 32)
    few = build_dataset(f"CIFAR{classes}", tmp_path, num_shots=1)
    assert few.train[0].impath.rpartition("::")[2].isdigit()


def test_class_names_and_templates():
    ten, hundred = (DATASET_REGISTRY.get(name) for name in ("CIFAR10C", "CIFAR100C"))
    assert len(ten.names) == 10 and len(set(hundred.names)) == 100 and list(hundred.names) == sorted(hundred.names)
    assert [name for name in hundred.names if " " in name] == [
        "aquarium fish", "lawn mower", "maple tree", "oak tree", "palm tree", "pickup truck", "pine tree",
        "sweet pepper", "willow tree",
    ]
    ensemble = find_templates("ensemble", "CIFAR10C", ten.template, ten.ensemble)
    assert len(set(ensemble)) == 18 and {"a photo of a {}.", "a photo of the big {}."} <= set(ensemble)


class Hostile:
    def __reduce__(self):
        return Path.touch, (Path("ran"),)


@pytest.mark.parametrize("content", [
    pickle.dumps(Hostile()), pickle.dumps({"data": np.zeros((2, 3072)), "labels": [0, 1]}),
    pickle.dumps([1, 2]),
    pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}), b"\x80\x02U", b"",
    pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1.7]}),
    pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, "3"]}),
    pickle.dumps({"data": np.zeros((2, 32, 32, 3), np.uint8), "labels": [0, 1]}),
    b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x80\x02r\xff\xff\xff\xff.",
])
def test_nothing_in_a_pickle_runs_and_bad_ones_get_one_line(content, tmp_path, monkeypatch):
    build_cifar(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(content)
    refused("test_batch is not a file of CIFAR or is damaged .*download it again", "CIFAR10", tmp_path)
    assert not Path("ran").exists()


def test_rows_of_a_severity(tmp_path):
    arrays = build_cifar_c(tmp_path, ["fog", "snow"])
    for severity in SEVERITIES:
        data = build_dataset("CIFAR10C", tmp_path, corruption="fog", severity=severity)
        rows = range(20 * (severity - 1), 20 * severity)
        assert paths_of(data.test) == [f"{tmp_path}/CIFAR-10-C/fog.npy::{row}" for row in rows]
        assert labels_of(data.test) == arrays["labels"][rows].tolist()
        assert np.array_equal([np.asarray(data.read_image(item)) for item in data.test], arrays["fog"][rows])
    prints = {fingerprint(data, data.test)}
    other = build_dataset("CIFAR10C", tmp_path, corruption="snow")
    arrays["fog"][87, 3, 3] ^= 1  # one pixel, in a file of the same size
    np.save(tmp_path / "CIFAR-10-C" / "fog.npy", arrays["fog"])
    changed = build_dataset("CIFAR10C", tmp_path, corruption="fog")
    assert len(prints | {fingerprint(other, other.test), fingerprint(changed, changed.test)}) == 3
    with pytest.raises(DataError, match="fog.npy::79: rows 80 to 99 are read"):
        changed.read_image(build_dataset("CIFAR10C", tmp_path, corruption="fog", severity=4).test[-1])


@pytest.mark.parametrize(("change", "message"), [
    (lambda a: a.astype(np.float32), r"must be an array of bytes \(uint8\) of shape \(N, 32, 32, 3\), not float32"),
    (lambda a: a[..., :1], r"not uint8 \(100, 32, 32, 1\)"),
    (lambda a: a[:-1], "must have the test images 5 times"),
    (lambda a: a[:50], "has 100 labels for 50 images"),
    (lambda a: np.array([{}]), "is not a complete .npy file of bytes"),
    (None, "is not a complete .npy file"),
])
def test_bad_arrays_get_one_line(change, message, tmp_path):
    array = build_cifar_c(tmp_path, ["fog"])["fog"]
    file = tmp_path / "CIFAR-10-C" / "fog.npy"
    if change is None:
        file.write_bytes(file.read_bytes()[:-1])
    else:
        np.save(file, change(array))
    refused(message, "CIFAR10C", tmp_path, corruption="fog")
    finding = inspect(DATASET_REGISTRY.get("CIFAR10C"), tmp_path)
    assert finding.state == "faulty" and str(file) in finding.advice


def test_labels_out_of_range_name_the_row(tmp_path):
    labels = build_cifar_c(tmp_path, ["fog"])["labels"]
    labels[83] = 10
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", labels)
    refused(r"fog.npy has labels that are not 0 to 9: row 83 has 10", "CIFAR10C", tmp_path, corruption="fog")


@pytest.mark.parametrize("folder", ["ImageNet-C", "imagenet-c"])
def test_imagenet_c(folder, tmp_path, caplog):
    build_imagenet_c(tmp_path, ["fog", "saturate"], (1, 5), folder)
    data = build_dataset("ImageNetC", tmp_path, corruption="saturate", severity=1)
    assert data.classnames == list(WNIDS.values()) and len(data.test) == 24
    image = f"saturate/1/{list(WNIDS)[1]}/ILSVRC2012_val_00000000.JPEG"
    assert data.test[2].impath == f"{tmp_path}/{folder}/{image}"
    assert data.read_image(data.test[0]).mode == "RGB"
    for corruption, words in (("fog", "only at severity 1, 5"), ("snow", "not there")):
        with pytest.raises(DataError, match=f"{corruption} is {words} in .*{folder}, and severity "
                                            f"3 is needed; .*run"):
            build_dataset("ImageNetC", tmp_path, corruption=corruption, severity=3)
    finding = inspect(DATASET_REGISTRY.get("ImageNetC"), tmp_path)
    assert (finding.state, finding.test) == ("partial", 24)  # usable, but not 50,000 images
    assert "without gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur and 18 more" in caplog.text


def test_a_list_of_images_in_the_root_or_anywhere(tmp_path):
    """RobustBench's list has 5,000 lines such as these."""
    build_imagenet_c(tmp_path, ["fog"])
    lines = [f"{wnid}/ILSVRC2012_val_00000001.JPEG" for wnid in list(WNIDS)[5:2:-1]]
    (tmp_path / "ImageNet-C" / "ids.txt").write_text("\n".join(lines))
    shutil.copy(tmp_path / "ImageNet-C" / "ids.txt", tmp_path / "copy.txt")
    for place in ("ids.txt", "copy.txt", str(tmp_path / "copy.txt")):
        data = build_dataset("ImageNetC", tmp_path, corruption="fog", image_list=place)
        # In the order of the data set.
        assert [item.impath.split("/fog/5/")[1] for item in data.test] == lines[::-1]
    tags = set()
    for opts in ([], ["DATASET.IMAGE_LIST", "ids.txt"], ["DATASET.IMAGE_LIST", tmp_path / "copy.txt"]):
        tags.add(build_cfg("TPT", "imagenet_c", opts=["DATASET.CORRUPTION", "fog", *opts]).TAG)
    assert len(tags) == 3 and "IMAGE_LIST-ids.txt" in tags
    with pytest.raises(DataError, match=r"none.txt is not a file.*imagenet_test_image_ids.txt of "
                                        r"https://github.com/Robust"):
        build_dataset("ImageNetC", tmp_path, corruption="fog", image_list="none.txt")
    for text in ("n0/x.JPEG\n", ""):
        (tmp_path / "copy.txt").write_text(text)
        with pytest.raises(DataError, match=r"must list test images of ImageNetC, .*(: n0/x.JPEG|it is empty)$"):
            build_dataset("ImageNetC", tmp_path, corruption="fog", image_list="copy.txt")


@pytest.mark.parametrize(("name", "opts", "message"), [
    ("landcover", ["DATASET.CORRUPTION", "frog"], "'frog'; for LandCover it must be empty or one of "
     "gaussian_noise, defocus_blur, fog, contrast. Did you mean 'fog'?"),
    ("landcover", ["DATASET.CORRUPTION", "fog", "DATASET.SEVERITY", 6], "is 6; it must be one of 1, 2, 3, 4, 5"),
    ("cifar10_c", [], "DATASET.CORRUPTION is ''; for CIFAR10C it must be one of gaussian_noise, shot_noise"),
    ("dtd", ["DATASET.CORRUPTION", "fog"], "'fog'; for DescribableTextures it must be empty: it has none"),
])
def test_bad_names_get_one_line_with_the_valid_ones(name, opts, message):
    with pytest.raises(ConfigError) as error:
        build_cfg("TPT", name, opts=opts)
    assert message in str(error.value)


def test_landcovers_corruptions_grow_and_depend_on_the_image_alone():
    clean = build_dataset("LandCover", "")
    prints = {fingerprint(clean, clean.test)}
    for corruption in STRENGTHS:
        change = []
        for severity in SEVERITIES:
            options = {"corruption": corruption, "severity": severity}
            data = build_dataset("LandCover", "", **options)
            again = build_dataset("LandCover", "", **options)
            item = data.test[440]
            assert item.impath == f"landcover/test-{corruption}-{severity}/car_park/00000.png"
            again.read_image(again.test[3])
            image = np.asarray(data.read_image(item)).astype(float)
            assert np.array_equal(image, again.read_image(item))
            change.append(np.abs(image - tile("test", "car park", 0)).mean())
            prints.add(fingerprint(data, data.test))
        assert change == sorted(change) and change[0] > 2, corruption
        assert data.train == clean.train and data.val == clean.val
    assert len(prints) == 21


def test_a_corruption_is_a_data_set_of_its_own(clip_file, tmp_path):
    """Own run folder and table column; nothing of another one's cached views is used."""
    def run(trainer: str, name: str, *opts: object) -> dict[str, np.ndarray]:
        args = ["--backbone", clip_file, "--root", tmp_path, "TEST.LIMIT", 8, *opts, "CACHE.DIR", tmp_path / "cache"]
        folder = tmp_path / "runs" / "-".join(map(str, (trainer, *opts[1::2])))
        done = run_tool(
            "train.py", "--trainer", trainer, "--dataset-config-file", name,
            "--output-dir", folder, *args,
        )
        assert done.returncode == 0, done.stderr
        return read_predictions(folder)

    logits_of_runs = []
    for kind, level in (("", 5), ("fog", 5), ("fog", 1), ("contrast", 5)):
        corruption = ("DATASET.CORRUPTION", kind, "DATASET.SEVERITY", level)
        logits_of_runs.append(run("ZeroShot", "landcover", *corruption)["logits"])
    assert len({logits.tobytes() for logits in logits_of_runs}) == 4
    assert len(list((tmp_path / "cache").iterdir())) == 4
    build_cifar_c(tmp_path, ["fog"])
    corruption = ("DATASET.CORRUPTION", "fog", "DATASET.SEVERITY", 2)
    files = run("TPT", "cifar10_c", *corruption, "TTA.VIEWS", 10)["filename"]
    assert files[:2].tolist() == ["CIFAR-10-C/fog.npy::20", "CIFAR-10-C/fog.npy::22"]
    done = run_tool("report.py", tmp_path / "runs", "--out", tmp_path / "report", "--demo", "--no-figures")
    assert done.returncode == 0, done.stderr
    tables = (tmp_path / "report" / "tables.md").read_text()
    words = "| LandCover | LandCover fog 1 | LandCover fog 5 | LandCover contrast 5 |"
    assert words in tables.replace("  ", "")
    (folder,) = tmp_path.glob("runs/TPT*")
    assert results_of(folder)["dataset"] == "CIFAR10C-fog-2"
    cfg = build_cfg("SoC", "landcover", opts=["DATASET.CORRUPTION", "fog", "DATASET.SEVERITY", 3])
    assert run_path(cfg).as_posix() == "output/LandCover-fog-3/SoC/small/default/seed0"
    assert dataset_info("LandCover-fog-3").embedded
    assert dataset_info("CIFAR10C-fog-2").label == "CIFAR-10-C fog 2"
