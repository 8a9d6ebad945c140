"""Reads data sets: `build_dataset` finds the reader by its name. There is one reader per file."""
from .base import DATASET_REGISTRY, Dataset, Datum
from .build import ALL_DATA, DataOptions, EvalData, build_dataset

__all__ = [
    "ALL_DATA", "DATASET_REGISTRY", "DataOptions", "Dataset", "Datum", "EvalData", "build_dataset",
]
