"""Trains the small CLIP that ships with the package: contrastively, on drawn tiles, in half an hour
on one core.

Its class features lie in a narrow cone, as those of every real CLIP do: one channel of the text
tower is constant and adds the same component to every caption's feature.
"""
from __future__ import annotations

import logging
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

from ....datasets.synthetic.canvas import SIZE
from ....datasets.synthetic.tiles import CLASSNAMES, draw, tile, tile_rng, to_bytes, under
from ....datasets.utils.errors import ConfigError
from ....datasets.utils.files import write_atomically
from ....datasets.utils.progress import show_progress
from ....datasets.views.pixels import OPENAI_MEAN, OPENAI_STD
from ...functional.objectives import unit
from ..openai import END, SMALL_MARK, START, full_token_table
from ..openai_clip import CLIP, VOCAB_SIZE, tokenizer
from .captions import CONDITION_WORDS, LAND, all_words, draw_caption

logger = logging.getLogger(__name__)

PROMPT = "a photo of a"  # of the tests; no caption has it without a condition
SCALES = (1.0, 1000.0)  # range of the logit scale
CLASSES, CONDITIONS = tuple(LAND), tuple(CONDITION_WORDS)
CLEAR_SHARE = 0.25  # of the training tiles; the rest is spread evenly over the other conditions
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
    """How the model is trained. The defaults made the file that ships."""

    tiles: int = 18400
    validation: int = 200  # tiles per class that set the logit scale
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
    """Images (N, SIZE, SIZE, 3) uint8 with the indices of their classes and conditions, (N,) each:
    classes in turn, conditions at random.
    """
    share = [CLEAR_SHARE] + [(1 - CLEAR_SHARE) / (len(CONDITIONS) - 1)] * (len(CONDITIONS) - 1)
    conditions = tile_rng("small clip labels", seed).choice(len(CONDITIONS), count, p=share)
    classes = np.arange(count) % len(CLASSES)
    images = []
    for number in show_progress(range(count), "drawing", "tile", total=count):
        rng = tile_rng("small clip", seed, number)
        image = draw(CLASSES[classes[number]], rng)
        images.append(
            to_bytes(under(CONDITIONS[conditions[number]], image, rng, rng.uniform(0.3, 1.0)))
        )
    return torch.from_numpy(np.stack(images)), classes, conditions


def normalised(images: Tensor) -> Tensor:
    """uint8 (B, H, W, 3) as CLIP takes it, (B, 3, H, W)."""
    return ((images.float() / 255 - torch.tensor(OPENAI_MEAN)) / torch.tensor(OPENAI_STD)).permute(
        0, 3, 1, 2
    )


def random_crops(images: Tensor, generator: torch.Generator, uncropped: float) -> Tensor:
    """Crops and flips like the views of test-time tuning: 8–100 % of the area, sides 3:4 to 4:3,
    bilinear.

    A share `uncropped` of the images is not cropped; all are mirrored at random, vertically too, as
    seen from above.
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
    matrix[:, 0, 0], matrix[:, 1, 1] = (sides * mirror).unbind(1)
    matrix[:, :, 2] = centres
    grid = F.affine_grid(matrix, [count, 3, SIZE, SIZE], align_corners=False)
    return F.grid_sample(normalised(images), grid, padding_mode="border", align_corners=False)


def caption_tokens(texts: list[str]) -> Tensor:
    """Tokens (texts, longest) as indices of ROWS, padded with 0 after the end token."""
    tokens = [torch.tensor([START, *tokenizer.encode(text), END]) for text in texts]
    return torch.searchsorted(ROWS, nn.utils.rnn.pad_sequence(tokens, batch_first=True))


def new_model(settings: Settings) -> CLIP:
    """An untrained model whose token table holds only ROWS.

    The last channel of its text tower's output is 1 for every caption and stays so in training. The
    last row of the projection is therefore a component that all features share. It starts in a
    random direction, with the length that leaves the rest, whose expected squared length is the
    width of the embedding, the share `free`.
    """
    torch.manual_seed(settings.seed)
    model = CLIP(**ARCHITECTURE)
    no_rows = torch.empty(0, ARCHITECTURE["transformer_width"])
    model.token_embedding = nn.Embedding.from_pretrained(
        full_token_table(ROWS[:0], no_rows)[ROWS], freeze=False
    )
    model.logit_scale.requires_grad_(False).fill_(math.log(settings.scale))
    norm, direction = model.ln_final, torch.randn(model.text_projection.shape[1])
    varying = torch.ones_like(norm.weight)
    varying[-1] = 0
    with torch.no_grad():
        norm.weight[-1], norm.bias[-1] = 0, 1
        model.text_projection[-1] = F.normalize(direction, dim=0) * math.sqrt(
            (1 / settings.free - 1) * len(direction)
        )
    # AdamW does not change a number without gradient and decay
    for parameter in (norm.weight, norm.bias):
        parameter.register_hook(lambda gradient: gradient * varying)
    return model


def encode_captions(model: CLIP, tokens: Tensor) -> Tensor:
    """`model.encode_text` without padding to 77, which has no effect in a causal transformer."""
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
    """CLIP's symmetric loss where several pairs of a batch may match, as `match` (images, texts)
    says: targets are shared evenly among them. A caption without an image in the batch is a
    negative only.
    """
    logits = scale * F.normalize(images, dim=-1) @ F.normalize(texts, dim=-1).T
    target = match.float()
    positive = target.sum(0) > 0
    by_image = -(target / target.sum(1, keepdim=True) * logits.log_softmax(1)).sum(1).mean()
    columns = target[:, positive] / target[:, positive].sum(0)
    by_text = -(columns * logits.log_softmax(0)[:, positive]).sum(0).mean()
    return (by_image + by_text) / 2


def train(
    images: Tensor, classes: np.ndarray, conditions: np.ndarray, settings: Settings
) -> tuple[CLIP, list[float]]:
    """The trained model, and the loss of each step.

    Each tile has a caption and a hard negative: its class under a wrong condition.
    """
    model = new_model(settings).train()
    named = [
        (name, p) for name, p in model.named_parameters() if not name.startswith("token_embedding")
    ]
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [p for _, p in named if p.dim() >= 2],
                "weight_decay": settings.weight_decay,
                "lr": settings.lr,
            },
            {
                "params": [p for _, p in named if p.dim() == 1],
                "weight_decay": 0.0,
                "lr": settings.lr,
            },
            {
                "params": [model.token_embedding.weight],
                "weight_decay": 0.0,
                "lr": settings.token_lr,
            },
        ],
        betas=(0.9, 0.98),
    )

    def learning_rate(step: int) -> float:
        """Linear warm-up, then half a cosine to 0, as a share of the full rate."""
        if step < settings.warmup:
            return (step + 1) / settings.warmup
        return 0.5 * (
            1
            + math.cos(
                math.pi * ((step - settings.warmup) / max(1, settings.steps - settings.warmup))
            )
        )

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate)
    rng = np.random.default_rng(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    losses: list[float] = []
    for _ in show_progress(range(settings.steps), "training", "step", total=settings.steps):
        chosen = rng.choice(len(images), settings.batch, replace=False)
        right = conditions[chosen]
        wrong = (right + rng.integers(1, len(CONDITIONS), len(chosen))) % len(CONDITIONS)
        text_classes, text_conditions = np.tile(classes[chosen], 2), np.concatenate([right, wrong])
        texts = [draw_caption(rng, CLASSES[k], CONDITIONS[c])
                 for k, c in zip(text_classes, text_conditions, strict=True)]
        match = torch.from_numpy(
            (classes[chosen, None] == text_classes) & (right[:, None] == text_conditions)
        )
        features = model.encode_image(random_crops(images[chosen], generator, settings.whole))
        loss = contrastive_loss(
            features, encode_captions(model, caption_tokens(texts)), match, model.logit_scale.exp()
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return model.eval(), losses


def calibrated_scale(cosines: Tensor, labels: Tensor) -> float:
    """The logit scale at which mean confidence equals accuracy, by bisection to one in a million;
    an end of SCALES if there is none.
    """
    accuracy = (cosines.argmax(1) == labels).double().mean()
    low, high = SCALES
    while high / low > 1 + 1e-6:
        middle = (low * high) ** 0.5
        confidence = (middle * cosines.double()).softmax(1).amax(1).mean()
        low, high = (middle, high) if confidence < accuracy else (low, middle)
    return (low * high) ** 0.5


@torch.no_grad()
def finish(model: CLIP, settings: Settings) -> None:
    """Shrinks the text tower's residual stream, rounds the weights as the file does, and sets the
    logit scale.

    Layer norms cancel the factor on the stream, so features stay, but a step of test-time tuning,
    whose size is fixed, has more effect beside smaller embeddings. The scale is set on validation
    tiles with the prompt of the tests: that of training would be far too high for unseen tiles and
        wordings.
    """
    summed = [model.token_embedding.weight, model.positional_embedding]
    for block in model.transformer.resblocks:
        summed += [*block.attn.out_proj.parameters(), *block.mlp.c_proj.parameters()]
    for parameter in summed:
        parameter.data *= settings.stream
    for parameter in model.parameters():
        parameter.data = parameter.half().float()
    text = unit(
        encode_captions(model, caption_tokens([f"{PROMPT} {name}." for name in CLASSNAMES]))
    )
    numbers = range(settings.validation)
    tiles = torch.from_numpy(
        np.stack([tile("val", name, number) for name in CLASSNAMES for number in numbers])
    )
    labels = torch.arange(len(CLASSNAMES)).repeat_interleave(len(numbers))
    features = torch.cat([unit(model.encode_image(normalised(some))) for some in tiles.split(64)])
    model.logit_scale.fill_(math.log(calibrated_scale(features @ text.T, labels)))


def make_small_clip(path: Path, settings: Settings) -> None:
    """Draws the tiles, trains, and writes the state dict in half precision under OpenAI's names;
    SMALL_MARK says which rows the token table holds.
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
