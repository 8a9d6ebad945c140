"""Data sets: one reader per file, found by the registry."""
from .base import DATASET_REGISTRY, Dataset, Datum, build_dataset

__all__ = ["DATASET_REGISTRY", "Dataset", "Datum", "build_dataset"]
