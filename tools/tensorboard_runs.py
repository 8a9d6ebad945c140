"""Starts TensorBoard on runs, with short names that begin with what the runs differ in.

    python tools/tensorboard_runs.py output/LandCover
    python tools/tensorboard_runs.py output/UCF101/SoC output/UCF101/TPT --port 6007
"""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import run_tool, tool_parser
from promptcal.datasets.utils.errors import ConfigError, DataError
from promptcal.datasets.utils.files import read_json
from promptcal.datasets.utils.plugins import load_plugins
from promptcal.trainers.config.settings import setting_words
from promptcal.trainers.runs.record import FILE_NAME, RunRecord

EVENTS = "tensorboard"  # the folder of a run's event files


def main(argv: Sequence[str] | None = None) -> None:
    parser = tool_parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUNS", type=Path,
                        help="run folders, or folders that contain them; also of runs that are not finished")
    parser.add_argument("--port", default="6006", help="of the page (default 6006)")
    parser.add_argument("--host", default="localhost", help="of the page; 0.0.0.0 = reachable from other computers")
    args = parser.parse_args(argv)
    load_plugins(args.plugin)
    folders = find_runs(args.runs)
    with tempfile.TemporaryDirectory(prefix="promptcal-tensorboard-") as place:
        for name, folder in short_names(folders).items():
            link(Path(place, name), folder / EVENTS)
        serve(["--logdir", place, "--port", args.port, "--host", args.host])


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The folders of runs at or below some folders.

    Raises:
        DataError: If a path does not exist, or there is no run.
    """
    folders: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise DataError(f"{path} is not a folder: give a run folder or a folder that holds some")
        for place, subfolders, files in os.walk(path):
            subfolders.sort()
            if FILE_NAME in files or EVENTS in subfolders:
                folders[Path(place).resolve()] = None
                subfolders.clear()
    if not folders:
        raise DataError(f"no run below {', '.join(map(str, paths))}: a run has a folder {EVENTS}")
    return list(folders)


def short_names(folders: Sequence[Path]) -> dict[str, Path]:
    """A name for each run, made of its method and what the runs differ in: `SoC, λ 10, seed 1`.

    Runs without a record, as those of version 1.0, are called by their folders. Equal names get a
    number.
    """
    described = {folder: describe(folder) for folder in folders}
    shared = shared_words(list(described.values()))
    names: dict[str, Path] = {}
    for folder, description in described.items():
        words = []
        for part, text in description.items():
            if text and (part == "method" or part not in shared):
                words.append(text)
        name = ", ".join(words) or "-".join(folder.parts[-3:])
        name = name.replace("/", "-")  # which would be a folder
        number = 1
        unique = name
        while unique in names:
            number += 1
            unique = f"{name} ({number})"
        names[unique] = folder
    return names


def shared_words(descriptions: Sequence[Mapping[str, str]]) -> set[str]:
    """The parts in which all runs are the same."""
    shared = set()
    for part, text in descriptions[0].items():
        if all(description.get(part) == text for description in descriptions):
            shared.add(part)
    return shared


def describe(folder: Path) -> dict[str, str]:
    """What a run is, in the order in which a name states it; empty if it has no record.

    Each changed setting is a part of its own, because runs may differ in one and share another.
    """
    try:
        record = RunRecord.from_json(read_json(folder / FILE_NAME))
    except ValueError:
        return {}
    parts = {"method": record.names.get("method") or str(record.method.get("trainer"))}
    for key, (_, value) in record.changed.items():
        parts[key] = setting_words(key, value)
    parts["prompt"] = record.names.get("prompt", "")
    parts["dataset"] = record.dataset_name
    parts["split"] = str(record.data.get("split"))
    parts["backbone"] = record.names.get("backbone", "")
    parts["seed"] = f"seed {record.seed}"
    return parts


def link(place: Path, target: Path) -> None:
    """Makes the events of a run visible under another name. They need not be there yet."""
    try:
        place.symlink_to(target, target_is_directory=True)
    except OSError as error:
        raise ConfigError(f"links cannot be made in {place.parent} ({error.strerror}): use tensorboard --logdir with "
                          f"the folder of the runs") from error


def serve(arguments: Sequence[str]) -> None:
    """Runs TensorBoard until it is interrupted."""
    process = subprocess.Popen([sys.executable, "-m", "tensorboard.main", *arguments])
    try:
        status = process.wait()
    except KeyboardInterrupt:  # the usual way to end it
        return
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
    if status:
        raise ConfigError(f"TensorBoard ended with status {status}; its message is above")


if __name__ == "__main__":
    run_tool(main)
