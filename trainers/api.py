"""The methods for images in memory: no files, no run directory."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..datasets.utils.errors import ConfigError, explaining_faults
from ..datasets.views import ViewMaker
from ..datasets.views.images import open_image, to_rgb
from .config.build import build_cfg
from .config.safe_yaml import flatten
from .engine.adapted import Adapted
from .engine.predict import adapt_images
from .registry import build_trainer
from .runs.parts import chunks
from .vlm.backbone import Backbone
from .vlm.image_tower import encode_views
from .vlm.loading import as_backbone
from .vlm.numerics import fixed_numerics
from .vlm.openai_clip import CLIP

HIGHEST_NORMALISED = 16  # no backbone's statistics make a normalised pixel as large as that

ImageLike = str | Path | Image.Image
Views = Tensor | np.ndarray | ImageLike | Sequence  # a sequence of any of them, one per image
Options = Sequence | Mapping[str, object]


class Adapter:
    """A method prepared for one model, one class list and one number of views (0 = TTA.VIEWS), for calls in a loop.

    Prompt and weights are those at the time of construction. An online method carries its state from call to call.
    Calls from several threads take turns.
    """

    @explaining_faults()
    @fixed_numerics()
    def __init__(
        self, trainer: str, model: CLIP | Backbone, classnames: Sequence[str], num_views: int = 0, opts: Options = (),
    ) -> None:
        backbone, names = checked_model(model), checked_names(classnames)
        flags = ["DEVICE", str(backbone.device), *(["TTA.VIEWS", num_views] if num_views else [])]
        self.method = build_trainer(build_cfg(trainer, flags=flags, opts=option_pairs(opts), source="opts"))
        self.method.use_model(backbone, names)
        self.count = 0  # images so far
        self.lock = RLock()

    @explaining_faults()
    @fixed_numerics()
    def __call__(self, views: Views, index: Sequence[int] | int | None = None) -> Adapted:
        """Adapts to each of the images and predicts it; see `adapt` for the arguments."""
        method = self.method
        with self.lock:
            adapted = []
            for batch, raw in self.batches(views, index):
                features = encode_views(method.backbone, batch, method.precision, normalised=not raw)
                names = [f"image {self.count + row}" for row in range(len(features))]
                adapted.append(adapt_images(method, features, names))
                self.count += len(features)
            return Adapted.join(adapted)

    def batches(self, views: Views, index: Sequence[int] | int | None = None) -> Iterator[tuple[Tensor, bool]]:
        """The views (b, V, 3, H, W) of the images that are adapted at once, and whether they are pixel values from 0 to
        255. Views of images are made as in a run."""
        cfg, backbone = self.method.cfg, self.method.backbone
        at_once = 1 if self.method.online else cfg.TTA.EPISODES
        images = as_images(views)
        if not images:
            if index is not None:
                raise ConfigError("index is for images and paths, whose views are drawn from it: given views need none")
            tensor = as_tensor(views, backbone.pixels.size)
            raw = has_pixel_values(tensor)  # of all images, so that a dark one does not depend on its batch
            yield from ((some, raw) for some in tensor.split(at_once))
            return
        make = ViewMaker.of(self.method.num_views, backbone.pixels, cfg.TTA.AUGMIX != "off", cfg.SEED)
        for some in chunks(list(zip(images, indices_of(index, len(images)), strict=True)), at_once):
            yield torch.stack([make(to_rgb(image) if isinstance(image, Image.Image) else open_image(image), at)
                               for image, at in some]), True


@explaining_faults()
@fixed_numerics()
def adapt(
    trainer: str, model: CLIP | Backbone, classnames: Sequence[str], views: Views, opts: Options = (),
    index: Sequence[int] | int | None = None,
) -> Adapted:
    """Adapts the prompt to each image and predicts it.

    `views` are PIL images or paths, one or a list, whose views are made as in a run; or a tensor or array of views
    (V, 3, H, W) of one image or (B, V, 3, H, W) of several, view 0 the plain one: pixel values from 0 to 255, as
    `make_views` returns them, or pixels normalised with the backbone's mean and std. `opts` are KEY VALUE pairs as on
    the command line, e.g. `["TTA.STEPS", 2]`, or a dict.

    The random views of an image depend on SEED and its `index`, by default 0, 1, 2 … within a call. With the image's
    position in the data set's split as `index`, and the run's TTA.AUGMIX, they are those of a run.

    An image whose adapted logits are not finite keeps its zero-shot prediction and is `flagged`. Autocast, the default
    dtype and inference mode around the call change nothing. The images of a call are an online method's stream in
    their order. Nothing is kept between calls; in a loop, make an `Adapter` once and call it.
    """
    backbone = checked_model(model)
    if not as_images(views):
        views = as_tensor(views, backbone.pixels.size)
    num_views = views.shape[1] if isinstance(views, Tensor) else 0
    return Adapter(trainer, backbone, classnames, num_views, opts)(views, index)


def checked_model(model: Any) -> Backbone:
    """The model as a backbone, if its weights are fp32 on a real device."""
    if isinstance(model, str):
        raise TypeError(f"model must be a loaded one, not its name: use load_clip({model!r})")
    backbone = as_backbone(model)
    if backbone.device.type == "meta" or torch.get_default_device().type == "meta":
        raise ValueError("the model or torch's default device is 'meta', which holds no numbers: use cpu or cuda")
    weights = [*backbone.module.parameters()]
    other = next((tensor.dtype for tensor in weights if tensor.is_floating_point() and tensor.dtype != torch.float32),
                 None)
    if other:
        raise TypeError(f"the model's weights are {other}: give model.float(); opts=['MODEL.PREC', 'fp16'] or 'bf16' "
                        f"then runs its towers in half precision")
    if any(tensor.is_inference() for tensor in weights):
        raise ValueError("the model was loaded inside torch.inference_mode(), so it has no gradients: load it "
                         "outside")
    return backbone


def checked_names(classnames: Any) -> list[str]:
    """Class names: texts in order, not one text."""
    if isinstance(classnames, str | bytes) or not isinstance(classnames, Sequence | np.ndarray):
        raise TypeError(f"classnames must be a list of names in order, not {classnames!r:.80}")
    other = next((name for name in classnames if not isinstance(name, str)), None)
    if other is not None or not len(classnames):
        raise TypeError(f"classnames must be texts, not {other!r:.80}" if other is not None else "classnames is empty")
    return list(map(str, classnames))


def option_pairs(opts: Any) -> list:
    """KEY VALUE pairs, or a dict of them, as a list."""
    if isinstance(opts, Mapping):
        return [item for pair in flatten(dict(opts)) for item in pair]
    if isinstance(opts, str | bytes) or not isinstance(opts, Sequence):
        raise TypeError(f"opts must be KEY VALUE pairs like ['TTA.STEPS', 2], or a dict, not {opts!r:.80}")
    return list(opts)


def as_images(views: Any) -> list[ImageLike]:
    """The images and paths in `views`; empty if it is a tensor or an array."""
    images = [views] if isinstance(views, ImageLike) else views
    if not isinstance(images, list | tuple) or not any(isinstance(one, ImageLike) for one in images):
        return []
    other = next((one for one in images if not isinstance(one, ImageLike)), None)
    if other is not None:
        raise TypeError(f"views must be images and paths, or tensors, not both: found a {type(other).__name__}")
    return list(images)


def indices_of(index: Sequence[int] | int | None, images: int) -> Sequence[int]:
    """The index of each image."""
    if index is None:
        return range(images)
    found = [index] if isinstance(index, int) else list(index)
    if len(found) != images or any(not isinstance(one, int | np.integer) or one < 0 for one in found):
        raise ConfigError(f"index must be one whole number from 0 per image: {images} images, index {index!r:.80}")
    return [int(one) for one in found]


def as_tensor(views: Any, size: int) -> Tensor:
    """Views (B, V, 3, size, size) of pixel values or normalised numbers, as a tensor without gradient."""
    wanted = f"(V, 3, {size}, {size}) or (B, V, 3, {size}, {size})"
    images = views if isinstance(views, list | tuple) else [views]
    if not images or not all(isinstance(one, Tensor | np.ndarray) for one in images):
        raise TypeError(f"views must be images, paths, or a tensor {wanted}, not a {type(views).__name__}")
    if len({tuple(one.shape) for one in images}) > 1:
        raise ValueError(f"views of several images must have one shape, not {[tuple(v.shape) for v in images[:5]]}")
    kinds = {one.dtype: one.is_floating_point() or one.dtype == torch.uint8 if isinstance(one, Tensor)
             else one.dtype.kind in "fu" for one in images}
    if other := next((dtype for dtype, allowed in kinds.items() if not allowed), None):
        raise TypeError(f"views must be floating-point numbers or uint8, not {other}")
    # An array may have negative strides or another byte order.
    tensors = [one if isinstance(one, Tensor) else torch.from_numpy(np.array(one, one.dtype.newbyteorder("=")))
               for one in images]
    # A copy in normal mode, also of a tensor from inference mode.
    tensor = torch.stack(tensors).detach() if images is views else tensors[0].detach().clone()
    tensor = tensor[None] if tensor.dim() == 4 else tensor
    if tensor.dim() != 5 or tensor.shape[2:] != (3, size, size) or not tensor.numel():
        raise ConfigError(f"views must be {wanted}, not {tuple(tensor.shape)}")
    lost = ~tensor.flatten(1).isfinite().all(1)
    if lost.any():
        raise ValueError(f"the views of image {int(lost.nonzero()[0])} hold numbers that are not finite")
    return tensor


def has_pixel_values(views: Tensor) -> bool:
    """Whether views are pixel values from 0 to 255; normalised ones stay within about ±3. Floating-point views that all
    lie in 0..1 are neither, as normalised images have negative pixels: they are refused, unless all are 0 (black)."""
    if views.dtype == torch.uint8:
        return True
    low, high = float(views.amin()), float(views.amax())
    if low >= 0 and 0 < high <= 1:
        raise ValueError("views lie in 0..1: multiply them by 255, or normalise them with the backbone's mean and std")
    raw = high > HIGHEST_NORMALISED
    if low < (-1 if raw else -HIGHEST_NORMALISED) or high > 256:  # AugMix rounds nothing
        raise ValueError(f"views lie in {low:g}..{high:g}: give pixel values from 0 to 255, or normalise them with the "
                         "backbone's mean and std")
    return raw
