"""The registry, checkpoints, and a standard output that is also a file."""
import sys
from pathlib import Path

from .torchtools import load_checkpoint, save_checkpoint

__all__ = ["Registry", "load_checkpoint", "save_checkpoint", "setup_logger"]


class Registry:
    def __init__(self, name):
        self.name, self.classes = name, {}

    def register(self, obj=None, force=False):
        if obj is None:
            return lambda cls: self.register(cls, force) or cls
        if obj.__name__ in self.classes and not force:
            raise KeyError(f"{obj.__name__} was already registered in {self.name}")
        self.classes[obj.__name__] = obj
        return None

    def get(self, name):
        return self.classes[name]

    def registered_names(self):
        return list(self.classes)


class Logger:
    """Writes to the terminal and a file, and closes both when it is deleted."""

    def __init__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.console, self.file = sys.stdout, path.open("w")

    def write(self, text):
        self.console.write(text)
        self.file.write(text)

    def flush(self):
        self.console.flush()
        self.file.flush()

    def __del__(self):
        self.console.close()
        self.file.close()


def setup_logger(output=None):
    path = Path(output, "log.txt")
    sys.stdout = Logger(path.with_name("log.txt-later") if path.exists() else path)
