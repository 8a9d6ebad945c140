"""TPS: tunes a shift of the class features, so that no text tower runs at test time."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .engine.adapted import Adapted
from .engine.text_shift import ShiftedText
from .engine.tta_loop import tune_and_predict
from .registry import TRAINER_REGISTRY
from .tpt import TPT
from .vlm.backbone import Backbone
from .vlm.openai_clip import CLIP


@TRAINER_REGISTRY.register()
class TPS(TPT):
    """min over s of L_TPT with class features unit(T + s), s = 0 at first. (Sui et al., TPS, WACV 2025.)

    The first step is s = −lr · g/(|g| + 1e-8) in closed form.
    """

    label, colour, marker, display_order = "TPS", "#44AA99", "p", 50
    tunes_context = False
    shifted: ShiftedText

    def use_model(self, model: CLIP | Backbone, classnames: Sequence[str]) -> None:
        super().use_model(model, classnames)
        self.shifted = ShiftedText(self.prompt.text)

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        adapted = tune_and_predict(self.shifted, views, self.scale, self, self.cfg)
        return replace(adapted, ctx=None)  # a shift of features is not a context
