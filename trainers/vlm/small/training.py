"""Trains the small CLIP that comes with the package: contrastively, on drawn tiles, on two cores in half an hour.

Its class features lie in a narrow cone, as those of every real CLIP do and as the calibrated methods take for granted:
one channel of the text tower is constant and adds the same component to every caption's feature.
"""
from __future__ import annotations

import logging
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn
from tqdm import tqdm

from ....datasets.synthetic.tiles import CLASSNAMES
from ....datasets.utils.errors import ConfigError
from ....datasets.utils.files import write_atomically
from ...functional.objectives import unit
from ..openai import END, START
from ..openai_clip import CLIP, tokenizer
from ..token_table import VOCAB_SIZE, full_token_table
from .captions import all_words, draw_caption
from .geometry import Geometry, calibrated_scale, measure_geometry
from .training_tiles import (
    CLASSES,
    CONDITIONS,
    TrainingTiles,
    normalised,
    random_crops,
    training_tiles,
    validation_tiles,
)

logger = logging.getLogger(__name__)

PROMPT = "a photo of a"  # of the tests; no caption has it without a word on the condition
ARCHITECTURE = {
    "embed_dim": 128, "image_resolution": 64, "vision_layers": 3, "vision_width": 128, "vision_patch_size": 8,
    "context_length": 77, "vocab_size": VOCAB_SIZE,
    "transformer_width": 128, "transformer_heads": 2, "transformer_layers": 2,
}


@dataclass(frozen=True)
class Settings:
    """How the model is trained. The defaults made the file that ships."""

    tiles: int = 18400
    validation: int = 200  # tiles of each class that set the logit scale
    steps: int = 600
    batch: int = 128
    lr: float = 1.5e-3
    token_lr: float = 3e-4  # low, so that the words stay near their start and a step of test-time tuning still counts
    scale: float = 60.0  # logit scale while training; high, so that small angles suffice to tell captions apart
    stream: float = 0.25  # what the text tower's numbers are multiplied by in the end; tuning's step is not
    free: float = 0.18  # share of a caption's feature, as squared length, that is not the common component at the start
    weight_decay: float = 0.05
    warmup: int = 60
    whole: float = 0.3  # share of pictures shown uncropped
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.warmup, self.validation) < 1 or self.seed < 0:
            raise ConfigError("steps, batch, warmup and validation must be at least 1, the seed at least 0")
        if self.tiles < self.batch:
            raise ConfigError(f"{self.tiles} tiles are too few for batches of {self.batch}")
        if not (0 < self.free <= 1 and 0 < self.stream <= 1 and 1 <= self.scale <= 100):
            raise ConfigError("free and stream must lie above 0 and not above 1, the scale between 1 and CLIP's 100")


class Vocabulary:
    """Captions as tokens, which are numbered over the few that captions use at all."""

    def __init__(self) -> None:
        used = {START, END, *tokenizer.encode(all_words())}
        self.rows = torch.tensor(sorted(used))  # the end token, CLIP's last, keeps the highest number
        self.number = {int(token): number for number, token in enumerate(self.rows)}

    def __call__(self, texts: list[str]) -> Tensor:
        """Numbers (texts, longest), filled up with 0 after the end token."""
        encoded = [[START, *tokenizer.encode(text), END] for text in texts]
        numbers = [torch.tensor([self.number[token] for token in tokens]) for tokens in encoded]
        return nn.utils.rnn.pad_sequence(numbers, batch_first=True)


def new_model(rows: Tensor, settings: Settings) -> CLIP:
    """An untrained model whose token table holds only the given rows."""
    torch.manual_seed(settings.seed)
    model = CLIP(**ARCHITECTURE)
    nothing = torch.empty(0, ARCHITECTURE["transformer_width"])
    model.token_embedding = nn.Embedding.from_pretrained(full_token_table(rows[:0], nothing)[rows], freeze=False)
    model.logit_scale.requires_grad_(False).fill_(math.log(settings.scale))
    add_common_component(model, settings.free)
    return model


def add_common_component(model: CLIP, free: float) -> None:
    """Makes the last channel of the text tower's output 1 for every caption, and keeps it so in training.

    The last row of the projection is then a component common to all features. It starts in a random direction, as long
    as leaves the rest, whose expected squared length is the width of the embedding, the share `free`; it is trained
    like everything else.
    """
    ends, direction = model.ln_final, torch.randn(model.text_projection.shape[1])
    varying = torch.ones_like(ends.weight)
    varying[-1] = 0
    with torch.no_grad():
        ends.weight[-1], ends.bias[-1] = 0, 1
        model.text_projection[-1] = F.normalize(direction, dim=0) * math.sqrt((1 / free - 1) * len(direction))
    for parameter in (ends.weight, ends.bias):  # AdamW leaves a number alone that has no gradient and no decay
        parameter.register_hook(lambda gradient: gradient * varying)


def encode_captions(model: CLIP, tokens: Tensor) -> Tensor:
    """`model.encode_text` without the padding up to 77, which a causal transformer read at the end token never sees."""
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
    """CLIP's symmetric loss where several pairs of a batch may belong together: `match` (images, texts) says which.

    Each picture's target is shared evenly among its captions, each caption's among its pictures; a caption without a
    picture in the batch is only there to be told apart.
    """
    logits = scale * F.normalize(images, dim=-1) @ F.normalize(texts, dim=-1).T
    target = match.float()
    wanted = target.sum(0) > 0
    by_image = -(target / target.sum(1, keepdim=True) * logits.log_softmax(1)).sum(1).mean()
    columns = target[:, wanted] / target[:, wanted].sum(0)
    by_text = -(columns * logits.log_softmax(0)[:, wanted]).sum(0).mean()
    return (by_image + by_text) / 2


def draw_captions(
    rng: np.random.Generator, classes: np.ndarray, conditions: np.ndarray,
) -> tuple[list[str], np.ndarray]:
    """A caption for every tile and a hard negative for every tile: the right class under a wrong condition.

    Returns the texts and, as (texts, 2), what each is about.
    """
    wrong = (conditions + rng.integers(1, len(CONDITIONS), len(conditions))) % len(CONDITIONS)
    about = np.concatenate([np.stack([classes, conditions], 1), np.stack([classes, wrong], 1)])
    return [draw_caption(rng, CLASSES[k], CONDITIONS[c]) for k, c in about], about


def parameter_groups(model: CLIP, settings: Settings) -> list[dict]:
    """Matrices decay, vectors do not; the token table has a rate of its own; the logit scale is not trained."""
    named = [(name, p) for name, p in model.named_parameters() if not name.startswith("token_embedding")]
    return [
        {"params": [p for _, p in named if p.dim() >= 2], "weight_decay": settings.weight_decay, "lr": settings.lr},
        {"params": [p for _, p in named if p.dim() == 1], "weight_decay": 0.0, "lr": settings.lr},
        {"params": [model.token_embedding.weight], "weight_decay": 0.0, "lr": settings.token_lr},
    ]


def rate(step: int, settings: Settings) -> float:
    """Linear warm-up, then half a cosine down to nothing, as a share of the full rate."""
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return 0.5 * (1 + math.cos(math.pi * done))


def train(tiles: TrainingTiles, settings: Settings) -> tuple[CLIP, Vocabulary, list[float]]:
    """The trained model, the vocabulary whose rows its token table holds, and the loss of each step."""
    vocabulary = Vocabulary()
    model = new_model(vocabulary.rows, settings).train()
    groups = parameter_groups(model, settings)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, settings))
    rng = np.random.default_rng(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    pictures = torch.from_numpy(tiles.pictures)
    losses = []
    bar = tqdm(range(settings.steps), desc="training", unit="step")
    for _ in bar:
        chosen = rng.choice(len(pictures), settings.batch, replace=False)
        classes, conditions = tiles.classes[chosen], tiles.conditions[chosen]
        texts, about = draw_captions(rng, classes, conditions)
        match = torch.from_numpy((classes[:, None] == about[:, 0]) & (conditions[:, None] == about[:, 1]))
        images = model.encode_image(random_crops(pictures[chosen], generator, settings.whole))
        loss = contrastive_loss(images, encode_captions(model, vocabulary(texts)), match, model.logit_scale.exp())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{np.mean(losses[-50:]):.3f}")
    return model.eval(), vocabulary, losses


def save(model: CLIP, rows: Tensor, path: Path, settings: Settings) -> None:
    """The state dict in half precision under OpenAI's names; `token_embedding.rows` says which rows the table holds."""
    state = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    state["token_embedding.rows"] = rows.int()
    metadata = {key: str(value) for key, value in asdict(settings).items()}
    write_atomically(path, lambda file: file.write(safetensors_bytes(state, metadata)))


def shrink_stream(model: CLIP, factor: float) -> None:
    """Multiplies all that the text tower adds up, its embeddings and the layers' outputs, by a factor.

    Layer norms take it out again, so captions keep their features (but for the norms' epsilon). A step of test-time
    tuning, of fixed size, weighs more beside smaller embeddings, as it does in models of more layers and tokens.
    """
    summed = [model.token_embedding.weight, model.positional_embedding]
    for block in model.transformer.resblocks:
        summed += [*block.attn.out_proj.parameters(), *block.mlp.c_proj.parameters()]
    for parameter in summed:
        parameter.data *= factor


@torch.no_grad()
def finish(model: CLIP, vocabulary: Vocabulary, settings: Settings, validation: tuple[Tensor, Tensor]) -> Geometry:
    """Makes a trained model ready for use: shrinks its stream, rounds it as its file will, sets its logit scale.

    The scale of training would leave the model far too sure of tiles and wordings it has not seen: validation tiles
    with the prompt of the tests decide it instead.
    """
    shrink_stream(model, settings.stream)
    for parameter in model.parameters():
        parameter.data = parameter.half().float()
    pictures, kinds = validation
    text = unit(encode_captions(model, vocabulary([f"{PROMPT} {name}." for name in CLASSNAMES])))
    images = torch.cat([unit(model.encode_image(normalised(some))) for some in pictures.split(64)])
    scale = calibrated_scale(images @ text.T, kinds)
    model.logit_scale.fill_(math.log(scale))
    return measure_geometry(text, images, kinds, scale)


def make_small_clip(path: Path, cache: Path, workers: int, settings: Settings) -> None:
    """Draws the tiles or finds them in `cache`, trains, and writes the weights to `path`."""
    tiles = training_tiles(settings.tiles, settings.seed, cache, workers)
    validation = validation_tiles(settings.validation, cache, workers)
    model, vocabulary, losses = train(tiles, settings)
    geometry = finish(model, vocabulary, settings, validation)
    save(model, vocabulary.rows, path, settings)
    logger.info("loss %.3f; %s", np.mean(losses[-50:]), geometry)
    logger.info("written to %s", path)
