"""Trains the small CLIP that ships with the package, on drawn tiles, in half an hour on one core.

    python trainers/vlm/small/train.py --out small_clip.safetensors

Training draws its own images and needs no data. The defaults made the file that ships; a training
with the same seed, machine, versions and threads gives the same file.

The loss is CLIP's contrastive one. The class features of the model lie in a narrow cone, as those
of every real CLIP do: one channel of the text tower is constant and adds the same component to
every caption's feature.
"""
from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / ".package"))

from promptcal.datasets.synthetic import (
    CLASSNAMES,
    SIZE,
    apply_condition,
    draw,
    tile,
    tile_rng,
    to_bytes,
)
from promptcal.datasets.utils.cli import log_to_terminal, run_tool
from promptcal.datasets.utils.errors import ConfigError
from promptcal.datasets.utils.files import write_atomically
from promptcal.datasets.utils.progress import show_progress
from promptcal.datasets.views.geometry import OPENAI_MEAN, OPENAI_STD
from promptcal.trainers.functional.objectives import unit
from promptcal.trainers.vlm.loading import END, SMALL_MARK, START, full_token_table
from promptcal.trainers.vlm.openai_clip import CLIP, VOCAB_SIZE, tokenizer

logger = logging.getLogger(__name__)

# Captions: many wordings for land, condition and kind of image. Every caption names the condition
# under which a tile is drawn, or says that it is clear, so that the words before the class name
# have a meaning. Not in the training, and so zero-shot in a test:
#  * the tiles of HELD_OUT_CLASSES: only the words of their names occur, in other captions;
#  * the exact names HELD_OUT_NAMES: their tiles have other wordings;
#  * the prompt of the tests, "a photo of a {class}." without a condition.

HELD_OUT_CLASSES = ("herbaceous vegetation",)
HELD_OUT_NAMES = ("permanent crop land", "rice paddy", "car park", "industrial area")

LAND: dict[str, tuple[str, ...]] = {
    "annual crop land": (
        "annual crop land",
        "annual crop",
        "ploughed field",
        "field of wheat",
        "arable land",
    ),
    "permanent crop land": (
        "permanent crop",
        "permanent crop of bushes",
        "plantation of bushes",
        "land with hedges",
    ),
    "orchard": (
        "orchard",
        "apple orchard",
        "permanent crop of fruit trees",
        "plantation of fruit trees",
    ),
    "vineyard": (
        "vineyard",
        "permanent crop of vines",
        "vineyard with rows of vines",
        "slope with vines",
    ),
    "rice paddy": ("paddy", "flooded paddy field", "field of rice", "terraced paddy with rice"),
    "pasture": ("pasture", "pasture land", "grazed herbaceous meadow", "meadow with cattle"),
    "golf course": ("golf course", "course for golf", "golf course with bunkers"),
    "wetland": ("wetland", "marsh", "wetland with herbaceous plants", "swamp with pools"),
    "residential area": (
        "residential area",
        "residential street",
        "area of houses",
        "suburb with houses",
    ),
    "industrial area": ("industrial zone", "area of factory halls", "industrial estate", "factory"),
    "car park": ("parking lot", "park of cars", "lot with parked cars", "car and car in rows"),
    "airport": ("airport", "runway of an airport", "airport with aeroplanes", "airfield"),
    "river": ("river", "winding river", "river between banks", "stream"),
    "canal": ("canal", "straight canal", "canal with a towpath", "waterway"),
    "lake": ("lake", "lake with its shore", "still lake", "pond"),
    "sea": ("sea", "open sea", "sea with waves", "ocean"),
    "harbour": ("harbour", "harbour with boats", "port", "marina with piers"),
    "beach": ("beach", "sandy beach", "beach with surf", "shore of sand"),
    "highway": ("highway", "highway with traffic", "motorway", "road with cars"),
    "railway": ("railway", "railway with tracks", "railway line", "train tracks"),
    "forest": ("forest", "dense forest", "forest of tall vegetation", "wood"),
    "desert": ("desert", "sandy desert", "desert without vegetation", "dunes"),
    "snow": ("snow", "field of snow", "deep snow", "snow and rock"),
}

# condition -> words before the kind of image, and words after the land
CONDITION_WORDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "clear": (("clear", "sharp", "bright"), ("on a clear day", "in good light")),
    "hazy": (("hazy", "misty"), ("in haze", "in mist")),
    "dusk": (("dark", "dim"), ("at dusk", "in the dark")),
    "noisy": (("noisy", "grainy"), ("with sensor noise", "with grain")),
    "blurry": (("blurry", "unsharp"), ("out of focus", "in a blur")),
    "infrared": (("infrared", "false colour"), ("in false colour", "in infrared")),
    "cloudy": (("cloudy", "clouded"), ("under clouds", "behind clouds")),
    "dry": (("dry", "parched"), ("in a drought", "in a dry summer")),
    "snowy": (("snowy", "wintry"), ("in winter", "under fresh snow")),
    "faded": (("faded", "pale"), ("in pale colours", "in faded colours")),
    "grey": (("grey", "colourless"), ("in grey", "without colour")),
}
IMAGES = ("photo", "aerial photo", "satellite image", "picture", "view", "image")


def with_article(words: str) -> str:
    """Puts `a` or `an` before words."""
    article = "an" if words[0] in "aeiou" else "a"
    return f"{article} {words}"


def draw_caption(rng: np.random.Generator, classname: str, condition: str) -> str:
    """Draws a caption of a class under a condition.

    Args:
        rng: Source of the random numbers.
        classname: Name of the class, a key of LAND.
        condition: Name of the condition, a key of CONDITION_WORDS.
    """
    before, after = CONDITION_WORDS[condition]
    land = str(rng.choice(LAND[classname]))
    image = str(rng.choice(IMAGES))
    if rng.random() < 0.5:
        land = f"the {land}"
    else:
        land = with_article(land)
    if rng.random() < 0.6:
        image = f"{rng.choice(before)} {image}"
        return f"{with_article(image)} of {land}."
    return f"{with_article(image)} of {land} {rng.choice(after)}."


def all_words() -> str:
    """Returns all words of all captions as one text."""
    wordings = ["a an the of", *IMAGES]
    for before, after in CONDITION_WORDS.values():
        wordings += [*before, *after]
    for lands in LAND.values():
        wordings += lands
    wordings.append(".")
    return " ".join(wordings)


# Training

PROMPT = "a photo of a"  # prompt of the tests; no caption has it without a condition
SCALES = (1.0, 1000.0)  # range of the logit scale
CLASSES = tuple(LAND)
CONDITIONS = tuple(CONDITION_WORDS)
# Share of clear training tiles; the rest is spread evenly over the other conditions.
CLEAR_SHARE = 0.25
# Tokens of captions; the end token is last
ROWS = torch.tensor(sorted({START, END, *tokenizer.encode(all_words())}))
ARCHITECTURE: dict[str, Any] = {
    "embed_dim": 128,
    "image_resolution": 64,
    "vision_layers": 3,
    "vision_width": 128,
    "vision_patch_size": 8,
    "context_length": 77,
    "vocab_size": VOCAB_SIZE,
    "transformer_width": 128,
    "transformer_heads": 2,
    "transformer_layers": 2,
}


@dataclass(frozen=True)
class Settings:
    """Settings of the training. The defaults made the file that ships."""

    tiles: int = 18400  # number of training tiles
    validation: int = 200  # number of tiles per class that set the logit scale
    steps: int = 600
    batch: int = 128
    lr: float = 1.5e-3
    # Low, so that the words stay near their start and a step of test-time tuning has an effect
    token_lr: float = 3e-4
    scale: float = 60.0  # logit scale in training; high, so that small angles separate captions
    stream: float = 0.25  # factor on the text tower's residual stream after training, see finish
    # Share of a caption's squared feature length outside the common component, at the start
    free: float = 0.18
    weight_decay: float = 0.05
    warmup: int = 60
    whole: float = 0.3  # share of uncropped images
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.warmup, self.validation) < 1 or self.tiles < self.batch:
            raise ConfigError(
                "steps, batch, warmup and validation must be at least 1, and tiles at least the "
                "batch"
            )


def training_tiles(count: int, seed: int) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Draws tiles: classes in turn, conditions at random.

    Args:
        count: Number N of tiles.
        seed: Seed of the draw.

    Returns:
        Images (N, SIZE, SIZE, 3) uint8, and the indices of their classes and of their conditions,
        (N,) each.
    """
    others = len(CONDITIONS) - 1
    shares = [CLEAR_SHARE] + [(1 - CLEAR_SHARE) / others] * others
    conditions = tile_rng("small clip labels", seed).choice(len(CONDITIONS), count, p=shares)
    classes = np.arange(count) % len(CLASSES)
    images = []
    for number in show_progress(range(count), "drawing", "tile", total=count):
        rng = tile_rng("small clip", seed, number)
        image = draw(CLASSES[classes[number]], rng)
        strength = rng.uniform(0.3, 1.0)
        image = apply_condition(CONDITIONS[conditions[number]], image, rng, strength)
        images.append(to_bytes(image))
    return torch.from_numpy(np.stack(images)), classes, conditions


def normalised(images: Tensor) -> Tensor:
    """Normalises images uint8 (B, H, W, 3) as CLIP takes them, (B, 3, H, W)."""
    mean = torch.tensor(OPENAI_MEAN)
    std = torch.tensor(OPENAI_STD)
    return ((images.float() / 255 - mean) / std).permute(0, 3, 1, 2)


def random_crops(images: Tensor, generator: torch.Generator, uncropped: float) -> Tensor:
    """Crops and flips like the views of test-time tuning: 8–100 % of the area, sides 3:4 to 4:3,
    bilinear.

    All images are mirrored at random, vertically too, as seen from above.

    Args:
        images: Tiles, uint8 (B, SIZE, SIZE, 3).
        generator: Source of the random numbers.
        uncropped: Share of the images that are not cropped, from 0 to 1.

    Returns:
        Normalised crops (B, 3, SIZE, SIZE).
    """
    count = len(images)
    area = torch.empty(count).uniform_(0.08, 1, generator=generator)
    ratio = torch.empty(count).uniform_(-1, 1, generator=generator).mul(np.log(4 / 3)).exp()
    # (B, 2), x and y
    sides = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 1).clamp(max=1)
    sides[torch.rand(count, generator=generator) < uncropped] = 1
    centres = (2 * torch.rand(count, 2, generator=generator) - 1) * (1 - sides)
    mirror = torch.randint(0, 2, (count, 2), generator=generator) * 2 - 1
    matrix = torch.zeros(count, 2, 3)
    matrix[:, 0, 0] = sides[:, 0] * mirror[:, 0]
    matrix[:, 1, 1] = sides[:, 1] * mirror[:, 1]
    matrix[:, :, 2] = centres
    grid = F.affine_grid(matrix, [count, 3, SIZE, SIZE], align_corners=False)
    return F.grid_sample(normalised(images), grid, padding_mode="border", align_corners=False)


def caption_tokens(texts: list[str]) -> Tensor:
    """Returns tokens (texts, longest) as indices of ROWS, padded with 0 after the end token."""
    tokens = [torch.tensor([START, *tokenizer.encode(text), END]) for text in texts]
    return torch.searchsorted(ROWS, nn.utils.rnn.pad_sequence(tokens, batch_first=True))


def new_model(settings: Settings) -> CLIP:
    """Builds an untrained model whose token table holds only ROWS.

    The last channel of its text tower's output is 1 for every caption and stays so in training. The
    last row of the projection is therefore a component that all features share. It starts in a
    random direction, with the length that leaves the rest, whose expected squared length is the
    width of the embedding, the share `free`.
    """
    torch.manual_seed(settings.seed)
    model = CLIP(**ARCHITECTURE)
    no_rows = torch.empty(0, ARCHITECTURE["transformer_width"])
    table = full_token_table(ROWS[:0], no_rows)[ROWS]
    model.token_embedding = nn.Embedding.from_pretrained(table, freeze=False)
    model.logit_scale.requires_grad_(False).fill_(math.log(settings.scale))
    norm = model.ln_final
    direction = torch.randn(model.text_projection.shape[1])
    length = math.sqrt((1 / settings.free - 1) * len(direction))
    varying = torch.ones_like(norm.weight)
    varying[-1] = 0
    with torch.no_grad():
        norm.weight[-1] = 0
        norm.bias[-1] = 1
        model.text_projection[-1] = F.normalize(direction, dim=0) * length
    # AdamW does not change a number without gradient and decay
    for parameter in (norm.weight, norm.bias):
        parameter.register_hook(lambda gradient: gradient * varying)
    return model


def encode_captions(model: CLIP, tokens: Tensor) -> Tensor:
    """Encodes captions as `model.encode_text` does, but without padding to 77 tokens.

    Padding has no effect in a causal transformer.

    Args:
        model: The small CLIP in training.
        tokens: Tokens of the captions, as `caption_tokens` returns them, (N, length).

    Returns:
        Features, not of unit length, (N, d).
    """
    length = tokens.shape[1]
    x = (model.token_embedding(tokens) + model.positional_embedding[:length]).permute(1, 0, 2)
    mask = model.build_attention_mask()[:length, :length]
    for block in model.transformer.resblocks:
        y = block.ln_1(x)
        x = x + block.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        x = x + block.mlp(block.ln_2(x))
    ends = model.ln_final(x.permute(1, 0, 2))[torch.arange(len(tokens)), tokens.argmax(1)]
    return ends @ model.text_projection


def contrastive_loss(images: Tensor, texts: Tensor, match: Tensor, scale: Tensor) -> Tensor:
    """Computes CLIP's symmetric loss where several pairs of a batch may match.

    Targets are shared evenly among them. A caption without an image in the batch is a negative
    only.

    Args:
        images: Image features (images, d).
        texts: Text features (texts, d).
        match: Whether an image and a text match, (images, texts).
        scale: Factor on the cosines.
    """
    logits = scale * F.normalize(images, dim=-1) @ F.normalize(texts, dim=-1).T
    target = match.float()
    positive = target.sum(0) > 0
    by_image = -(target / target.sum(1, keepdim=True) * logits.log_softmax(1)).sum(1).mean()
    columns = target[:, positive] / target[:, positive].sum(0)
    by_text = -(columns * logits.log_softmax(0)[:, positive]).sum(0).mean()
    return (by_image + by_text) / 2


def make_optimizer(model: CLIP, settings: Settings) -> torch.optim.AdamW:
    """Makes AdamW with weight decay on matrices alone and a lower rate for the token embeddings.

    Args:
        model: The small CLIP in training.
        settings: Rates and weight decay.
    """
    matrices = []
    vectors = []
    for name, parameter in model.named_parameters():
        if name.startswith("token_embedding"):
            continue
        if parameter.dim() >= 2:
            matrices.append(parameter)
        elif parameter.dim() == 1:
            vectors.append(parameter)
    tokens = [model.token_embedding.weight]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay, "lr": settings.lr},
        {"params": vectors, "weight_decay": 0.0, "lr": settings.lr},
        {"params": tokens, "weight_decay": 0.0, "lr": settings.token_lr},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98))


def train(
    images: Tensor, classes: np.ndarray, conditions: np.ndarray, settings: Settings
) -> tuple[CLIP, list[float]]:
    """Trains a model.

    Each tile has a caption and a hard negative: its class under a wrong condition.

    Args:
        images: Tiles, uint8 (N, SIZE, SIZE, 3).
        classes: Classes of the tiles, as indices of CLASSES, (N,).
        conditions: Conditions of the tiles, as indices of CONDITIONS, (N,).
        settings: Settings of the training.

    Returns:
        The trained model, and the loss of each step.
    """
    model = new_model(settings).train()
    optimizer = make_optimizer(model, settings)

    def learning_rate(step: int) -> float:
        """Linear warm-up, then half a cosine to 0, as a share of the full rate."""
        if step < settings.warmup:
            return (step + 1) / settings.warmup
        progress = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
        return 0.5 * (1 + math.cos(math.pi * progress))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate)
    rng = np.random.default_rng(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    losses: list[float] = []
    for _ in show_progress(range(settings.steps), "training", "step", total=settings.steps):
        chosen = rng.choice(len(images), settings.batch, replace=False)
        right = conditions[chosen]
        wrong = (right + rng.integers(1, len(CONDITIONS), len(chosen))) % len(CONDITIONS)
        text_classes = np.tile(classes[chosen], 2)
        text_conditions = np.concatenate([right, wrong])
        texts = []
        for label, condition in zip(text_classes, text_conditions, strict=True):
            texts.append(draw_caption(rng, CLASSES[label], CONDITIONS[condition]))
        same_class = classes[chosen, None] == text_classes
        same_condition = right[:, None] == text_conditions
        match = torch.from_numpy(same_class & same_condition)

        crops = random_crops(images[chosen], generator, settings.whole)
        image_features = model.encode_image(crops)
        text_features = encode_captions(model, caption_tokens(texts))
        loss = contrastive_loss(image_features, text_features, match, model.logit_scale.exp())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return model.eval(), losses


def calibrated_scale(cosines: Tensor, labels: Tensor) -> float:
    """Finds the logit scale at which mean confidence equals accuracy, by bisection to 1e-6.

    Args:
        cosines: Cosines of images and classes, (N, K).
        labels: True class of each image, (N,).

    Returns:
        An end of SCALES if there is no such scale.
    """
    accuracy = (cosines.argmax(1) == labels).double().mean()
    low, high = SCALES
    while high / low > 1 + 1e-6:
        middle = (low * high) ** 0.5
        confidence = (middle * cosines.double()).softmax(1).amax(1).mean()
        if confidence < accuracy:
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5


@torch.no_grad()
def finish(model: CLIP, settings: Settings) -> None:
    """Shrinks the text tower's residual stream, rounds the weights and sets the logit scale.

    Layer norms cancel the factor on the stream, so features stay, but a step of test-time tuning,
    whose size is fixed, has more effect beside smaller embeddings. Weights are rounded as the file
    stores them. The scale is set on validation tiles with the prompt of the tests: that of training
    would be far too high for unseen tiles and wordings.

    Args:
        model: Trained; changed in place.
        settings: Settings of the training.
    """
    summed = [model.token_embedding.weight, model.positional_embedding]
    for block in model.transformer.resblocks:
        summed += [*block.attn.out_proj.parameters(), *block.mlp.c_proj.parameters()]
    for parameter in summed:
        parameter.data *= settings.stream
    for parameter in model.parameters():
        parameter.data = parameter.half().float()
    prompts = [f"{PROMPT} {name}." for name in CLASSNAMES]
    text = unit(encode_captions(model, caption_tokens(prompts)))

    tiles = []
    for name in CLASSNAMES:
        for number in range(settings.validation):
            tiles.append(tile("val", name, number))
    labels = torch.arange(len(CLASSNAMES)).repeat_interleave(settings.validation)
    feature_batches = []
    for batch in torch.from_numpy(np.stack(tiles)).split(64):
        feature_batches.append(unit(model.encode_image(normalised(batch))))
    features = torch.cat(feature_batches)
    model.logit_scale.fill_(math.log(calibrated_scale(features @ text.T, labels)))


def make_small_clip(path: Path, settings: Settings) -> None:
    """Draws the tiles, trains, and writes the state dict in half precision under OpenAI's names.

    SMALL_MARK says which rows the token table holds.

    Args:
        path: The file.
        settings: Settings of the training.
    """
    model, losses = train(*training_tiles(settings.tiles, settings.seed), settings)
    finish(model, settings)
    state = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    state[SMALL_MARK] = ROWS.int()
    metadata = {key: str(value) for key, value in asdict(settings).items()}
    write_atomically(path, lambda file: file.write(safetensors_bytes(state, metadata)))
    logger.info(
        "loss %.3f, logit scale %.1f: %s", np.mean(losses[-50:]), model.logit_scale.exp(), path
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Trains the model with the settings of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the weights, .safetensors"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch (default: %(default)s)"
    )
    for field in fields(Settings):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            default=field.default,
            help="(default: %(default)s)",
        )
    args = vars(parser.parse_args(argv))
    log_to_terminal()
    path = args.pop("out")
    threads = args.pop("threads")
    if path.suffix != ".safetensors" or threads < 1:
        raise ConfigError(
            f"--out must end in .safetensors and --threads be at least 1, not {path} and {threads}"
        )
    torch.set_num_threads(threads)
    make_small_clip(path, Settings(**args))


if __name__ == "__main__":
    run_tool(main)
