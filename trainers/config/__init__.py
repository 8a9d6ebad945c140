"""Settings: the table, layers of files and flags, checks, and what each setting influences."""
from .build import CONFIGS, build_cfg

__all__ = ["CONFIGS", "build_cfg"]
