"""JPEGs that are decoded where the model is: torchvision's decoder on the CPU stands in for the GPU's."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from promptcal.datasets import build_dataset
from promptcal.datasets.utils.errors import ConfigError, DataError
from promptcal.datasets.views import ViewMaker, jpeg
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.engine import features
from promptcal.trainers.vlm.loading import as_backbone
from test_ahead import FakeStream


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """One class of each kind of file: plain JPEGs, and what only Pillow is to decode."""
    rng = np.random.default_rng(0)
    smooth = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((80, 60), Image.Resampling.BICUBIC)
    root = tmp_path / "photos"
    for kind, mode, name in (("plain", "RGB", "a.jpg"), ("grey", "L", "b.jpg"), ("inks", "CMYK", "c.jpg"),
                             ("other", "RGB", "d.png")):
        (root / kind).mkdir(parents=True)
        smooth.convert(mode).save(root / kind / name)
    (root / "short").mkdir()
    (root / "short" / "e.jpg").write_bytes((root / "plain" / "a.jpg").read_bytes()[:-40])
    return root


def test_only_plain_jpegs_stay_undecoded(photos: Path):
    dataset = build_dataset("ImageFolder", photos)
    reader, found = jpeg.UndecodedJpegs(dataset), {}
    for item in dataset.test:
        try:
            found[Path(item.impath).parent.name] = type(reader.read_image(item)).__name__
        except DataError as error:
            found[Path(item.impath).parent.name] = "refused"
            assert "e.jpg" in str(error)
    assert found == {"plain": "Undecoded", "grey": "Image", "inks": "Image", "other": "Image", "short": "refused"}


def test_views_of_undecoded_jpegs_are_those_of_decoded_ones(photos: Path):
    """The draws are the same; torchvision's decoder and Pillow's use one library here, so pixels are too."""
    dataset, maker = build_dataset("ImageFolder", photos), ViewMaker(5, 32, augmix=True, seed=0)
    item = next(item for item in dataset.test if "plain" in item.impath)
    undecoded = maker.prepare(jpeg.UndecodedJpegs(dataset).read_image(item), 3)
    assert undecoded.picture.dim() == 1
    ours, theirs = maker.make(undecoded, "cpu"), maker(dataset.read_image(item), 3)
    assert (ours - theirs).abs().mean() < 2 and (ours[0] - theirs[0]).abs().max() <= 8


@pytest.mark.parametrize("fault", ["refuses", "other size"])
def test_pillow_decodes_what_the_device_cannot(photos: Path, fault: str, monkeypatch, caplog):
    def broken(data, device):
        if fault == "refuses":
            raise RuntimeError("nvjpeg: not supported\nmore")
        return torch.zeros(3, 5, 5, dtype=torch.uint8)

    monkeypatch.setattr(jpeg, "decode_jpeg", broken)
    monkeypatch.setattr(jpeg, "told", set())
    dataset, maker = build_dataset("ImageFolder", photos), ViewMaker(3, 32, augmix=False, seed=0)
    item = next(item for item in dataset.test if "plain" in item.impath)
    drawn = maker.prepare(jpeg.UndecodedJpegs(dataset).read_image(item), 3)
    for _ in range(2):
        assert torch.equal(maker.make(drawn, "cpu"), maker(dataset.read_image(item), 3))
    assert len(caplog.records) == 1 and "so Pillow does" in caplog.text


def test_the_setting_is_for_gpus_and_caches_know_it(photos: Path, tmp_path: Path, monkeypatch, clip_model):
    def opts(decoder: str) -> list:
        return ["DATASET.ROOT", photos, "MODEL.BACKBONE.NAME", "small", "TTA.VIEWS", 10, "DATALOADER.NUM_WORKERS", 0,
                "CACHE.DIR", tmp_path / "cache", "DATALOADER.ON_BAD_IMAGE", "skip", "DATALOADER.JPEG", decoder,
                "OUTPUT_DIR", tmp_path / decoder]

    dataset = "configs/datasets/image_folder.yaml"
    with pytest.raises(ConfigError, match="use DATALOADER.JPEG pillow"):
        build_trainer(build_cfg("TPT", dataset, opts=opts("device"))).run()
    with pytest.raises(ConfigError, match="DATALOADER.JPEG"):
        build_cfg("TPT", dataset, opts=opts("turbo"))
    monkeypatch.delattr(torchvision.io, "decode_jpeg", raising=False)
    with pytest.raises(ConfigError, match="decodes no JPEGs: use DATALOADER.JPEG pillow"):
        jpeg.check_decoder(torch.device("cuda"))
    monkeypatch.undo()
    monkeypatch.setattr(features, "check_decoder", lambda device: None)  # a CPU stands in for the GPU
    results = [build_trainer(build_cfg("TPT", dataset, opts=opts(decoder))).run() for decoder in ("pillow", "device")]
    assert [one["n"] for one in results] == [4, 4]
    assert len(list((tmp_path / "cache").glob("views-*"))) == 2
    assert results[1]["fingerprint"]["DATALOADER.JPEG"] == "device"
    source = features.find_features(
        build_cfg("TPT", dataset, opts=opts("device")), as_backbone(clip_model), build_dataset("ImageFolder", photos),
        [], 10, {"data": "", "weights": ""}, "fp32")
    assert source.undecoded


@pytest.mark.parametrize("side", [None, "ahead"])
def test_what_neither_decoder_can_read_is_left_out_or_stops_the_run_by_name(
    photos: Path, tmp_path: Path, side: str | None, monkeypatch, clip_model,
):
    """Its head and its end are a JPEG's, so that the workers take it for one."""
    whole = (photos / "plain" / "a.jpg").read_bytes()
    broken = photos / "plain" / "broken.jpg"
    codes = whole.index(b"\xff\xc4") + 5  # of the first table that the decoder needs: how many there are of each length
    broken.write_bytes(whole[:codes] + b"\xff" * 16 + whole[codes + 16 :])
    assert isinstance(jpeg.plain_jpeg(broken), jpeg.Undecoded)
    (photos / "short" / "e.jpg").write_bytes(whole)
    monkeypatch.setattr(features, "check_decoder", lambda device: None)  # a CPU stands in for the GPU
    if side:
        alone = features.ViewFeatures.encoded
        monkeypatch.setattr(features.ViewFeatures, "encoded", lambda self, found, _: alone(self, found, FakeStream()))
    dataset, facts = build_dataset("ImageFolder", photos), {"data": "", "weights": ""}

    def encode(on_bad: str) -> list[features.FeatureBatch]:
        cfg = build_cfg("TPT", "configs/datasets/image_folder.yaml", opts=[
            "DATALOADER.JPEG", "device", "DATALOADER.ON_BAD_IMAGE", on_bad, "DATALOADER.NUM_WORKERS", 0,
            "CACHE.DIR", tmp_path / "cache"])
        source = features.find_features(cfg, as_backbone(clip_model), dataset, dataset.test, 3, facts, "fp32")
        return list(source.batches([range(len(dataset.test))], size=2))

    with pytest.raises(DataError, match=f"cannot read image {broken}: .*DATALOADER.ON_BAD_IMAGE skip"):
        encode("error")
    for _ in range(2):  # made, then read from the cache
        found = encode("skip")
        assert [reason for batch in found for reason in batch.bad.values() if str(broken) in reason]
        assert sum(len(batch.views) for batch in found) == sum(len(b.index) for b in found) == len(dataset.test) - 1

