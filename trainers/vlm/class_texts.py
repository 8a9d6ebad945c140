"""Makes class features from texts (templates and descriptions), which replace PROMPT.CTX_INIT.

Templates are hand-written prompts with words on both sides of the class name.
"""
from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from yacs.config import CfgNode

from ...datasets.utils.errors import ConfigError
from ...datasets.utils.progress import show_progress
from ..config.build import COOP, ENSEMBLE, MEAN, SIMILARITY, split_templates
from .backbone import Backbone, check_lengths
from .descriptions import Descriptions, read_descriptions
from .prompts import clean_name
from .text_encoder import TextEncoder

logger = logging.getLogger(__name__)

# The seven of CLIP's eighty ImageNet templates that its authors found to work best together.
CLIP_BEST = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)


class TextFeatures(NamedTuple):
    """The features of classes that are described by texts, not by a context and their names."""

    unit: Tensor  # features of length 1, (K, d)
    tokens: list[list[int]]  # tokens of each class's texts, joined: equal ones have equal features
    lengths: Tensor  # factors of the cosines, (K,), or () = 1


@dataclass(frozen=True)
class ClassTexts:
    """The texts of each class.

    All texts of a class count the same: with 7 templates and 30 descriptions, the descriptions have
    30/37 of the weight, as in DMN and DPE.
    """

    templates: Sequence[str]
    descriptions: Descriptions | None
    classnames: Sequence[str]
    ensemble: str = MEAN

    @classmethod
    def find(
        cls, settings: CfgNode, templates: Sequence[str], classnames: Sequence[str],
    ) -> ClassTexts | None:
        """Finds the texts that the settings name.

        Args:
            settings: The branch PROMPT of the settings.
            templates: The templates that the branch and the data set give.
            classnames: Names of the K classes.

        Returns:
            None if the settings name no texts.
        """
        descriptions = None
        if settings.DESCRIPTIONS:
            descriptions = read_descriptions(
                settings.DESCRIPTIONS, classnames, settings.DESCRIPTION_FORMAT)
        if not templates and descriptions is None:
            return None
        return cls(templates, descriptions, classnames, settings.ENSEMBLE)

    @property
    def summary(self) -> str:
        """Text such as `7 templates and 30 to 60 sentences per class (cupl.json), mean feature`."""
        parts = []
        if len(self.templates) == 1:
            parts.append("1 template")
        elif self.templates:
            parts.append(f"{len(self.templates)} templates")
        if self.descriptions:
            counts = sorted({len(texts) for texts in self.descriptions.texts})
            number = str(counts[0])
            if len(counts) > 1:
                number = f"{counts[0]} to {counts[-1]}"
            name = self.descriptions.file.replace("\\", "/").rpartition("/")[2]
            parts.append(f"{number} {self.descriptions.form} per class ({name})")
        ensemble = "mean of cosines" if self.ensemble == SIMILARITY else "mean feature"
        return f"{' and '.join(parts)}, {ensemble}"

    def metadata(self) -> dict[str, object]:
        """Returns facts about the texts for results.json."""
        facts: dict[str, object] = {"texts": self.summary}
        if self.templates:
            facts["templates"] = list(self.templates)
        if self.descriptions:
            facts["descriptions"] = self.descriptions.file
            facts["descriptions_hash"] = self.descriptions.digest
        return facts

    def tokens(self, backbone: Backbone) -> list[list[list[int]]]:
        """Returns the tokens of the texts of each class.

        Long descriptions are cut as by `clip.tokenize(truncate=True)`; a template that is too long
        is refused.
        """
        tokenizer = backbone.tokenizer
        tokens: list[list[list[int]]] = [[] for _ in self.classnames]
        for template in self.templates:
            prompts = [template.replace("{}", clean_name(name)) for name in self.classnames]
            rows = [[*tokenizer.beginning(prompt), *tokenizer.end] for prompt in prompts]
            check_lengths(prompts, rows, 0, backbone)
            for label, row in enumerate(rows):
                tokens[label].append(row)
        if self.descriptions is None:
            return tokens

        room = backbone.context_length - len(tokenizer.start) - len(tokenizer.end)
        cut = total = 0
        for label, texts in enumerate(self.descriptions.texts):
            for text in texts:
                row = tokenizer.beginning(text)
                tokens[label].append([*row[:room], *tokenizer.end])
                total += 1
                if len(row) > room:
                    cut += 1
        if cut:
            logger.warning(
                "%d of %d descriptions are longer than the model's %d tokens and are cut there",
                cut,
                total,
                backbone.context_length,
            )
        return tokens

    def features(self, backbone: Backbone, precision: str) -> TextFeatures:
        """Computes for each class the mean of the unit features of its texts.

        Its product with an image feature is the mean of the texts' cosines, and its length is below
        1 where the texts differ. With `mean` it is scaled to length 1, as in CLIP's ensemble. With
        `similarity` the length stays a factor of the class's logit, like a temperature per class.

        Args:
            backbone: The model.
            precision: Precision of the text tower.
        """
        # A text tower takes one prompt per class, so the first text of all classes runs, then the
        # second of those that have one, and so on. They are prompts without a context.
        tokens = self.tokens(backbone)
        no_context = torch.empty(1, 0, backbone.width, device=backbone.device)
        sums = torch.zeros(len(tokens), backbone.features, device=backbone.device)
        most = max(map(len, tokens))
        is_short = most * len(tokens) < 2000  # texts, which take a few seconds
        for number in show_progress(
            range(most), "texts", "per class", total=most, shown=not is_short
        ):
            classes = [label for label, rows in enumerate(tokens) if number < len(rows)]
            rows_of_classes = [tokens[label][number] for label in classes]
            encoder = TextEncoder(backbone, rows_of_classes, precision)
            sums[classes] += encoder.text(no_context)[0]
        counts = torch.tensor([[len(rows)] for rows in tokens], device=sums.device)
        means = sums / counts
        lengths = means.norm(dim=-1)
        logger.info("texts: %s", self.summary)
        joined_tokens = []
        for rows in tokens:
            joined_tokens.append([token for row in rows for token in row])
        if self.ensemble != SIMILARITY:
            lengths = torch.ones_like(lengths[0])
        return TextFeatures(F.normalize(means, dim=-1), joined_tokens, lengths)


def find_templates(
    setting: str, dataset: str, template: str | None, ensemble: Sequence[str] = ()
) -> list[str]:
    """Returns the templates that PROMPT.TEMPLATE names.

    `ensemble` names the data set's own, such as OpenAI's for CIFAR. If it has none, the ensemble is
    CoOp's: CLIP's seven and, except on ImageNet, for which these were chosen, the data set's
    template.

    Args:
        setting: The value of PROMPT.TEMPLATE: `coop`, `ensemble`, templates, or "" for none.
        dataset: Registered name of the data set.
        template: The data set's own template; None without a data set.
        ensemble: The data set's own ensemble; empty = it has none.
    """
    if not setting:
        return []
    if setting == COOP:
        if template is None:
            raise ConfigError(
                f"PROMPT.TEMPLATE {COOP} needs a data set; give the template itself instead"
            )
        return [template]
    if setting != ENSEMBLE:
        return split_templates(setting)
    if ensemble:
        return list(ensemble)
    if template and dataset != "ImageNet":
        return [*CLIP_BEST, template]
    return list(CLIP_BEST)
