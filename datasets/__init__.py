"""Readers of the benchmarks. Every reader in this folder is imported, so that what it defines is registered."""
import importlib
import pkgutil

from .base import DATASET_REGISTRY, Dataset, Datum, build_dataset

# These make views of images with torch, which takes seconds to import and which reading a data set does not need.
NOT_READERS = ("augmix", "loader", "views")

for _module in pkgutil.iter_modules(__path__):
    if _module.name not in NOT_READERS:
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["DATASET_REGISTRY", "Dataset", "Datum", "build_dataset"]
