"""Checkpoints: one file per epoch in a folder per model; `checkpoint` names the last one."""
from pathlib import Path

import torch


def save_checkpoint(state, folder):
    path = Path(folder, f"model.pth.tar-{state['epoch']}")
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)
    path.with_name("checkpoint").write_text(f"{path.name}\n")


def load_checkpoint(fpath):
    return torch.load(fpath, map_location="cpu")
