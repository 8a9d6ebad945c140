"""The texts of each class, templates and descriptions, which replace PROMPT.CTX_INIT, and their features."""
from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm
from yacs.config import CfgNode

from ...datasets.utils.errors import DataError
from ..config.validation import MEAN, SIMILARITY
from .backbone import Backbone
from .descriptions import Descriptions, read_descriptions
from .prompts import check_lengths
from .text_encoder import TextEncoder
from .tokenizer import clean_name

logger = logging.getLogger(__name__)


class TextFeatures(NamedTuple):
    """Of classes that are described by texts, instead of a context and their names."""

    unit: Tensor  # (K, d)
    tokens: list[list[int]]  # of each class, all its texts joined: equal ones have equal features
    lengths: Tensor  # (K,) factors of the cosines, or () = 1


@dataclass(frozen=True)
class ClassTexts:
    """All texts of a class count the same: with 7 templates and 30 descriptions, the descriptions have 30/37 of the
    weight, as in DMN and DPE."""

    templates: Sequence[str]
    descriptions: Descriptions | None
    classnames: Sequence[str]
    ensemble: str = MEAN

    @classmethod
    def find(
        cls, own: CfgNode, templates: Sequence[str], classnames: Sequence[str], expected_hash: str = "",
    ) -> ClassTexts | None:
        """The texts that the branch PROMPT of the settings names; None if it names none. The file of descriptions must
        still have the `expected_hash`, if one is given."""
        found = None
        if own.DESCRIPTIONS:
            found = read_descriptions(own.DESCRIPTIONS, classnames, own.DESCRIPTION_FORMAT)
            if expected_hash not in ("", found.digest):
                raise DataError(f"{found.file} (PROMPT.DESCRIPTIONS) changed after it was read: run the command again")
        return cls(templates, found, classnames, own.ENSEMBLE) if templates or found else None

    @property
    def summary(self) -> str:
        """Such as `7 templates and 30 to 60 sentences per class (cupl.json), mean feature`."""
        parts = [f"{len(self.templates)} template{'s'[: len(self.templates) > 1]}"] if self.templates else []
        if self.descriptions:
            counts = sorted({len(texts) for texts in self.descriptions.texts})
            number = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
            name = self.descriptions.file.replace("\\", "/").rpartition("/")[2]
            parts.append(f"{number} {self.descriptions.form} per class ({name})")
        return f"{' and '.join(parts)}, {'mean of cosines' if self.ensemble == SIMILARITY else 'mean feature'}"

    def metadata(self) -> dict[str, object]:
        """For results.json."""
        facts: dict[str, object] = {"texts": self.summary}
        if self.templates:
            facts["templates"] = list(self.templates)
        if self.descriptions:
            facts |= {"descriptions": self.descriptions.file, "descriptions_hash": self.descriptions.digest}
        return facts

    def tokens(self, backbone: Backbone) -> list[list[list[int]]]:
        """Of each class the tokens of its texts. Long descriptions are cut as by `clip.tokenize(truncate=True)`; a
        template that is too long is refused."""
        tokenizer = backbone.tokenizer
        tokens: list[list[list[int]]] = [[] for _ in self.classnames]
        for template in self.templates:
            prompts = [template.replace("{}", clean_name(name)) for name in self.classnames]
            made = [[*tokenizer.beginning(prompt), *tokenizer.end] for prompt in prompts]
            check_lengths(prompts, made, 0, backbone)
            for own, row in zip(tokens, made, strict=True):
                own.append(row)
        room, cut, total = backbone.context_length - len(tokenizer.start) - len(tokenizer.end), 0, 0
        for own, texts in zip(tokens, self.descriptions.texts if self.descriptions else [], strict=False):
            for text in texts:
                row = tokenizer.beginning(text)
                own.append([*row[:room], *tokenizer.end])
                cut, total = cut + (len(row) > room), total + 1
        if cut:
            logger.warning("%d of %d descriptions are longer than the model's %d tokens and are cut there", cut, total,
                           backbone.context_length)
        return tokens

    def features(self, backbone: Backbone, precision: str) -> TextFeatures:
        """The mean of the unit features of a class's texts. Its cosine with an image is, up to its length, the mean of
        the texts' cosines. That length is below 1 where the texts differ: with `similarity` it multiplies the class's
        logit, a temperature per class; with `mean` it is dropped."""
        tokens = self.tokens(backbone)
        no_context = torch.empty(1, 0, backbone.width, device=backbone.device)
        sums = torch.zeros(len(tokens), backbone.features, device=backbone.device)
        most = max(map(len, tokens))
        for at in tqdm(range(most), "texts", unit="per class", disable=most * len(tokens) < 2000):
            having = [k for k, rows in enumerate(tokens) if at < len(rows)]
            sums[having] += TextEncoder(backbone, [tokens[k][at] for k in having], precision).text(no_context)[0]
        means = sums / torch.tensor([[len(rows)] for rows in tokens], device=sums.device)
        lengths = means.norm(dim=-1)
        logger.info("texts: %s", self.summary)
        joined = [[token for row in rows for token in row] for rows in tokens]
        return TextFeatures(F.normalize(means, dim=-1), joined,
                            lengths if self.ensemble == SIMILARITY else torch.ones_like(lengths[0]))
