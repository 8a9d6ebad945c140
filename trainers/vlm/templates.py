"""Hand-written prompts with words on both sides of the class name, alone or as an ensemble."""
from __future__ import annotations

from collections.abc import Sequence

from ...datasets.utils.errors import ConfigError
from ..config.validation import COOP, ENSEMBLE, split_templates

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


def find_templates(
    setting: str, dataset: str, own: str | None, ensemble: Sequence[str] = ()
) -> list[str]:
    """The templates of a PROMPT.TEMPLATE; `own` is the data set's template, None without a data
    set.

    The ensemble is the data set's, such as OpenAI's for CIFAR. Where it has none, it is CoOp's:
    CLIP's seven and, except on ImageNet, for which these were chosen, the data set's own.
    """
    if setting == COOP:
        if own is None:
            raise ConfigError(
                f"PROMPT.TEMPLATE {COOP} needs a data set; give the template itself instead"
            )
        return [own]
    if setting == ENSEMBLE:
        return list(ensemble) or [*CLIP_BEST, *([own] if own and dataset != "ImageNet" else [])]
    return split_templates(setting) if setting else []
