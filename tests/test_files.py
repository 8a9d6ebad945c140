"""Files that are there whole or not at all, however many write them."""
from __future__ import annotations

import io
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from promptcal.datasets.utils.files import Damaged, read_arrays, write_arrays, write_text


def test_many_writers_of_one_file(tmp_path, monkeypatch):
    """Each text is whole and no part stays, also with one process number on several machines."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    file = tmp_path / "x"
    texts = ["a" * 200_000, "b" * 200_000, "c" * 200_000, "d" * 200_000]

    def write(text: str) -> None:
        for _ in range(6):
            write_text(file, text)

    with ThreadPoolExecutor(len(texts)) as pool:
        writers = [pool.submit(write, text) for text in texts]
        while not all(writer.done() for writer in writers):
            if file.is_file():
                assert file.read_text() in texts
    assert list(tmp_path.iterdir()) == [file]


def test_arrays_that_claim_more_than_there_is(tmp_path):
    write_arrays(tmp_path / "x.npz", a=np.arange(5), b=np.zeros((2, 3)))
    assert read_arrays(tmp_path / "x.npz")["a"].tolist() == [0, 1, 2, 3, 4]
    np.savez_compressed(tmp_path / "y.npz", a=np.zeros(10 ** 8, np.uint8))
    assert (tmp_path / "y.npz").stat().st_size < 1 << 20
    with pytest.raises(Damaged, match="would unpack to 100,000,"):
        read_arrays(tmp_path / "y.npz")
    header = {"descr": "<f8", "fortran_order": False, "shape": (10 ** 15,)}
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, header)
    with zipfile.ZipFile(tmp_path / "z.npz", "w") as archive:
        archive.writestr("a.npy", buffer.getvalue() + bytes(80))
    with pytest.raises(Damaged):
        read_arrays(tmp_path / "z.npz")
