"""FPP: TPT from a prompt that is pre-trained without images to be robust to noise."""
from __future__ import annotations

import logging
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from yacs.config import CfgNode

from .config.build import require
from .config.settings import OneOf, Range, Setting, backbone_name
from .config.table import CLASS_TOKEN_POSITION
from .registry import TRAINER_REGISTRY
from .runs.make_record import dataset_of_prompt, hash_of_protocol
from .runs.run_dir import Results
from .tpt import TPT
from .vlm.prompt_files import TrainingState, checkpoint_path, write_checkpoint
from .vlm.prompted_clip import LoadedModel, PromptedCLIP
from .vlm.text_encoder import TextEncoder

logger = logging.getLogger(__name__)

# Number of the random stream of the noise. The initial context is drawn with the seed itself, and
# equal streams would make the first noise a copy of it.
NOISE = 1


@TRAINER_REGISTRY.register()
class FPP(TPT):
    """Pre-trains the context for the class list, then tunes it as TPT.

    The context is written as a prompt file in CoOp's format, from which other methods start with
    MODEL.INIT_WEIGHTS. (FPP, arXiv 2604.27715, with the noise and the weights of its public code.)
    """

    label = "FPP + TPT"
    colour = "#661100"
    marker = "3"
    display_order = 45
    settings: ClassVar = [
        Setting(
            "STEPS",
            1000,
            "number of steps of AdamW, once per class list",
            allowed=Range(least=1, text="at least 1"),
        ),
        Setting(
            "LR",
            0.01,
            "learning rate of the first step",
            allowed=Range(above=0),
        ),
        Setting(
            "LAST_LR",
            0.0001,
            "learning rate at the end of a cosine",
            allowed=Range(least=0),
        ),
        Setting(
            "START",
            "random",
            "initial context: random, random numbers; words, those of PROMPT.CTX_INIT",
            allowed=OneOf(("random", "words")),
        ),
        Setting(
            "DEVIATION",
            0.141421,
            "standard deviation of the random numbers of START",
            allowed=Range(above=0),
        ),
        Setting(
            "NOISE",
            0.0707105,
            "standard deviation of the noise on the context's tokens",
            allowed=Range(least=0),
        ),
        Setting(
            "OTHER_NOISE",
            0.141421,
            "standard deviation of the noise on all other tokens",
            allowed=Range(least=0),
        ),
        Setting(
            "NOISES",
            4,
            "number of noise samples per step",
            allowed=Range(least=1, text="at least 1"),
        ),
        Setting(
            "WEIGHT",
            0.0,
            "weight of robustness; 0 = 1 + 15/K; the public script uses 1.25 on shifted ImageNets",
            allowed=Range(least=0),
        ),
    ]

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        """As TPT; the prompt must be FPP's own, with the class name at the end."""
        super().validate(cfg)
        require(cfg, cfg.TRAINER.COOP.CLASS_TOKEN_POSITION == "end", CLASS_TOKEN_POSITION,
                "end: FPP's noise depends on token positions")
        require(
            cfg,
            not cfg.MODEL.INIT_WEIGHTS,
            "MODEL.INIT_WEIGHTS",
            "empty: FPP makes its own prompt; to start from a finished one, use another trainer, "
            "such as TPT",
        )

    def make_clip(self, model: LoadedModel) -> PromptedCLIP:
        """With the pre-trained context; the hand-written prompt gives the zero-shot predictions."""
        hand_written = super().make_clip(model)
        # One process trains, so that all tune from the same bits.
        context = torch.empty(0)
        if self.dist.is_main:
            context = self.pretrain(hand_written).cpu()
        context = self.dist.broadcast(context)
        return hand_written.with_context(context.to(hand_written.text.device))

    def pretrain(self, hand_written: PromptedCLIP) -> Tensor:
        """The pre-trained context (n_ctx, width)."""
        settings = self.cfg.TRAINER.FPP
        start = hand_written.context
        if settings.START == "random":
            random_numbers = random_start(tuple(start.shape), settings.DEVIATION, self.cfg.SEED)
            start = random_numbers.to(start)
        return pretrain_prompt(
            hand_written.encoder, hand_written.text, start, settings, self.cfg.SEED)

    def test(self) -> Results:
        """Saves the pre-trained context beside the results, as CoOp saves its own."""
        if self.dist.is_main:
            steps = self.cfg.TRAINER.FPP.STEPS
            path = checkpoint_path(self.run_dir.path, steps)
            write_checkpoint(
                path, self.clip.context, self.clip.backbone, self.clip.encoder.class_tokens,
                TrainingState(steps, optimizer={}, scheduler={}), self.prompt_metadata())
            logger.info("prompt pre-trained without images in %d steps: %s (MODEL.INIT_WEIGHTS)",
                        steps, path)
        return super().test()

    def prompt_metadata(self) -> dict[str, object]:
        """What the checkpoint says about how the prompt was made."""
        return {
            "method": type(self).__name__,
            "dataset": dataset_of_prompt(self.cfg, self.record),
            "seed": str(self.cfg.SEED),
            "epochs": str(self.cfg.TRAINER.FPP.STEPS),
            "backbone": backbone_name(self.cfg.MODEL.BACKBONE.NAME),
            "n_ctx": str(self.clip.context.shape[-2]),
            "class_token_position": "end",
            "settings": hash_of_protocol(self.record, self.cfg),
        }


def class_weight(setting: float, classes: int) -> float:
    """The weight w of robustness in `flat_loss`.

    Args:
        setting: TRAINER.FPP.WEIGHT; 0 = 1 + 15/K, as in the public code. (A note on the paper says
            0.15.)
        classes: Number of classes K.
    """
    return setting or 1 + 15 / classes


def flat_loss(text: Tensor, target: Tensor, noisy: Tensor, weight: float) -> Tensor:
    """mean_k ‖f_k − t_k‖² − w · mean cos(f_k, g_k).

    Args:
        text: Unit features f of the context, (K, d).
        target: Text features of the hand-written prompt, t (K, d).
        noisy: Text features of the context under several noise samples, g (N, K, d).
        weight: w.
    """
    distance = (text - target).square().sum(-1).mean()
    agreement = (text * noisy).sum(-1).mean()
    return distance - weight * agreement


def pretrain_prompt(
    encoder: TextEncoder, target: Tensor, start: Tensor, settings: CfgNode, seed: int,
) -> Tensor:
    """The context after STEPS steps of AdamW on `flat_loss`.

    Its features are close to the target's, and robust to noise on its own tokens and, twice as
    large, on all others.

    Args:
        encoder: Text features as a function of the context.
        target: Features (K, d) of the hand-written prompt.
        start: The context (n_ctx, width) before the first step.
        settings: The settings TRAINER.FPP.
        seed: Seed of the noise.
    """
    (state,) = np.random.SeedSequence([seed, NOISE]).generate_state(1)
    generator = torch.Generator().manual_seed(int(state))  # on the CPU: equal noise on any device
    context = start.detach().clone()
    n_ctx, width = context.shape
    first = len(encoder.backbone.tokenizer.start)
    # Standard deviation of the noise at each position of a prompt.
    deviation = torch.full((encoder.backbone.context_length, 1), settings.OTHER_NOISE)
    deviation[first : first + n_ctx] = settings.NOISE
    optimizer = torch.optim.AdamW([context], lr=settings.LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, settings.STEPS, settings.LAST_LR)
    weight = class_weight(settings.WEIGHT, len(target))
    for _ in range(settings.STEPS):
        # All classes share the noise, by position: (N, context_length, width).
        samples = torch.randn(settings.NOISES, len(deviation), width, generator=generator)
        noise = deviation * samples
        contexts = context.expand(settings.NOISES, -1, -1)
        # The noisy features are a target: no gradient flows through them.
        noisy = encoder.text(contexts, noise.to(context.device))  # (N, K, d)
        text, vjp = encoder.with_vjp(context[None])
        with torch.enable_grad():
            leaf = text.detach().requires_grad_()
            (grad_text,) = torch.autograd.grad(flat_loss(leaf[0], target, noisy, weight), leaf)
        context.grad = vjp(grad_text)[0]
        optimizer.step()
        schedule.step()
    return context


def random_start(shape: tuple[int, ...], deviation: float, seed: int) -> Tensor:
    """A random initial context.

    Args:
        shape: (n_ctx, width).
        deviation: Standard deviation of its numbers.
        seed: Seed of the draw.
    """
    return deviation * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
