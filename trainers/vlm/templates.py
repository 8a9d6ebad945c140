"""Hand-written prompts with words on both sides of the class name, alone or as an ensemble."""
from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...datasets.utils.errors import ConfigError
from .backbone import Backbone
from .class_towers import ClassTowers
from .prompts import check_lengths, words

COOP, ENSEMBLE = "coop", "ensemble"
SEPARATOR = "|"  # between templates that are written out

# The seven of CLIP's eighty ImageNet templates that its authors found to do best together.
CLIP_BEST = (
    "itap of a {}.", "a bad photo of the {}.", "a origami {}.", "a photo of the large {}.", "a {} in a video game.",
    "art of the {}.", "a photo of the small {}.",
)


def written_out(setting: str) -> list[str]:
    """The templates of a setting that is no name."""
    return [template.strip() for template in setting.split(SEPARATOR)]


def check_setting(setting: str) -> None:
    """Refuses what is neither a name nor templates with one place for the class name each."""
    if setting in ("", COOP, ENSEMBLE):
        return
    for template in written_out(setting):
        if template.count("{}") != 1 or set("{}") & set(template.replace("{}", "")):
            raise ConfigError(
                f"PROMPT.TEMPLATE has the template {template!r}; it must be {COOP}, {ENSEMBLE}, or templates "
                f"separated by '{SEPARATOR}' that hold {{}} once each, where the class name goes"
            )


def find_templates(setting: str, dataset: str, own: str | None) -> list[str]:
    """The templates that a setting stands for, `own` being the data set's, if there is a data set; none for "".

    The ensemble is CoOp's: CLIP's seven and the data set's own, which is left out on ImageNet, for which the seven
    were chosen.
    """
    if setting == COOP:
        if own is None:
            raise ConfigError(f"PROMPT.TEMPLATE {COOP} needs a data set; write the template out instead")
        return [own]
    if setting == ENSEMBLE:
        return [*CLIP_BEST, *([own] if own and dataset != "ImageNet" else [])]
    return written_out(setting) if setting else []


def template_features(
    backbone: Backbone, templates: Sequence[str], classnames: Sequence[str], precision: str,
) -> Tensor:
    """Unit text features (K, d): those of each template averaged, and scaled to length 1 again."""
    nothing = torch.empty(1, 0, backbone.width, device=backbone.device)  # no context
    features = []
    for template in templates:
        prompts = [template.replace("{}", words(name)) for name in classnames]
        tokens = [[*backbone.tokenizer.beginning(prompt), *backbone.tokenizer.end] for prompt in prompts]
        check_lengths(prompts, tokens, 0, backbone)
        features.append(ClassTowers(backbone, tokens, precision).text(nothing)[0])
    return F.normalize(torch.stack(features).mean(0), dim=-1)
