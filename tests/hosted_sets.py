"""Archives of miniature data sets, as their hosts have them, and the command that fetches them."""
import dataclasses
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from common import PROJECT
from data_roots import build
from promptcal.datasets import DATASET_REGISTRY

TOOL = PROJECT / "tools" / "download.py"


def pack(source, made: Path, archives: Path) -> None:
    """An archive as the host has it, from a miniature set that lies as the reader wants it in `made`."""
    archive = archives / source.name
    if source.inner:
        pack(dataclasses.replace(source, name=Path(source.inner).name, inner=""), made, archives)
        inner = archives / Path(source.inner).name
        with zipfile.ZipFile(archive, "w") as zipped:
            zipped.write(inner, source.inner)
        inner.unlink()
    elif archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            for path, place in source.places.items():
                for file in sorted((made / place).rglob("*")):
                    zipped.write(file, f"{path}/{file.relative_to(made / place)}")
    else:
        with tarfile.open(archive, "w:gz" if archive.name.endswith("gz") else "w") as tar:
            for path, place in source.places.items():
                tar.add(made / place, path)


def hosted(name: str, tmp_path: Path, monkeypatch) -> tuple[type, Path]:
    """The reader of `name`, without the checksums of the real archives, and a folder with miniature ones."""
    cls = DATASET_REGISTRY.get(name)
    monkeypatch.setattr(cls, "archives", tuple(dataclasses.replace(s, checksum="") for s in cls.archives))
    archives = tmp_path / "archives"
    archives.mkdir()
    build(name, tmp_path / "made")
    made = tmp_path / "made" / cls.folder
    for source in cls.archives:
        pack(source, made, archives)
    for source in cls.metadata:
        if source.drive_id:
            (made / source.name).rename(archives / source.name)
    return cls, archives


def run_download(*arguments: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          **options)
