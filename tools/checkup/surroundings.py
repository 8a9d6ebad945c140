"""What the machine has: torch and its devices, memory, disk, and whether each rank has a GPU of its own."""
from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from ...datasets.views.loader import num_threads
from ...trainers.runs.environment import environment
from ..speed.profiling import available_memory, load, processor
from .findings import FAULT, NOTE, Check

IMAGES = 50_000  # of the largest file_datasets, for the plan of the disk
BUSY = 0.5  # processes a core that others may have waiting before measurements stop meaning much


def surroundings(device: torch.device, cache: Path | None, features: int, views: int) -> Iterator[Check]:
    versions = environment(device)["versions"]
    yield Check("versions", ", ".join(f"{name} {version}" for name, version in versions.items()))
    yield from devices(device)
    cores, busy = num_threads(-1), load()
    crowded = busy is not None and busy > cores * BUSY
    yield Check(
        "processor", f"{processor()}, {cores} cores for this process" + ("" if busy is None else f", load {busy}"),
        NOTE if crowded else "ok", "others are using it: a run will be slower than the speeds below" if crowded
        else "",
    )
    memory = available_memory()
    yield Check("memory", f"{memory / 1e9:.1f} GB free", *(
        (NOTE, "1000 classes need about 2 GB beyond the model: TTA.JACOBIAN off, fewer TTA.EPISODES")
        if memory < 4e9 else ()))
    yield disk(cache, features, views)


def devices(device: torch.device) -> Iterator[Check]:
    if not torch.cuda.is_available():
        built = torch.version.cuda is not None
        yield Check("GPU", "torch sees none", NOTE, "with an NVIDIA GPU: is its driver there (nvidia-smi)?" if built
                      else "this torch is built for CPUs: install one with CUDA if there is a GPU")
        return
    names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    yield Check("GPU", ", ".join(names))
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if ranks > len(names):
        yield Check("ranks", f"{ranks} on {len(names)} GPUs", FAULT, f"torchrun --nproc-per-node {len(names)}")
    free, total = torch.cuda.mem_get_info(device)
    shared = free < 0.9 * total
    yield Check("GPU memory", f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free", NOTE if shared else "ok",
                  "another process is on this GPU: choose one with DEVICE cuda:N" if shared else "")


def disk(cache: Path | None, features: int, views: int) -> Check:
    """Free space where view features would be kept, against what the largest file_datasets take."""
    folder = (cache or Path()).expanduser().absolute()
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    free, needed = shutil.disk_usage(there).free, IMAGES * views * features * 2
    text = f"{free / 1e9:.0f} GB free; view features of {IMAGES:,} images take {needed / 1e9:.1f} GB in half precision"
    enough = free > needed
    return Check("disk", text, "ok" if enough else NOTE, "" if enough else "choose a CACHE.DIR with more space")
