"""Starts TensorBoard on runs, with short names that begin with what the runs differ in.

    python tools/tensorboard_runs.py output/LandCover
    python tools/tensorboard_runs.py output/UCF101/SoC output/UCF101/TPT --port 6007
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlencode

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import counted, load_plugins, run_tool, tool_parser
from promptcal.datasets.utils.errors import ConfigError, DataError
from promptcal.datasets.utils.files import read_json
from promptcal.trainers.config.settings import event_folder, setting_words, zero_shot_event_folder
from promptcal.trainers.registry import ZERO_SHOT, method_info
from promptcal.trainers.report.words import difference_words, plain_text
from promptcal.trainers.runs.record import FILE_NAME, RunRecord

EVENTS = "tensorboard"  # the folder of a run's event files
LONGEST_NAME = 240  # bytes of a name, before its number; a file name may have 255
# What zero-shot curves depend on.
OF_ZERO_SHOT = ("data.images", "data.listing", "data.classes", "model", "views.pixels",
                "numerics.precision")


def main(argv: Sequence[str] | None = None) -> None:
    parser = tool_parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUNS", type=Path,
                        help="run folders, or folders that contain them; also of unfinished runs")
    parser.add_argument("--port", default="6006", help="of the page (default 6006)")
    parser.add_argument("--host", default="localhost",
                        help="of the page; 0.0.0.0 = reachable from other computers")
    args = parser.parse_args(argv)
    load_plugins(args.plugin)
    folders = find_runs(args.runs)
    with tempfile.TemporaryDirectory(prefix="promptcal-tensorboard-") as links:
        for name, events in named_event_folders(folders).items():
            make_link(Path(links, name), events)
        address = page_address(args.host, args.port)
        print(f"{counted(len(folders), 'run')}; the page is {address}", flush=True)
        serve(["--logdir", links, "--port", args.port, "--host", args.host])


def page_address(host: str, port: str) -> str:
    """The address of the page, with runs of one method in one colour and without smoothing.

    The curves are averages over the images so far, so they are smooth already.
    """
    settings = {"smoothing": "0", "runColorGroup": "regex:^([^,]+)"}
    return f"http://{host}:{port}/?{urlencode(settings)}#timeseries"


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The folders of runs at or below some folders.

    Raises:
        DataError: If a path does not exist, or there is no run.
    """
    folders: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise DataError(
                f"{path} is not a folder: give a run folder or a folder that holds some")
        for folder, subfolders, files in os.walk(path):
            subfolders.sort()
            if FILE_NAME in files or EVENTS in subfolders:
                folders[Path(folder).resolve()] = None
                subfolders.clear()
    if not folders:
        raise DataError(f"no run below {', '.join(map(str, paths))}: a run has a folder {EVENTS}")
    return list(folders)


def named_event_folders(folders: Sequence[Path]) -> dict[str, Path]:
    """The event folders to show, each with its name in TensorBoard, such as `SoC, λ 10, seed 1`.

    A name begins with the method, followed by what the runs differ in. Where that is equal, such
    as for two data sets of one name or two versions of a method's code, the fields of the record
    that differ follow. Runs without a record, as those of version 1.0, are called by their folders.
    Copies of a run get a number.

    The zero-shot curves of runs with the same images and model are the same. They are shown once,
    as those of a run of ZeroShot if there is one.
    """
    records: dict[Path, RunRecord] = {}
    for folder in folders:
        record = read_record(folder)
        if record is not None:
            records[folder] = record
    shared = shared_parts([describe(record) for record in records.values()])

    described = {}
    for folder, record in records.items():
        described[folder] = name_of(describe(record), shared)
    described = with_differences(described, records)

    zero_shot = {}
    for folder in zero_shot_examples(records):
        description = describe(records[folder])
        words = {"method": method_info(ZERO_SHOT).label}
        for part in ("precision", "prompt", "dataset", "subset", "split", "backbone"):
            words[part] = description.get(part, "")
        zero_shot[folder] = name_of(words, shared)
    zero_shot = with_differences(zero_shot, records, OF_ZERO_SHOT)

    names: dict[str, Path] = {}
    for folder in folders:
        if folder in records:
            trainer = str(records[folder].method["trainer"])
            add_name(names, described[folder], event_folder(folder, trainer))
        else:
            add_name(names, "-".join(folder.parts[-3:]), folder / EVENTS)
    for folder, name in zero_shot.items():
        add_name(names, name, zero_shot_event_folder(folder))
    return names


def with_differences(
    names: Mapping[Path, str], records: Mapping[Path, RunRecord], only: Sequence[str] = (),
) -> dict[Path, str]:
    """The names; equal ones are followed by the fields in which the records differ.

    Args:
        names: Names of the run folders.
        records: Records of the same folders.
        only: Sections and fields that are looked at; () for all.
    """
    alike: dict[str, list[Path]] = {}
    for folder, name in names.items():
        alike.setdefault(name, []).append(folder)
    longer = {}
    for folder, name in names.items():
        first, *others = alike[name]
        words = []
        if others:
            other = others[0] if folder == first else first
            difference = records[other].difference(records[folder], "resume")
            if "data.images" in difference:
                difference.pop("data.listing", None)  # other images have another order
            for field in list(difference):
                if only and not field.startswith(tuple(only)):
                    del difference[field]
            words = difference_words(difference, second=True)
        longer[folder] = ", ".join([name, *words])
    return longer


def add_name(names: dict[str, Path], name: str, events: Path) -> None:
    """Adds an event folder under a name that no other has.

    Args:
        names: Event folders by name, changed in place.
        name: The wanted one; a number is added if it is in use.
        events: The event folder.
    """
    name = plain_text(name).replace("/", "-")  # which would be a folder
    name = name.replace("\n", " ").encode()[:LONGEST_NAME].decode(errors="ignore")
    if name in ("", ".", ".."):  # as a foreign record may say
        name = "run"
    unique = name
    number = 1
    while unique in names:
        number += 1
        unique = f"{name} ({number})"
    names[unique] = events


def name_of(description: Mapping[str, str], shared: Collection[str]) -> str:
    """The method and the other parts of a description that are not shared by all runs."""
    words = []
    for part, text in description.items():
        if text and (part == "method" or part not in shared):
            words.append(text)
    return ", ".join(words)


def shared_parts(descriptions: Sequence[Mapping[str, str]]) -> set[str]:
    """The names of the parts in which all runs are the same."""
    shared: set[str] = set()
    if not descriptions:
        return shared
    for part, text in descriptions[0].items():
        if all(description.get(part) == text for description in descriptions):
            shared.add(part)
    return shared


def zero_shot_examples(records: Mapping[Path, RunRecord]) -> list[Path]:
    """For each set of images and model without a run of ZeroShot, one run that has its curves."""
    examples: dict[str, Path] = {}
    with_zero_shot_run = set()
    for folder, record in records.items():
        key = json.dumps([record.get(field) for field in OF_ZERO_SHOT], sort_keys=True)
        if method_info(record.method["trainer"]).zero_shot:
            with_zero_shot_run.add(key)
        elif key not in examples or not zero_shot_event_folder(examples[key]).is_dir():
            examples[key] = folder
    return [folder for key, folder in examples.items() if key not in with_zero_shot_run]


def read_record(folder: Path) -> RunRecord | None:
    """The record of a run; None if it has none that can be read."""
    try:
        record = RunRecord.from_json(read_json(folder / FILE_NAME))
    except ValueError:
        return None
    if not isinstance(record.method.get("settings"), dict):
        return None
    return record


def describe(record: RunRecord) -> dict[str, str]:
    """What a run is, in the order in which a name states it.

    Each changed setting is a part of its own, because runs may differ in one and share another.
    """
    parts = {"method": record.names.get("method") or str(record.method.get("trainer"))}
    for key, (_, value) in record.changed.items():
        parts[key] = setting_words(key, value)
    if "MODEL.PREC" not in record.changed:  # the device's default is no setting
        parts["precision"] = str(record.numerics.get("precision") or "")
    parts["prompt"] = record.names.get("prompt", "")
    parts["dataset"] = record.images_name
    parts["subset"] = str(record.data.get("subset") or "")
    parts["split"] = str(record.data.get("split"))
    parts["backbone"] = record.names.get("backbone", "")
    parts["seed"] = f"seed {record.seed}"
    return parts


def make_link(link: Path, events: Path) -> None:
    """Makes a symbolic link, by which TensorBoard shows a run under another name."""
    try:
        link.symlink_to(events, target_is_directory=True)
    except OSError as error:
        message = (f"links cannot be made in {link.parent} ({error.strerror}): "
                   f"use tensorboard --logdir with the folder of the runs")
        raise ConfigError(message) from error


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
