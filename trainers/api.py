"""Adapts and predicts images in memory: no files, no run folder."""
from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from yacs.config import CfgNode

from ..datasets.utils.errors import ConfigError, explaining_faults
from ..datasets.utils.files import flatten
from ..datasets.views import ViewMaker
from ..datasets.views.images import open_image, to_rgb
from .base import BaseTrainer
from .config.build import cfg_from_python, refuse_arguments
from .engine.adapted import Adapted
from .engine.features import stored_type
from .engine.predict import adapt_images
from .registry import TRAINER_REGISTRY
from .runs.run_dir import batched
from .vlm.backbone import Backbone
from .vlm.image_tower import encode_views
from .vlm.loading import as_backbone
from .vlm.numerics import fixed_numerics
from .vlm.openai_clip import CLIP
from .vlm.prompted_clip import LoadedModel

logger = logging.getLogger(__name__)

HIGHEST_NORMALISED = 16  # no backbone's statistics make a normalised pixel as large as that
LIKELY_NORMALISED = 3  # nor, if it has no negative pixel, as large as that: white is at most 2.7
# Kinds of numbers of views
AUTO = "auto"
RAW = "0..255"
NORMALISED = "normalised"
SAY_WHICH = f'say which they are: pixels="{RAW}" or pixels="{NORMALISED}"'

ImageLike = str | Path | Image.Image
Views = Tensor | np.ndarray | ImageLike | Sequence  # a sequence of any of them, one per image
Options = Sequence | Mapping[str, object]


class Adapter:
    """A method prepared for one model, one class list and one number of views, for calls in a loop.

    It has a copy of the model: weights and prompt are those at the time of construction, whatever
    happens to the model afterwards. An online method carries its state from call to call. Calls
    from several threads take turns.
    """

    @explaining_faults()
    @fixed_numerics()
    def __init__(
        self, trainer: str, model: CLIP | Backbone, classnames: Sequence[str], num_views: int = 0,
        opts: Options = (), copy_weights: bool = True,
    ) -> None:
        """
        Args:
            trainer: Name of the method.
            model: The model that `load_clip` returned.
            classnames: Names of the K classes, in order.
            num_views: Number of views per image; 0 = TTA.VIEWS.
            opts: KEY VALUE pairs as on the command line, or a dict.
            copy_weights: Whether the adapter has a copy of the weights. False saves the memory of a
                second model; the weights must then not change while the adapter is used.
        """
        backbone = checked_model(model).without_cache()
        if copy_weights:
            backbone = backbone.with_copied_weights()
        pairs = option_pairs(opts)
        if backbone.name:  # a model that was made in memory has none
            refuse_arguments(pairs, {"MODEL.BACKBONE.NAME": (backbone.name, "the model")})
        flags: list[object] = ["DEVICE", str(backbone.device)]
        if num_views:
            flags += ["TTA.VIEWS", num_views]
            refuse_arguments(pairs, {"TTA.VIEWS": (str(num_views), "the number of views")})
        cfg = cfg_from_python(trainer, flags=flags, opts=pairs)
        self.method = build_method(cfg, backbone, checked_names(classnames))
        self.clip = self.method.clip  # made now, so that a prompt that does not fit is refused here
        self.count = 0  # number of images so far
        self.lock = RLock()

    @explaining_faults()
    @fixed_numerics()
    def __call__(
        self, views: Views, index: Sequence[int] | int | None = None, pixels: str = AUTO,
    ) -> Adapted:
        """Adapts to each of the images and predicts it; see `adapt` for the arguments."""
        with self.lock:
            parts = []
            for batch, raw in self.batches(views, index, pixels):
                features = self.encode(batch, raw)
                names = [f"image {self.count + row}" for row in range(len(features))]
                parts.append(adapt_images(self.method, features, names))
                self.count += len(features)
            return Adapted.join(parts)

    def encode(self, views: Tensor, raw: bool) -> Tensor:
        """Unit features (b, V, d) of views, rounded as those of a run.

        Args:
            views: Views (b, V, 3, H, W).
            raw: Whether they are pixel values from 0 to 255, and not normalised.
        """
        precision = self.method.numerics.precision
        features = encode_views(
            self.clip.backbone, views, precision, normalised=not raw, budget=self.clip.budget)
        return features.to(stored_type(precision)).float()

    def batches(
        self, views: Views, index: Sequence[int] | int | None = None, pixels: str = AUTO,
    ) -> Iterator[tuple[Tensor, bool]]:
        """Yields the views of the images that are adapted at once, made as in a run.

        Args:
            views: Images and paths, or the views themselves; as in `adapt`.
            index: The number of each image, from which its random views are drawn; None for views.
            pixels: The kind of given views: "0..255", "normalised", or "auto" to tell by the range.

        Yields:
            Views (b, V, 3, H, W), and whether they are pixel values from 0 to 255.
        """
        cfg = self.method.cfg
        backbone = self.clip.backbone
        at_once = self.method.numerics.episodes
        if self.method.online:
            at_once = 1
        images = as_images(views)
        if not images:
            if index is not None:
                raise ConfigError("index is for images and paths, whose views are drawn from it: "
                                  "given views need none")
            tensor = as_tensor(views, backbone.pixels.size)
            # Decided for all images together, so that a dark one does not depend on its batch.
            raw = has_pixel_values(tensor, pixels)
            for batch in tensor.split(at_once):
                yield batch, raw
            return
        augmix = cfg.TTA.AUGMIX != "off"
        make = ViewMaker.of(self.method.num_views, backbone.pixels, augmix, cfg.SEED)
        numbered = list(zip(images, indices_of(index, len(images)), strict=True))
        for batch_of_images in batched(numbered, at_once):
            views_of_images = []
            for image, position in batch_of_images:
                if isinstance(image, Image.Image):
                    picture = to_rgb(image)
                else:
                    picture = open_image(image)
                views_of_images.append(make(picture, position))
            yield torch.stack(views_of_images), True


@explaining_faults()
@fixed_numerics()
def adapt(
    trainer: str, model: CLIP | Backbone, classnames: Sequence[str], views: Views,
    opts: Options = (), index: Sequence[int] | int | None = None, pixels: str = AUTO,
) -> Adapted:
    """Adapts the prompt to each image and predicts it.

    The random views of an image depend on SEED and its `index`. With the image's position in the
    data set's split as `index`, and the run's TTA.AUGMIX, they are those of a run.

    An image whose adapted logits are not finite keeps its zero-shot prediction and is `flagged`.
    Autocast, the default dtype, inference mode and anomaly detection around the call change
    nothing. The images of a call are an online method's stream in their order. Nothing is kept
    between calls; in a loop, make an `Adapter` once and call it.

    Args:
        trainer: Name of the method.
        model: The model that `load_clip` returned.
        classnames: Names of the K classes, in order.
        views: PIL images or paths, one or a list, whose views are made as in a run; or a tensor or
            array of views (V, 3, H, W) of one image or (B, V, 3, H, W) of several, view 0 the plain
            one.
        opts: KEY VALUE pairs as on the command line, e.g. `["TTA.STEPS", 2]`, or a dict.
        index: A whole number per image, from which its views are drawn; None = 0, 1, 2 ….
        pixels: The kind of given views: "0..255", as `make_views` returns them, or "normalised"
            with the backbone's mean and std. "auto" tells them apart by their range and refuses
            those that fit both.

    Returns:
        `logits` and `zero_shot_logits` (B, K), and for methods that tune the context `ctx` (B,
        n_ctx, width).
    """
    backbone = checked_model(model)
    if not as_images(views):
        views = as_tensor(views, backbone.pixels.size)
    num_views = views.shape[1] if isinstance(views, Tensor) else 0
    adapter = Adapter(trainer, backbone, classnames, num_views, opts, copy_weights=False)
    return adapter(views, index, pixels)


def build_method(cfg: CfgNode, model: CLIP | Backbone, classnames: Sequence[str]) -> BaseTrainer:
    """Builds the trainer that `cfg.TRAINER.NAME` names, for a model and classes in memory.

    Args:
        cfg: All settings.
        model: The model that `load_clip` returned, or a Backbone.
        classnames: Names of the K classes, in order.
    """
    method = TRAINER_REGISTRY.get(cfg.TRAINER.NAME)
    return method(cfg, model=LoadedModel(as_backbone(model), classnames))


def checked_model(model: Any) -> Backbone:
    """Returns the model as a backbone. Refuses weights that are not fp32 on a real device."""
    if isinstance(model, str):
        raise TypeError(f"model must be a loaded one, not its name: use load_clip({model!r})")
    backbone = as_backbone(model)
    if backbone.device.type == "meta" or torch.get_default_device().type == "meta":
        raise ValueError("the model or torch's default device is 'meta', which holds no numbers: "
                         "use cpu or cuda")
    for weight in backbone.module.parameters():
        if weight.is_floating_point() and weight.dtype != torch.float32:
            raise TypeError(f"the model's weights are {weight.dtype}: give model.float(); "
                            f"opts=['MODEL.PREC', 'fp16'] or 'bf16' then runs its towers in half "
                            f"precision")
        if weight.is_inference():
            raise ValueError("the model was loaded inside torch.inference_mode(), so it has no "
                             "gradients: load it outside")
    return backbone


def checked_names(classnames: Any) -> list[str]:
    """Returns class names as a list. Refuses a single text, and items that are not texts."""
    if isinstance(classnames, str | bytes) or not isinstance(classnames, Sequence | np.ndarray):
        raise TypeError(f"classnames must be a list of names in order, not {classnames!r:.80}")
    if len(classnames) == 0:
        raise TypeError("classnames is empty")
    names = []
    for name in classnames:
        if not isinstance(name, str):
            raise TypeError(f"classnames must be texts, not {name!r:.80}")
        names.append(str(name))
    return names


def option_pairs(opts: Any) -> list:
    """Returns KEY VALUE pairs, or a dict of them, as a flat list KEY, VALUE, KEY, …."""
    if isinstance(opts, Mapping):
        pairs: list = []
        for key, value in flatten(dict(opts)):
            pairs += [key, value]
        return pairs
    if isinstance(opts, str | bytes) or not isinstance(opts, Sequence):
        raise TypeError(f"opts must be KEY VALUE pairs like ['TTA.STEPS', 2], or a dict, not "
                        f"{opts!r:.80}")
    return list(opts)


def as_images(views: Any) -> list[ImageLike]:
    """Returns the images and paths in `views`; empty if it is a tensor or an array."""
    if isinstance(views, ImageLike):
        return [views]
    if not isinstance(views, list | tuple):
        return []
    images = [item for item in views if isinstance(item, ImageLike)]
    if not images:
        return []
    for item in views:
        if not isinstance(item, ImageLike):
            raise TypeError(f"views must be images and paths, or tensors, not both: found a "
                            f"{type(item).__name__}")
    return images


def indices_of(index: Sequence[int] | int | None, images: int) -> Sequence[int]:
    """Returns the number of each image, from which its random views are drawn.

    Args:
        index: The caller's argument: a number per image, a single number, or None for 0, 1, 2 …
        images: Number of images.
    """
    if index is None:
        return range(images)
    if isinstance(index, int):
        numbers = [index]
    else:
        numbers = list(index)
    are_valid = len(numbers) == images
    for number in numbers:
        if not isinstance(number, int | np.integer) or number < 0:
            are_valid = False
    if not are_valid:
        raise ConfigError(f"index must be one whole number from 0 per image: {images} images, "
                          f"index {index!r:.80}")
    return [int(number) for number in numbers]


def as_tensor(views: Any, size: int) -> Tensor:
    """Copies views of one image or several to a tensor without gradient, outside inference mode.

    Args:
        views: A tensor or array (V, 3, size, size) or (B, V, 3, size, size), or a list of the
            former.
        size: Number of pixels along each side.

    Returns:
        Pixel values or normalised numbers (B, V, 3, size, size).
    """
    wanted = f"(V, 3, {size}, {size}) or (B, V, 3, {size}, {size})"
    is_list = isinstance(views, list | tuple)
    arrays = views if is_list else [views]
    if not arrays:
        raise TypeError(f"views must be images, paths, or a tensor {wanted}, not a "
                        f"{type(views).__name__}")
    shapes = []
    for array in arrays:
        if not isinstance(array, Tensor | np.ndarray):
            raise TypeError(f"views must be images, paths, or a tensor {wanted}, not a "
                            f"{type(views).__name__}")
        shapes.append(tuple(array.shape))
    if len(set(shapes)) > 1:
        raise ValueError(f"views of several images must have one shape, not {shapes[:5]}")
    tensors = [numbers_of(array) for array in arrays]
    # A copy in normal mode, also of a tensor from inference mode.
    if is_list:
        tensor = torch.stack(tensors).detach()
    else:
        tensor = tensors[0].detach().clone()
    if tensor.dim() == 4:
        tensor = tensor[None]
    if tensor.dim() != 5 or tensor.shape[2:] != (3, size, size) or not tensor.numel():
        raise ConfigError(f"views must be {wanted}, not {tuple(tensor.shape)}")
    is_lost = ~tensor.flatten(1).isfinite().all(1)
    if is_lost.any():
        first_lost = int(is_lost.nonzero()[0])
        raise ValueError(f"the views of image {first_lost} hold numbers that are not finite")
    return tensor


def numbers_of(array: Tensor | np.ndarray) -> Tensor:
    """Returns an array of floating-point numbers or uint8 as a tensor; refuses other types."""
    if isinstance(array, Tensor):
        is_allowed = array.is_floating_point() or array.dtype == torch.uint8
    else:
        is_allowed = array.dtype.kind in "fu"
    if not is_allowed:
        raise TypeError(f"views must be floating-point numbers or uint8, not {array.dtype}")
    if isinstance(array, Tensor):
        return array
    # An array may have negative strides or another byte order.
    return torch.from_numpy(np.array(array, array.dtype.newbyteorder("=")))


def has_pixel_values(views: Tensor, pixels: str = AUTO) -> bool:
    """Whether views are pixel values from 0 to 255, and not normalised.

    uint8 always is. Of other numbers the range tells: normalised ones stay within about ±3, and
    have negative numbers unless the image is very bright. A range that fits both is refused.

    Args:
        views: Views of all images, (B, V, 3, S, S): the range of a single dark one says little.
        pixels: The kind of numbers: "0..255", "normalised", or "auto" to tell by type and range.
    """
    if pixels not in (AUTO, RAW, NORMALISED):
        raise ConfigError(f'pixels is {pixels!r:.40}; it must be "{RAW}", "{NORMALISED}" or '
                          f'"{AUTO}"')
    if views.dtype == torch.uint8:
        if pixels == NORMALISED:
            raise ConfigError(f"views of type uint8 are pixel values, not {NORMALISED}: give "
                              f"floats")
        return True
    low = float(views.amin())
    high = float(views.amax())
    fits_raw = low >= -1 and high <= 256  # AugMix rounds nothing
    fits_normalised = max(-low, high) <= HIGHEST_NORMALISED
    advice = "give pixel values from 0 to 255, or normalise them with the backbone's mean and std"
    if pixels != AUTO:
        is_raw = pixels == RAW
        fits = fits_raw if is_raw else fits_normalised
        if not fits:
            raise ValueError(f"views lie in {low:g}..{high:g}, but pixels is \"{pixels}\": "
                             f"{advice}")
        return is_raw
    if low >= 0 and 0 < high <= 1:
        raise ValueError("views lie in 0..1: multiply them by 255, or normalise them with the "
                         "backbone's mean and std")
    if low == high == 0:
        raise ValueError(f"views are all 0, which is black as pixel values and grey if normalised: "
                         f"{SAY_WHICH}")
    if low >= 0 and LIKELY_NORMALISED < high <= HIGHEST_NORMALISED:
        raise ValueError(f"views lie in {low:g}..{high:g}, which fits very dark pixel values and, "
                         f"hardly, normalised ones: {SAY_WHICH}")
    if fits_normalised:
        if low >= 0:
            logger.warning("views lie in %g..%g and are taken as normalised; if they are pixel "
                           "values of a nearly black image, %s", low, high, SAY_WHICH)
        return False
    if fits_raw:
        return True
    raise ValueError(f"views lie in {low:g}..{high:g}: {advice}")
