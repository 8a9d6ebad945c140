"""The methods for people who have images in memory: no files, no run folder."""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..datasets.utils.errors import ConfigError, explaining_faults
from ..datasets.views.images import open_image, to_rgb
from ..datasets.views.maker import ViewMaker
from .config.build import build_cfg
from .config.safe_yaml import flatten
from .engine.adapted import Adapted, refuse_lost
from .engine.parts import chunks
from .registry import build_trainer
from .vlm.backbone import Backbone
from .vlm.image_tower import encode_views
from .vlm.loading import as_backbone
from .vlm.numerics import fixed_numerics
from .vlm.openai_clip import CLIP

HIGHEST_NORMALISED = 16  # no backbone's statistics make a pixel as large as that
KEPT = 4  # adapters that are kept for each model

ImageLike = str | Path | Image.Image
Views = Tensor | np.ndarray | ImageLike | Sequence  # a sequence of any of them, an image each
Options = Sequence | Mapping[str, object]


class Adapter:
    """A method set up for one model, one list of classes and one number of views (0 = TTA.VIEWS), to be called again
    and again.

    An online method goes on from image to image, from call to call.
    """

    @explaining_faults()
    @fixed_numerics()
    def __init__(
        self, trainer: str, model: CLIP | Backbone, classnames: Sequence[str], views: int = 0, opts: Options = (),
    ) -> None:
        backbone, names = checked_model(model), checked_names(classnames)
        flags = ["DEVICE", str(backbone.device), *(["TTA.VIEWS", views] if views else [])]
        self.method = build_trainer(build_cfg(trainer, flags=flags, opts=option_pairs(opts), source="opts"))
        self.method.use_model(backbone, names)
        self.count = 0  # images so far
        self.turn = RLock() if self.method.online else nullcontext()  # of a state there is one: threads wait
        self.start = dict(self.method.state()) if self.method.online else None

    @explaining_faults()
    @fixed_numerics()
    def __call__(self, views: Views) -> Adapted:
        """Adapts to each of the images and predicts it; see `adapt` for what they may be given as."""
        method, made = self.method, []
        for batch, raw in self.batches(views):
            made.append(method.adapt(encode_views(method.backbone, batch, method.precision, normalised=not raw)))
        adapted = Adapted.join(made)
        names = [f"image {self.count + place}" for place in range(len(adapted.logits))]
        self.count += len(names)
        adapted = adapted.with_fallback()
        refuse_lost(adapted.logits.detach().cpu().numpy(), names)
        return adapted

    def batches(self, views: Views) -> Iterator[tuple[Tensor, bool]]:
        """The views (b, V, 3, H, W) of as many images as are adapted at once, and whether they are pixel values. Those
        of pictures are made as in a run, and only when their turn comes."""
        cfg, backbone = self.method.cfg, self.method.backbone
        at_once = 1 if self.method.online else cfg.TTA.EPISODES
        pictures = as_pictures(views)
        if not pictures:
            tensor = as_tensor(views, backbone.pixels.size)
            raw = has_pixel_values(tensor)  # of all at once, so that a dark image does not depend on whose turn it has
            yield from ((some, raw) for some in tensor.split(at_once))
            return
        make = ViewMaker.of(self.method.views, backbone.pixels, cfg.TTA.AUGMIX != "off", cfg.SEED)
        for some in chunks(pictures, at_once):
            yield torch.stack([make(opened(picture), 0, backbone.device) for picture in some]), True

    def restart(self) -> None:
        """Forgets the images so far."""
        self.count = 0
        if self.start is not None:
            self.method.load_state(self.start)


class Kept(OrderedDict):
    """A model's adapters, by what they were made for. They hold the model, so the model holds them and all go together;
    a copy of the model, or one that is saved, begins without."""

    def __reduce__(self) -> tuple:
        return Kept, ()


@explaining_faults()
@fixed_numerics()
def adapt(
    trainer: str, model: CLIP | Backbone, classnames: Sequence[str], views: Views, opts: Options = (),
) -> Adapted:
    """Adapts the prompt to each image and predicts it.

    `views` are PIL images or paths, one or a list, whose views are made as in a run; or a tensor or array of views
    (V, 3, H, W) of one image or (B, V, 3, H, W) of several, view 0 the plain one: pixel values from 0 to 255, as
    `make_views` makes them, or normalised numbers of any floating type. `opts` are KEY VALUE pairs as on the command
    line, e.g. `["TTA.STEPS", 2]`, or a dict of them. As in a run, an image whose numbers are lost keeps its zero-shot
    prediction and is `flagged`. Config, tokens and text features are kept for the next call with the same arguments.
    Autocast, the default dtype and inference mode around the call change nothing.
    """
    backbone = checked_model(model)
    if not as_pictures(views):
        views = as_tensor(views, backbone.pixels.size)
    count = views.shape[1] if isinstance(views, Tensor) else 0
    adapter = find_adapter(trainer, backbone, checked_names(classnames), count, option_pairs(opts))
    with adapter.turn:
        adapter.restart()
        return adapter(views)


def find_adapter(
    trainer: str, backbone: Backbone, classnames: Sequence[str], views: int, opts: Sequence,
) -> Adapter:
    """The adapter that was made for these arguments, unless the model's weights have changed since, or a new one."""
    weights = tuple((tensor.data_ptr(), tensor._version) for tensor in backbone.module.parameters())
    key = (trainer, tuple(classnames), views, tuple(map(str, opts)), backbone.pixels, weights)
    kept = vars(backbone.module).setdefault("_promptcal_adapters", Kept())
    if key not in kept:
        kept[key] = Adapter(trainer, backbone, classnames, views, opts)
        if len(kept) > KEPT:
            kept.popitem(last=False)
    kept.move_to_end(key)
    return kept[key]


def checked_model(model: Any) -> Backbone:
    """The model, if its numbers are what all methods compute with."""
    if isinstance(model, str):
        raise TypeError(f"model must be a loaded one, not its name: use load_clip({model!r})")
    backbone = as_backbone(model)
    weights = [*backbone.module.parameters()]
    other = next((tensor.dtype for tensor in weights if tensor.is_floating_point() and tensor.dtype != torch.float32),
                 None)
    if other:
        raise TypeError(f"the model's weights are {other}: give model.float(); opts=['MODEL.PREC', 'fp16'] or 'bf16' "
                        f"then runs its towers in half precision")
    if any(tensor.is_inference() for tensor in weights):
        raise ValueError("the model was loaded inside torch.inference_mode(), so nothing can be learnt through it: "
                         "load it outside")
    return backbone


def checked_names(classnames: Any) -> list[str]:
    """Class names, which are texts, and not the letters of one."""
    if isinstance(classnames, str | bytes) or not isinstance(classnames, Sequence | np.ndarray | set | frozenset):
        raise TypeError(f"classnames must be a list of names, not {classnames!r:.80}")
    if isinstance(classnames, set | frozenset):
        raise TypeError("classnames must be in order, because predictions name them by number: give a list, not a set")
    names = list(classnames)
    other = next((name for name in names if not isinstance(name, str)), None)
    if other is not None or not names:
        raise TypeError(f"classnames must be texts, not {other!r:.80}" if names else "classnames is empty")
    return [str(name) for name in names]


def option_pairs(opts: Any) -> list:
    """KEY VALUE pairs, or a dict of them, as a list."""
    if isinstance(opts, Mapping):
        return [item for pair in flatten(dict(opts)) for item in pair]
    if isinstance(opts, str | bytes) or not isinstance(opts, Sequence):
        raise TypeError(f"opts must be KEY VALUE pairs like ['TTA.STEPS', 2], or a dict, not {opts!r:.80}")
    return list(opts)


def as_pictures(views: Any) -> list[ImageLike]:
    """The pictures or paths among what was given; empty where it is something else."""
    pictures = [views] if isinstance(views, ImageLike) else views
    if not isinstance(pictures, list | tuple) or not any(isinstance(one, ImageLike) for one in pictures):
        return []
    other = next((one for one in pictures if not isinstance(one, ImageLike)), None)
    if other is not None:
        raise TypeError(f"views are pictures and paths, or tensors, but not both: found a {type(other).__name__}")
    return list(pictures)


def opened(picture: ImageLike) -> Image.Image:
    return to_rgb(picture) if isinstance(picture, Image.Image) else open_image(picture)


def as_tensor(views: Any, size: int) -> Tensor:
    """Views (B, V, 3, size, size) of pixel values or normalised numbers, as a tensor that gradients do not follow."""
    wanted = f"(V, 3, {size}, {size}) or (B, V, 3, {size}, {size})"
    if isinstance(views, list | tuple) and views and all(isinstance(one, Tensor | np.ndarray) for one in views):
        if len({tuple(one.shape) for one in views}) > 1:
            raise ValueError(f"views of several images must have one shape, not {[tuple(v.shape) for v in views[:5]]}")
        views = torch.stack([one if isinstance(one, Tensor) else from_array(one) for one in views])
    if not isinstance(views, Tensor | np.ndarray):
        raise TypeError(f"views must be pictures, paths, or a tensor {wanted}, not a {type(views).__name__}")
    if isinstance(views, np.ndarray) and views.dtype.kind not in "fu":
        raise TypeError(f"views must be floating-point numbers or uint8, not {views.dtype}")
    views = from_array(views) if isinstance(views, np.ndarray) else views
    views = views.detach().clone()  # in normal mode, also of a tensor from inference mode
    if views.dtype != torch.uint8 and not views.is_floating_point():
        raise TypeError(f"views must be floating-point numbers or uint8, not {views.dtype}")
    if views.dim() == 4:
        views = views[None]
    if views.dim() != 5 or views.shape[2:] != (3, size, size) or not views.numel():
        raise ConfigError(f"views must be {wanted}, not {tuple(views.shape)}")
    lost = ~views.flatten(1).isfinite().all(1) if views.is_floating_point() else torch.zeros(1, dtype=torch.bool)
    if lost.any():
        raise ValueError(f"the views of image {int(lost.nonzero()[0])} hold numbers that are not finite")
    return views


def from_array(array: np.ndarray) -> Tensor:
    """Also of one that is read backwards, or was written on another machine."""
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def has_pixel_values(views: Tensor) -> bool:
    """Whether views are pixel values from 0 to 255, as `make_views` makes them. Normalised ones stay within ±3. Numbers
    of black images alone look normalised; as uint8 they do not."""
    return views.dtype == torch.uint8 or bool(views.amax() > HIGHEST_NORMALISED)
