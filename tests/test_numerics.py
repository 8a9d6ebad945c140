"""The numbers of a run do not depend on threads or cores, so that `python` and `torchrun` agree."""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from promptcal.trainers.vlm.numerics import fixed_numerics

from folders import results_of

CPU = torch.device("cpu")


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    yield torch.set_num_threads
    torch.set_num_threads(1)


@pytest.mark.parametrize("trainer", ["SoC", "OTPT"])
def test_any_number_of_threads_gives_the_same_bits(set_threads, run_method, tmp_path, trainer):
    expected = run_method(trainer, tmp_path / "1")
    set_threads(3)
    predictions = run_method(trainer, tmp_path / "3")
    assert torch.get_num_threads() == 3 and results_of(tmp_path / "3")["threads"] == 1
    for name, column in expected.items():
        assert np.array_equal(predictions[name], column), name


def test_callers_in_several_threads_get_their_settings_back(set_threads):
    set_threads(4)
    first = threading.Event()
    second = threading.Event()

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
    """A caller may allow TF32 or bf16 in fp32 products; a run does not, and restores the
    setting."""
    precision = torch.get_float32_matmul_precision()
    allow_tf32 = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True
    try:
        with torch.autograd.set_detect_anomaly(True), fixed_numerics():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32 and not torch.is_anomaly_enabled()
        assert torch.get_float32_matmul_precision() == "medium" and torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = allow_tf32


def test_bf16_is_warned_of_and_recorded(run_method, tmp_path, caplog):
    for precision in ("fp32", "bf16"):
        run_method("ZeroShot", tmp_path / precision, "DEVICE", "cpu", "MODEL.PREC", precision)
        assert ("bf16 has moved probabilities" in caplog.text) == (precision == "bf16")
        numerics = results_of(tmp_path / precision)["record"]["numerics"]
        assert (numerics["precision"], numerics["tf32"]) == (precision, False)
