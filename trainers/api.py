"""The methods for people who have images in memory: no files, no run folder."""
from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..datasets.utils.errors import ConfigError
from .config.layers import build_cfg
from .engine.episodes import Adapted
from .registry import build_trainer
from .vlm.image_tower import encode_views
from .vlm.openai_clip import CLIP


def adapt(trainer: str, model: CLIP, classnames: Sequence[str], views: Tensor, opts: Sequence = ()) -> Adapted:
    """Adapts the prompt to each image and predicts it.

    `views` are normalised pixels (V, 3, H, W) of one image or (B, V, 3, H, W) of several, view 0 the plain one, of any
    floating type; `opts` are KEY VALUE pairs as on the command line, e.g. `["TTA.STEPS", 2]`. As in a run, an image
    whose numbers are lost keeps its zero-shot prediction and is `flagged`.
    """
    if views.dim() == 4:
        views = views[None]
    size = model.visual.input_resolution
    if views.dim() != 5 or views.shape[2:] != (3, size, size) or not len(views):
        wanted = f"(V, 3, {size}, {size}) or (B, V, 3, {size}, {size})"
        raise ConfigError(f"views must be {wanted}, not {tuple(views.shape)}")
    device = str(model.logit_scale.device)
    cfg = build_cfg(trainer, flags=["TTA.VIEWS", views.shape[1], "DEVICE", device], opts=opts)
    method = build_trainer(cfg)
    method.use_model(model, classnames)
    adapted = Adapted.join([
        method.adapt(encode_views(model, batch, method.precision)) for batch in views.split(cfg.TTA.EPISODES)
    ])
    return adapted.with_fallback([f"image {place}" for place in range(len(views))])
