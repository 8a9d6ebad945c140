"""The token embeddings of a model that was trained on few of the 49 408 tokens and stores only their rows."""
from __future__ import annotations

import torch
from torch import Tensor

VOCAB_SIZE = 49408  # of the tokenizer that all of OpenAI's models share
START_STD = 0.02  # CLIP's own initialisation


def full_token_table(rows: Tensor, weight: Tensor, vocab_size: int = VOCAB_SIZE) -> Tensor:
    """The whole table (vocab_size, width): row `rows[i]` is `weight[i]`, every other one as it was before training.

    Training starts from this same table, with no rows stored, so the rows that it never touched need no storage.
    """
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(vocab_size, weight.shape[1], generator=generator) * START_STD
    table[rows.long()] = weight.float()
    return table
