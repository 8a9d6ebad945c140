"""Without a GPU: every method on a second device, which refuses tensors that were left on the CPU,
computes real numbers, and counts how often the host waits for it."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from promptcal.tools import doctor_checks, far_device
from promptcal.tools.far_device import Counts
from promptcal.trainers import Adapter, adapt, build_cfg, build_trainer
from promptcal.trainers.engine.predict import Predictor
from promptcal.trainers.registry import TRAINER_REGISTRY, method_info
from promptcal.trainers.runs.run_dir import read_predictions
from promptcal.trainers.vlm.budget import Budget
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.loading import as_backbone
from promptcal.trainers.vlm.openai_clip import CLIP
from torch import Tensor

from common import make_image_folder, random_clip, run_tool
from folders import results_of

# Of more lengths than a GPU has blocks, so that some are padded.
NAMES = ["cat", "annual crop land", "dog", "sea or lake", "tree frog", "a long name of six words", "a b c d"]
VIEWS = 10
FAST = ["TTA.VIEWS", VIEWS, "TTA.SELECT", 0.3, "TRAINER.FPP.STEPS", 2]
SETTINGS_OF = {"CoOp": ["OPTIM.MAX_EPOCH", 3, "DATASET.NUM_SHOTS", 2, "DATALOADER.TRAIN_X.BATCH_SIZE", 4]}
METHODS = [name for name in TRAINER_REGISTRY if not method_info(name).trained]
# How often the host waits for the device per batch, where it is not once, to learn whether all
# logits are finite. DPE's shapes depend on the classes met so far, and a branch on the entropy of
# the prediction.
READS_PER_BATCH = {"DPE": 3}

pytestmark = pytest.mark.skipif(not far_device.available(), reason="this torch has no Python devices")


@pytest.fixture(scope="module", autouse=True)
def second_device():
    far_device.register()


@pytest.fixture(scope="module")
def models() -> dict[str, dict[str, CLIP]]:
    """The same model on both devices, for each kind of image tower."""
    models = {}
    for tower in ("vit", "resnet"):
        resnet = tower == "resnet"
        models[tower] = {"cpu": random_clip(resnet=resnet, layers=2)}
        models[tower]["far"] = random_clip(resnet=resnet, layers=2).to("far")
    return models


def random_views(images: int) -> Tensor:
    return torch.randn(images, VIEWS, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def difference(one: Tensor, other: Tensor) -> float:
    """Of probabilities."""
    return (one.cpu().softmax(-1) - other.cpu().softmax(-1)).abs().max().item()


@pytest.mark.parametrize(("tower", "name"), [
    *(("vit", name) for name in METHODS), ("resnet", "SoC"), ("resnet", "TDA"),
])
def test_every_method_gives_the_cpus_predictions(models, tower: str, name: str):
    """The host waits for the device once per batch, however many steps there are."""
    views = random_views(3)
    batches = 1
    if method_info(name).online:
        batches = 3
    opts = [*FAST, "MODEL.PREC", "fp32", "TTA.STEPS", 2]
    expected = adapt(name, models[tower]["cpu"], NAMES, views, opts)
    adapter = Adapter(name, models[tower]["far"], NAMES, VIEWS, opts)
    Counts.clear()
    adapted = adapter(views)
    assert Counts.reads.total() == batches * READS_PER_BATCH.get(name, 1)
    for column in (adapted.logits, adapted.zero_shot_logits, *adapted.columns.values()):
        assert column.device.type == "far"
    assert difference(adapted.logits, expected.logits) < 1e-5
    assert difference(adapted.zero_shot_logits, expected.zero_shot_logits) < 1e-5


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_is_autocast_on_the_device(precision: str):
    model = random_clip(layers=1).to("far")
    adapted = adapt("SoC", model, NAMES, random_views(2), [*FAST, "MODEL.PREC", precision])
    assert adapted.logits.isfinite().all() and adapted.logits.dtype == torch.float32


def test_a_tensor_on_the_cpu_is_refused():
    """What the tests above rely on."""
    far = torch.ones(2, 2, device="far")
    with pytest.raises(RuntimeError, match="found far:0 and cpu"):
        far @ torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="found far:0 and cpu"):
        far + torch.ones(2)
    Counts.clear()
    assert (far + torch.tensor(1.0)).sum().item() == 8
    assert Counts.reads == {"_local_scalar_dense": 1} and Counts.launches == {"add": 1, "sum": 1}


@pytest.mark.parametrize("trainer", ["SoC", "FPP", "TDA", "CoOp"])
def test_a_whole_run_gives_the_cpus_predictions(trainer: str, clip_file: Path, tmp_path: Path):
    """Views made by threads, stored features, parts, results. FPP and CoOp learn a prompt first."""
    make_image_folder(tmp_path / "data" / "train", images=2)
    make_image_folder(tmp_path / "data" / "test")
    logits = {}
    for device in ("cpu", "far"):
        folder = tmp_path / device
        done = run_tool(
            "train.py", "--trainer", trainer,
            "--dataset-config-file", "configs/datasets/image_folder.yaml",
            "--root", tmp_path / "data", "--backbone", clip_file, "--output-dir", folder,
            "DEVICE", device, "MODEL.PREC", "fp32", "TEST.PART", 5,
            "CACHE.DIR", tmp_path / "cache", "DATALOADER.NUM_WORKERS", 2,
            *SETTINGS_OF.get(trainer, FAST),
        )
        assert done.returncode == 0, done.stderr
        results = results_of(folder)
        assert results["device"].startswith(device)
        numerics = results["record"]["numerics"]
        assert numerics["device_type"] == device
        assert numerics["episodes"] == {"cpu": 8, "far": 32}[device]
        assert ("peak_device_bytes" in results) == (device == "far")
        logits[device] = torch.from_numpy(read_predictions(folder)["logits"])
    assert difference(logits["far"], logits["cpu"]) < 1e-5


def test_the_host_is_a_batch_ahead_and_times_are_the_devices(clip_file: Path, tmp_path: Path, monkeypatch):
    """A batch is launched before the results of the one before it are read, from part to part. The
    far device's clock counts launches: adapting takes as long with encoding between the batches as
    with stored features."""
    make_image_folder(tmp_path / "data" / "test")
    events: list[str] = []
    for name in ("launch", "read"):
        real = getattr(Predictor, name)

        def noted(predictor, *args, name=name, real=real):
            events.append(name)
            return real(predictor, *args)

        monkeypatch.setattr(Predictor, name, noted)
    seconds = []
    for cache in ("", tmp_path / "cache"):
        cfg = build_cfg("SoC", "configs/datasets/image_folder.yaml", opts=[
            "DATASET.ROOT", tmp_path / "data", "MODEL.BACKBONE.NAME", clip_file, "DEVICE", "far",
            "OUTPUT_DIR", tmp_path / f"run{len(seconds)}", "CACHE.DIR", cache, "TEST.PART", 4,
            "TTA.EPISODES", 2, "MODEL.PREC", "fp32", "DATALOADER.NUM_WORKERS", 0, *FAST])
        events.clear()
        results = build_trainer(cfg).run()
        batches = len(events) // 2
        assert batches > 3 and events == ["launch", *["launch", "read"] * (batches - 1), "read"]
        assert results["peak_device_bytes"] > 1e5
        seconds.append(results["adapt_seconds_per_image"])
    assert seconds[0] == seconds[1] > 0


def test_views_are_uploaded_in_pieces_that_become_smaller(monkeypatch):
    """Also the upload runs out of memory."""
    backbone = as_backbone(random_clip(layers=1).to("far"))
    images = list(random_views(3))
    expected = encode_views(backbone, images)
    uploaded = []
    real = Tensor.to

    def limited(tensor, *args, **kwargs):
        if tensor.device.type == "cpu" and tensor.dim() == 4:
            uploaded.append(len(tensor))
            if len(tensor) > 6:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return real(tensor, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", limited)
    budget = Budget(episodes=1, classes=1, views=16)
    shrunk = encode_views(backbone, images, budget=budget)
    assert budget.views == 4 and uploaded == [10, 8, 4, 4, 2, 2, 4, 4, 4, 4, 2]
    torch.testing.assert_close(shrunk.cpu(), expected.cpu(), atol=1e-5, rtol=0)


def test_the_doctor_measures_a_gpu_as_a_run_uses_it(monkeypatch):
    """Every time is read after the device has finished; a full pass of views is encoded."""
    encoded = []
    real = doctor_checks.encode_views

    def noted(backbone, views, *args, **kwargs):
        encoded.append(len(views) * len(views[0]))
        return real(backbone, views, *args, **kwargs)

    monkeypatch.setattr(doctor_checks, "encode_views", noted)
    Counts.clear()
    checks, summary = doctor_checks.diagnose(doctor_checks.PlannedRuns(
        "small", device="far", workers="1", classes=5, opts=["TTA.VIEWS", "10"]))
    assert set(encoded) == {8 * 10} and Counts.waits >= 6
    assert "use a GPU" not in str(summary["verdict"]) + str(checks)
    assert {check.what: check.found for check in checks}["GPU"].startswith("CPU tensors")


