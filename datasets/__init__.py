"""Readers of the file_datasets, one a file; a file that registers a data set is found by the registry."""
from .base import DATASET_REGISTRY, Dataset, Datum, build_dataset

__all__ = ["DATASET_REGISTRY", "Dataset", "Datum", "build_dataset"]
