"""FPP: TPT from a prompt that is pre-trained without images to be robust to noise."""
from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from yacs.config import CfgNode

from .config.fingerprint import run_path
from .config.roles import OF_PROMPTS, leaves
from .config.validation import require, require_one_of
from .engine.pretraining import pretrain_prompt, random_start
from .registry import TRAINER_REGISTRY
from .tpt import TPT
from .vlm.backbone import Backbone
from .vlm.initial_prompt import InitialPrompt
from .vlm.openai_clip import CLIP
from .vlm.prompt_files import checkpoint_path, write_checkpoint

logger = logging.getLogger(__name__)


@TRAINER_REGISTRY.register()
class FPP(TPT):
    """Pre-trains the context for the class list, writes it as a prompt file in CoOp's format, then tunes it as TPT.

    Other methods start from the file with MODEL.INIT_WEIGHTS. (FPP, arXiv 2604.27715, with the noise and the weights of
    its public code.)
    """

    label, colour, marker, display_order = "FPP + TPT", "#661100", "3", 45

    @classmethod
    def extend_defaults(cls, cfg: CfgNode) -> None:
        cfg.TRAINER.FPP = CfgNode()
        cfg.TRAINER.FPP.STEPS = 1000  # of AdamW, once per class list
        cfg.TRAINER.FPP.LR = 0.01  # learning rate of the first step
        cfg.TRAINER.FPP.LAST_LR = 0.0001  # learning rate at the end of a cosine
        cfg.TRAINER.FPP.START = "random"  # initial context: random numbers; words: PROMPT.CTX_INIT
        cfg.TRAINER.FPP.DEVIATION = 0.141421  # standard deviation of these random numbers
        cfg.TRAINER.FPP.NOISE = 0.0707105  # standard deviation of the noise on the context's tokens
        cfg.TRAINER.FPP.OTHER_NOISE = 0.141421  # of the noise on all other tokens
        cfg.TRAINER.FPP.NOISES = 4  # noise samples per step
        cfg.TRAINER.FPP.WEIGHT = 0.0  # of robustness; 0 = 1 + 15/K; the public script uses 1.25 on shifted ImageNets

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        super().validate(cfg)
        own = cfg.TRAINER.FPP
        require_one_of(cfg, "TRAINER.FPP.START", "random", "words")
        for key in ("STEPS", "NOISES"):
            require(cfg, own[key] >= 1, f"TRAINER.FPP.{key}", "at least 1")
        for key in ("LR", "DEVIATION"):
            require(cfg, own[key] > 0, f"TRAINER.FPP.{key}", "above 0")
        for key in ("LAST_LR", "NOISE", "OTHER_NOISE", "WEIGHT"):
            require(cfg, own[key] >= 0, f"TRAINER.FPP.{key}", "0 or more")
        require(cfg, leaves(cfg)[OF_PROMPTS] == "end", OF_PROMPTS, "end: FPP's noise depends on token positions")
        require(cfg, not cfg.MODEL.INIT_WEIGHTS, "MODEL.INIT_WEIGHTS",
                "empty: FPP makes its own prompt; to start from a finished one, use another trainer, such as TPT")

    def use_model(self, model: CLIP | Backbone, classnames: Sequence[str]) -> None:
        super().use_model(model, classnames)
        text = self.prompt.text  # (K, d) of the hand-written prompt, which gives the zero-shot predictions
        context = self.dist.broadcast(self.pretrain().cpu() if self.dist.is_main else torch.empty(0))
        self.prompt = InitialPrompt(self.prompt.tower, context.to(text.device), zero_shot=text)

    def pretrain(self) -> Tensor:
        own, words = self.cfg.TRAINER.FPP, self.prompt.context
        start = words if own.START == "words" else random_start(tuple(words.shape), own.DEVIATION, self.cfg.SEED)
        context = pretrain_prompt(self.prompt.tower, self.prompt.text, start.to(words), own, self.cfg.SEED)
        if self.run_dir is not None:
            path = checkpoint_path(run_path(self.cfg), own.STEPS)
            write_checkpoint(path, own.STEPS, context, self.backbone, self.prompt.tower.class_tokens, {}, {},
                             self.cfg.MODEL.BACKBONE.NAME)
            logger.info("prompt pre-trained without images in %d steps: %s (MODEL.INIT_WEIGHTS)", own.STEPS, path)
        return context
