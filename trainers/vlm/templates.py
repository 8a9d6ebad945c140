"""Hand-written prompts with words on both sides of the class name, alone or as an ensemble."""
from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...datasets.utils.errors import ConfigError
from .backbone import Backbone
from .prompts import check_lengths, words
from .text_encoder import TextEncoder

COOP, ENSEMBLE = "coop", "ensemble"
SEPARATOR = "|"  # between templates in PROMPT.TEMPLATE

# The seven of CLIP's eighty ImageNet templates that its authors found to work best together.
CLIP_BEST = (
    "itap of a {}.", "a bad photo of the {}.", "a origami {}.", "a photo of the large {}.", "a {} in a video game.",
    "art of the {}.", "a photo of the small {}.",
)


def split_templates(setting: str) -> list[str]:
    return [template.strip() for template in setting.split(SEPARATOR)]


def check_setting(setting: str) -> None:
    """Refuses a PROMPT.TEMPLATE that is neither a name nor templates with one place for the class name each."""
    for template in split_templates(setting) if setting not in ("", COOP, ENSEMBLE) else ():
        if template.count("{}") != 1 or set("{}") & set(template.replace("{}", "")):
            raise ConfigError(
                f"PROMPT.TEMPLATE has the template {template!r}; it must be {COOP}, {ENSEMBLE}, or templates "
                f"separated by '{SEPARATOR}' that hold {{}} once each, where the class name goes"
            )


def find_templates(setting: str, dataset: str, own: str | None, ensemble: Sequence[str] = ()) -> list[str]:
    """The templates of a PROMPT.TEMPLATE; `own` is the data set's template, None without a data set.

    The ensemble is the data set's, such as OpenAI's for CIFAR. Where it has none, it is CoOp's: CLIP's seven and,
    except on ImageNet, for which these were chosen, the data set's own.
    """
    if setting == COOP:
        if own is None:
            raise ConfigError(f"PROMPT.TEMPLATE {COOP} needs a data set; give the template itself instead")
        return [own]
    if setting == ENSEMBLE:
        return list(ensemble) or [*CLIP_BEST, *([own] if own and dataset != "ImageNet" else [])]
    return split_templates(setting) if setting else []


def template_features(
    backbone: Backbone, templates: Sequence[str], classnames: Sequence[str], precision: str,
) -> Tensor:
    """Unit text features (K, d): those of all templates averaged, and scaled to length 1 again."""
    no_context = torch.empty(1, 0, backbone.width, device=backbone.device)
    features = []
    for template in templates:
        prompts = [template.replace("{}", words(name)) for name in classnames]
        tokens = [[*backbone.tokenizer.beginning(prompt), *backbone.tokenizer.end] for prompt in prompts]
        check_lengths(prompts, tokens, 0, backbone)
        features.append(TextEncoder(backbone, tokens, precision).text(no_context)[0])
    return F.normalize(torch.stack(features).mean(0), dim=-1)
