"""Out of memory: try again with less at once."""
from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from ...datasets.utils.errors import out_of_memory

logger = logging.getLogger(__name__)

T = TypeVar("T")


def retry_on_oom(run: Callable[[], T], shrink: Callable[[], str]) -> T:
    """The result of `run`. Each time that memory runs out, `shrink` makes the next attempt smaller and returns its size
    in words, or raises a UserError if nothing is left to shrink."""
    while True:
        try:
            return run()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Outside the except clause, where the exception and the memory that it held are gone.
        logger.warning("out of memory: %s at once from here on", shrink())
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # returns freed blocks to the driver, so that smaller ones fit
