"""The methods for people who have images in memory: no files, no run folder."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..datasets.utils.errors import ConfigError
from .config.layers import build_cfg
from .engine.adapted import Adapted
from .registry import build_trainer
from .vlm.backbone import Backbone
from .vlm.image_tower import encode_views
from .vlm.loading import as_backbone
from .vlm.openai_clip import CLIP

HIGHEST_NORMALISED = 16  # no backbone's statistics make a pixel as large as that
KEPT = 4  # adapters that are kept for each model


class Adapter:
    """A method set up for one model, one list of classes and one number of views, to be called again and again.

    An online method goes on from image to image, from call to call.
    """

    def __init__(
        self, trainer: str, model: CLIP | Backbone, classnames: Sequence[str], views: int, opts: Sequence = (),
    ) -> None:
        backbone = as_backbone(model)
        device = str(backbone.device)
        self.method = build_trainer(build_cfg(trainer, flags=["TTA.VIEWS", views, "DEVICE", device], opts=opts))
        self.method.use_model(backbone, classnames)
        self.count = 0  # images so far
        self.start = dict(self.method.state()) if self.method.online else None

    def __call__(self, views: Tensor) -> Adapted:
        """Adapts to each of the images, given as views (B, V, 3, H, W), and predicts it."""
        at_once = 1 if self.method.online else self.method.cfg.TTA.EPISODES
        normalised = not has_pixel_values(views)
        adapted = Adapted.join([
            self.method.adapt(encode_views(self.method.backbone, batch, self.method.precision, normalised))
            for batch in views.split(at_once)
        ])
        names = [f"image {self.count + place}" for place in range(len(views))]
        self.count += len(views)
        return adapted.with_fallback(names)

    def restart(self) -> None:
        """Forgets the images so far."""
        self.count = 0
        if self.start is not None:
            self.method.load_state(self.start)


def has_pixel_values(views: Tensor) -> bool:
    """Whether views are pixel values from 0 to 255, as `make_views` makes them. Normalised ones stay within ±3."""
    return views.dtype == torch.uint8 or (not views.is_meta and bool(views.amax() > HIGHEST_NORMALISED))


_adapters: WeakKeyDictionary[nn.Module, OrderedDict[tuple, Adapter]] = WeakKeyDictionary()


def adapt(
    trainer: str, model: CLIP | Backbone, classnames: Sequence[str], views: Tensor, opts: Sequence = (),
) -> Adapted:
    """Adapts the prompt to each image and predicts it.

    `views` (V, 3, H, W) of one image or (B, V, 3, H, W) of several, view 0 the plain one, are pixel values from 0 to
    255, as `make_views` makes them, or normalised numbers of any floating type; `opts` are KEY VALUE pairs as on the
    command line, e.g. `["TTA.STEPS", 2]`. As in a run, an image whose numbers are lost keeps its zero-shot prediction
    and is `flagged`. Config, tokens and text features are kept for the next call with the same arguments.
    """
    if views.dim() == 4:
        views = views[None]
    backbone = as_backbone(model)
    size = backbone.pixels.size
    if views.dim() != 5 or views.shape[2:] != (3, size, size) or not len(views):
        wanted = f"(V, 3, {size}, {size}) or (B, V, 3, {size}, {size})"
        raise ConfigError(f"views must be {wanted}, not {tuple(views.shape)}")
    adapter = find_adapter(trainer, backbone, classnames, views.shape[1], opts)
    adapter.restart()
    return adapter(views)


def find_adapter(
    trainer: str, backbone: Backbone, classnames: Sequence[str], views: int, opts: Sequence,
) -> Adapter:
    """The adapter that was made for these arguments, unless the model's weights have changed since, or a new one."""
    weights = tuple((tensor.data_ptr(), tensor._version) for tensor in backbone.module.parameters())
    key = (trainer, tuple(classnames), views, tuple(map(str, opts)), weights)
    kept = _adapters.setdefault(backbone.module, OrderedDict())
    if key not in kept:
        kept[key] = Adapter(trainer, backbone, classnames, views, opts)
        if len(kept) > KEPT:
            kept.popitem(last=False)
    kept.move_to_end(key)
    return kept[key]
