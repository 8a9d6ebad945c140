"""Files that are there whole or not at all, however many write them, and locks that leave nothing
behind."""
from __future__ import annotations

import io
import os
import threading
import zipfile

import numpy as np
import pytest
from promptcal.datasets.utils.files import Damaged, read_arrays, write_arrays, write_text


def test_many_writers_of_one_file(tmp_path, monkeypatch):
    """In one process, and with one number on several machines: each text is whole, and no part
    stays."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    texts = [letter * 200_000 for letter in "abcdef"]
    threads = [threading.Thread(target=lambda text=text: [write_text(tmp_path / "x", text) for _ in range(5)])
               for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if (tmp_path / "x").is_file():
            assert (tmp_path / "x").read_text() in texts
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_arrays_that_claim_more_than_there_is(tmp_path):
    write_arrays(tmp_path / "x.npz", a=np.arange(5), b=np.zeros((2, 3)))
    assert read_arrays(tmp_path / "x.npz")["a"].tolist() == [0, 1, 2, 3, 4]
    np.savez_compressed(tmp_path / "y.npz", a=np.zeros(10 ** 8, np.uint8))
    assert (tmp_path / "y.npz").stat().st_size < 1 << 20
    with pytest.raises(Damaged, match="would unpack to 100,000,"):
        read_arrays(tmp_path / "y.npz")
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (10 ** 15,)})
    with zipfile.ZipFile(tmp_path / "z.npz", "w") as archive:
        archive.writestr("a.npy", buffer.getvalue() + bytes(80))
    with pytest.raises(Damaged):
        read_arrays(tmp_path / "z.npz")
