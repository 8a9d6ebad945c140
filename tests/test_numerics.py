"""The numbers of a run do not depend on threads or cores, so that `python` and `torchrun` agree."""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.config.settings import setting_words
from promptcal.trainers.runs.run_dir import read_predictions
from promptcal.trainers.vlm.numerics import Numerics, fixed_numerics, in_parallel

CPU = torch.device("cpu")


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    yield torch.set_num_threads
    torch.set_num_threads(1)


@pytest.mark.parametrize("trainer", ["SoC", "OTPT"])
def test_any_number_of_threads_gives_the_same_bits(
    set_threads, clip_file, image_folder, tmp_path, trainer,
):
    found = []
    for number in (1, 2, 5):
        set_threads(number)
        results = build_trainer(build_cfg(trainer, "configs/datasets/image_folder.yaml", flags=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", tmp_path / str(number),
            "DATALOADER.NUM_WORKERS", 0, "TTA.VIEWS", 16])).run()
        assert results["threads"] == 1 and torch.get_num_threads() == number
        found.append(read_predictions(tmp_path / str(number)))
    for other in found[1:]:
        assert all(np.array_equal(other[name], column) for name, column in found[0].items())


def test_pieces_run_on_as_many_cores_as_there_are(set_threads):
    set_threads(3)
    barrier = threading.Barrier(3)

    def piece(number: int) -> tuple[int, int]:
        barrier.wait(timeout=20)  # fails unless three run together
        return number, torch.get_num_threads()

    with fixed_numerics():
        assert in_parallel(piece, range(3), CPU) == [(0, 1), (1, 1), (2, 1)]
        within = in_parallel(lambda _: in_parallel(lambda _: threading.get_ident(), range(4), CPU), range(2), CPU)
        with pytest.raises(ZeroDivisionError):
            in_parallel(lambda number: 1 / number, [1, 0, 1, 1], CPU)
    assert all(len(set(idents)) == 1 for idents in within)  # no pool inside the pool
    assert torch.get_num_threads() == 3


def test_callers_in_several_threads_get_their_settings_back(set_threads):
    set_threads(4)
    first, second = threading.Event(), threading.Event()

    def early() -> None:
        with fixed_numerics():
            first.set()
            second.wait(20)

    worker = threading.Thread(target=early)
    worker.start()
    first.wait(20)
    with fixed_numerics():
        second.set()
        worker.join()
        assert torch.get_default_dtype() == torch.float32
    assert torch.get_num_threads() == 4


def test_precision_of_products_and_anomaly_detection_are_pinned():
    """A caller may allow TF32 or bf16 in fp32 products; a run does not, and gives the setting back."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True
    try:
        with torch.autograd.set_detect_anomaly(True), fixed_numerics():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32 and not torch.is_anomaly_enabled()
        assert torch.get_float32_matmul_precision() == "medium" and torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def test_numerics_state_what_is_in_use():
    numerics = Numerics.from_settings(build_cfg("SoC", opts=["DEVICE", "cpu", "MODEL.PREC", "bf16"]))
    assert (numerics.device.type, numerics.precision, numerics.tf32) == ("cpu", "bf16", False)
    assert Numerics.from_settings(build_cfg("SoC", opts=["DEVICE", "cpu"])).precision == "fp32"


def test_bf16_is_warned_of_and_in_the_label(clip_file, image_folder, tmp_path, caplog):
    for precision, warns in (("fp32", False), ("bf16", True)):
        caplog.clear()
        build_trainer(build_cfg("ZeroShot", "configs/datasets/image_folder.yaml", opts=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "MODEL.PREC", precision,
            "OUTPUT_DIR", tmp_path / precision, "DEVICE", "cpu"])).run()
        assert ("bf16 has moved probabilities" in caplog.text) == warns
    assert setting_words("MODEL.PREC", "bf16") == "bf16 (coarse rounding)"
