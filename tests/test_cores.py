"""The numbers of a run do not depend on threads or cores, which is what makes `python` and `torchrun` agree."""
from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.runs.run_dir import RunDir
from promptcal.trainers.vlm.numerics import fixed_numerics, in_parallel

CPU = torch.device("cpu")


@pytest.fixture
def threads():
    """Sets torch's number of threads, as the shell or torchrun would, and takes it back."""
    yield torch.set_num_threads
    torch.set_num_threads(1)


@pytest.mark.parametrize("trainer", ["SoC", "OTPT"])
def test_any_number_of_threads_gives_the_same_bits(threads, clip_file: Path, image_folder: Path, tmp_path, trainer):
    found = []
    for number in (1, 2, 5):
        threads(number)
        results = build_trainer(build_cfg(trainer, "configs/datasets/image_folder.yaml", flags=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", tmp_path / str(number),
            "DATALOADER.NUM_WORKERS", 0, "TTA.VIEWS", 16])).run()
        assert results["threads"] == 1 and torch.get_num_threads() == number
        found.append(RunDir(tmp_path / str(number)).predictions())
    for other in found[1:]:
        assert all(np.array_equal(other[name], column) for name, column in found[0].items())


def test_pieces_go_to_as_many_cores_as_there_are(threads):
    threads(3)
    meeting = threading.Barrier(3)

    def piece(number: int) -> tuple[int, int]:
        meeting.wait(timeout=20)  # falls unless three are under way together
        return number, torch.get_num_threads()

    with fixed_numerics():
        assert in_parallel(piece, range(3), CPU) == [(0, 1), (1, 1), (2, 1)]
        within = in_parallel(lambda _: in_parallel(lambda _: threading.get_ident(), range(4), CPU), range(2), CPU)
    assert all(len(set(idents)) == 1 for idents in within)  # a piece is not cut up once more
    assert torch.get_num_threads() == 3


def test_a_piece_that_fails_fails_the_whole(threads):
    threads(2)
    with fixed_numerics(), pytest.raises(ZeroDivisionError):
        in_parallel(lambda number: 1 / number, [1, 0, 1, 1], CPU)


def test_callers_in_several_threads_get_their_settings_back(threads):
    threads(4)
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
