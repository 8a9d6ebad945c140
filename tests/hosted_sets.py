"""Archives of miniature data sets, as their hosts have them, and the command that fetches them."""
import dataclasses
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from promptcal.datasets import DATASET_REGISTRY

from common import PROJECT
from data_roots import build

TOOL = PROJECT / "tools" / "download.py"


def pack(source, dataset: Path, archives: Path) -> None:
    """An archive as the host has it, from a miniature set in the layout of its reader."""
    archive = archives / source.name
    if source.inner:
        inner = archives / Path(source.inner).name
        pack(dataclasses.replace(source, name=inner.name, inner=""), dataset, archives)
        with zipfile.ZipFile(archive, "w") as zipped:
            zipped.write(inner, source.inner)
        inner.unlink()
    elif archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            for path, place in source.places.items():
                folder = dataset / place
                for file in sorted(folder.rglob("*")):
                    zipped.write(file, f"{path}/{file.relative_to(folder)}")
    else:
        mode = "w:gz" if archive.name.endswith("gz") else "w"
        with tarfile.open(archive, mode) as tar:
            for path, place in source.places.items():
                tar.add(dataset / place, path)


def hosted(name: str, tmp_path: Path, monkeypatch) -> tuple[type, Path]:
    """The reader of a data set, without checksums, and a folder with miniature archives."""
    cls = DATASET_REGISTRY.get(name)
    unchecked = [dataclasses.replace(source, checksum="") for source in cls.archives]
    monkeypatch.setattr(cls, "archives", tuple(unchecked))
    archives = tmp_path / "archives"
    archives.mkdir()
    build(name, tmp_path / "made")
    dataset = tmp_path / "made" / cls.folder
    for source in cls.archives:
        pack(source, dataset, archives)
    for source in cls.metadata:
        if source.drive_id:
            (dataset / source.name).rename(archives / source.name)
    return cls, archives


def run_download(*arguments: object, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, TOOL, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
