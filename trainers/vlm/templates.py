"""Finds templates: hand-written prompts with words on both sides of the class name."""
from __future__ import annotations

from collections.abc import Sequence

from ...datasets.utils.errors import ConfigError
from ..config.build import COOP, ENSEMBLE, split_templates

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
