"""Shows context vectors as words: the tokens whose embeddings are nearest to them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn

from ...datasets.utils.errors import ConfigError, WeightsError, one_line
from ..registry import backbone_label
from .backbone import Backbone
from .loading import load_backbone
from .prompt_files import prompt_file, read_context

AT_ONCE = 64  # number of vectors compared with the whole vocabulary together; bounds memory
CAVEAT = (
    "Nearest tokens rarely mean anything: a context vector may lie far from all of them, and the "
    "text tower reads the vectors together, not one by one."
)


@dataclass(frozen=True)
class NearestWords:
    """The tokens nearest to one context vector, nearest first, with their cosine or Euclidean
    distance.
    """

    by_cosine: Sequence[tuple[str, float]]
    by_distance: Sequence[tuple[str, float]]

    @property
    def cells(self) -> list[str]:
        """Two cells of a table, such as `cat 0.52, dog 0.48`: by cosine and by distance."""
        cells = []
        for nearest in (self.by_cosine, self.by_distance):
            cells.append(", ".join(f"{word} {value:.2f}" for word, value in nearest))
        return cells


@torch.no_grad()
def nearest_words(context: Tensor, backbone: Backbone, count: int = 3) -> list[NearestWords]:
    """Finds the tokens of the vocabulary that are nearest to each vector, except control tokens.

    Args:
        context: The vectors, (n, width).
        backbone: The model that the vectors were learnt with.
        count: Number of tokens per vector.

    Returns:
        The tokens of each of the n vectors.
    """
    embedding = getattr(backbone, "embedding", None)
    decode = backbone.tokenizer.decode
    if not isinstance(embedding, nn.Embedding) or decode is None:
        raise WeightsError(
            "this backbone has no table of token embeddings with a tokenizer that reads them back: "
            "its prompts cannot be shown as words"
        )
    table = embedding.weight.detach().float()
    if context.dim() != 2 or context.shape[1] != table.shape[1]:
        raise WeightsError(
            f"the context has shape {tuple(context.shape)}, but this backbone's tokens have "
            f"{table.shape[1]} numbers: give the backbone that it was learnt with"
        )
    control = sorted(token for token in backbone.tokenizer.control if token < len(table))
    left_out = torch.tensor(control, device=table.device)
    directions = F.normalize(table, dim=-1)

    def best_words(scores: Tensor) -> list[tuple[str, float]]:
        """The words with the highest scores (tokens,), each with its score."""
        best = scores.topk(min(count, len(table) - len(left_out)))
        words = []
        for token, score in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            # A token may be a part of a letter, or only a space, which cannot be shown.
            word = one_line(decode(token), 40).strip() or f"token {token}"
            words.append((word, score))
        return words

    words_of_vectors = []
    for vectors in context.to(table).split(AT_ONCE):
        cosines = F.normalize(vectors, dim=-1) @ directions.T
        distances = torch.cdist(vectors, table)
        cosines[:, left_out] = -torch.inf
        distances[:, left_out] = torch.inf
        for cosine, distance in zip(cosines, distances, strict=True):
            by_distance = [(word, -score) for word, score in best_words(-distance)]
            words_of_vectors.append(NearestWords(best_words(cosine), by_distance))
    return words_of_vectors


def prompt_table(source: str, backbone: str = "") -> str:
    """Returns a table of the context of a prompt checkpoint as words.

    Args:
        source: The path of the checkpoint, or the name of an embedded prompt.
        backbone: The model's name; "" = the one that the file states.
    """
    stored = read_context(prompt_file(source))
    name = backbone or stored.backbone
    if not name:
        raise ConfigError(
            f"{source} does not name the backbone that it was learnt with: give --backbone"
        )
    if stored.context.dim() not in (2, 3) or not stored.context.isfinite().all():
        raise WeightsError(
            f"the context in {source} has shape {tuple(stored.context.shape)} or numbers that are "
            "not finite: it must be (n_ctx, width), or (classes, n_ctx, width)"
        )
    n_ctx = stored.context.shape[-2]
    is_per_class = stored.context.dim() == 3
    model = load_backbone(name, torch.device("cpu"))
    words_of_vectors = nearest_words(stored.context.flatten(0, -2), model)

    headers = ["vector", "nearest by cosine", "nearest by distance"]
    if is_per_class:
        headers.insert(0, "class")
    rows = []
    for index, words in enumerate(words_of_vectors):
        row = [index % n_ctx + 1, *words.cells]
        if is_per_class:
            row.insert(0, index // n_ctx)
        rows.append(row)
    table = tabulate(rows, headers=headers, disable_numparse=True)
    return f"{table}\n{source}, {backbone_label(name)}. {CAVEAT}"
