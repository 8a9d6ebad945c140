"""Joins a CLIP, class names and a context to all that a method needs besides images."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor
from yacs.config import CfgNode

from ...datasets.utils.errors import ConfigError, WeightsError
from ..functional.objectives import class_logits
from .backbone import Backbone, check_lengths, initial_context
from .budget import Budget, retry_on_oom
from .class_texts import ClassTexts, TextFeatures
from .prompt_files import load_context
from .prompts import ClassTokenPosition, class_tokens, warn_of_classes
from .text_encoder import TextEncoder

EQUAL = 1e-6  # features that differ by less in every number are taken as equal


class LoadedModel(NamedTuple):
    """A backbone, and the classes that it distinguishes."""

    backbone: Backbone
    classnames: Sequence[str] = ()  # empty = those of the data set
    weights: str = ""  # hash of its weights, if a record needs it


class PromptedCLIP:
    """A backbone, class names, and the context that all episodes start from.

    What is constant in a run is computed once: the text features, and the backward pass from their
    gradients to the context's. That is a vector-Jacobian product through one saved graph or, with a
    Jacobian, one matrix product.

    Attributes:
        backbone: The model.
        classnames: Names of the K classes.
        encoder: The text features as a function of the context.
        context: The initial context, (n_ctx, width), or (K, n_ctx, width) if class-specific.
        text: Unit text features (K, d) of context and class names, or of texts in their place.
        zero_shot_text: Unit text features (K, d) of the zero-shot predictions: `text`, unless the
            context was learnt by the run.
        lengths: Factors (K,) of the cosines with PROMPT.ENSEMBLE similarity, otherwise 1.
        scale: The factor of all cosines, exp(logit_scale) times `lengths`, () or (K,).
        first_of_name: The first class that has the same name or texts, for each of the K classes.
            No prompt can tell such classes apart. None where all classes differ.
        jacobian: ∂text/∂context (K, d, n_ctx · width); None where gradients go through the graph.
        budget: The number of episodes, classes and views at once.
    """

    def __init__(
        self, classnames: Sequence[str], encoder: TextEncoder, context: Tensor,
        texts: TextFeatures | None = None, zero_shot_text: Tensor | None = None,
    ) -> None:
        """
        Args:
            classnames: Names of the K classes.
            encoder: The text features of these classes as a function of the context.
            context: The context, (n_ctx, width), or (K, n_ctx, width) if class-specific.
            texts: Features of texts, which replace those of context and class names for methods
                that do not change the context; None = none.
            zero_shot_text: Unit text features (K, d) of the zero-shot predictions; None = the
                prompt's own features.
        """
        self.backbone = encoder.backbone
        self.classnames = classnames
        self.encoder = encoder
        self.budget: Budget = encoder.budget
        self.context = context.detach()
        self.texts = texts
        (prompt_text,) = retry_on_oom(
            self.budget.halve_classes, encoder.text, self.context[None])
        check_distinct(prompt_text, encoder.class_tokens)
        self.text: Tensor = prompt_text
        self.lengths: Tensor | float = 1.0
        if texts is not None:
            self.text = texts.unit
            self.lengths = texts.lengths
        self.zero_shot_text = self.text
        if zero_shot_text is not None:
            self.zero_shot_text = zero_shot_text
        self.scale: Tensor = self.backbone.logit_scale.exp().detach() * self.lengths
        self.first_of_name = self.find_first_of_name()
        self.jacobian: Tensor | None = None
        # Maps gradients of the text features to the context's, by the number of classes at once.
        # It holds the graph of one pass through the text tower, see `gradient`.
        self.backward: dict[int, Callable[[Tensor], Tensor]] = {}

    @classmethod
    def from_settings(
        cls, cfg: CfgNode, backbone: Backbone, classnames: Sequence[str], precision: str,
        texts: ClassTexts | None = None, prompt_hash: str = "",
    ) -> PromptedCLIP:
        """Builds the initial prompt of the settings.

        Args:
            cfg: The settings: the context's words or file, the position of the class names, pixels.
            backbone: The model.
            classnames: Names of the K classes.
            precision: Precision of the text tower.
            texts: Templates and descriptions in place of PROMPT.CTX_INIT; None = none.
            prompt_hash: An earlier hash that the file MODEL.INIT_WEIGHTS must still have; "" = any.
        """
        if cfg.INPUT.PIXEL_MEAN or cfg.INPUT.PIXEL_STD:
            backbone = backbone.with_pixels(cfg.INPUT.PIXEL_MEAN, cfg.INPUT.PIXEL_STD)
        size = backbone.pixels.size
        if cfg.INPUT.SIZE not in (0, size):
            raise ConfigError(f"INPUT.SIZE is {cfg.INPUT.SIZE}, but this backbone takes {size} "
                              f"pixels: leave it at 0")
        tokens = class_tokens(classnames, backbone.tokenizer)
        where = cfg.TRAINER.COOP.CLASS_TOKEN_POSITION
        position = ClassTokenPosition.find(where, classnames, backbone.tokenizer)
        features = None
        if texts is not None:
            features = texts.features(backbone, precision)
        warn_of_classes(classnames, tokens if features is None else features.tokens)
        if cfg.MODEL.INIT_WEIGHTS:
            context = load_context(
                cfg.MODEL.INIT_WEIGHTS, backbone, tokens, where, expected_hash=prompt_hash,
                dataset=cfg.DATASET.NAME)
        else:
            context = initial_context(backbone, cfg.PROMPT.CTX_INIT)
        check_lengths(classnames, tokens, context.shape[-2], backbone)
        encoder = TextEncoder(backbone, tokens, precision, position, steps=cfg.TTA.STEPS)
        return cls(classnames, encoder, context, texts=features)

    def with_context(self, context: Tensor) -> PromptedCLIP:
        """Returns the same model with another context. The zero-shot predictions stay the same."""
        return PromptedCLIP(
            self.classnames, self.encoder, context, zero_shot_text=self.zero_shot_text)

    def with_zero_shot_text(self, text: Tensor) -> PromptedCLIP:
        """Returns the same model with zero-shot predictions by other unit text features (K, d)."""
        other = copy(self)
        other.zero_shot_text = text
        return other

    def with_jacobian(self, jacobian: Tensor) -> PromptedCLIP:
        """Returns the same model with gradients by one matrix product.

        Args:
            jacobian: ∂text/∂context, (K, d, n_ctx · width).
        """
        other = copy(self)
        other.jacobian = jacobian
        return other

    def find_first_of_name(self) -> list[int] | None:
        """Finds the first class of each class's name, see the attribute `first_of_name`."""
        if self.context.dim() == 3:
            return None  # class-specific contexts distinguish classes of one name
        tokens = self.encoder.class_tokens if self.texts is None else self.texts.tokens
        first = first_of_equal(tokens)
        if len(set(first)) == len(first):
            return None
        return first

    def logits(self, images: Tensor) -> Tensor:
        """Computes class logits, bitwise equal for classes of one name.

        So votes and ties between these classes do not depend on rounding.

        Args:
            images: Unit image features, (..., d).

        Returns:
            Logits, (..., K).
        """
        return self.equal_names(class_logits(images, self.text, self.scale))

    def equal_names(self, values: Tensor) -> Tensor:
        """Gives all classes of one name the value of the first of them, (..., K)."""
        if self.first_of_name is None:
            return values
        return values[..., self.first_of_name]

    def gradient(self, grad_text: Tensor) -> Tensor:
        """Computes gradients of the context from gradients of the text features.

        Args:
            grad_text: B gradients of the text features, (B, K, d).

        Returns:
            Gradients of the context, (B, n_ctx, width), or (B, K, n_ctx, width) if class-specific.
        """
        if self.jacobian is not None:
            # One product for each class: the Jacobian, which is large, is read where it lies.
            by_class = grad_text.transpose(0, 1) @ self.jacobian  # (K, B, n_ctx · width)
            if self.context.dim() == 3:
                gradient = by_class.transpose(0, 1)
            else:
                gradient = by_class.sum(0)  # all classes share the context
            return gradient.unflatten(-1, self.context.shape[-2:])
        classes = self.budget.classes
        if classes not in self.backward:
            self.backward.clear()  # frees the graph of larger groups, for which memory ran out
            _, self.backward[classes] = self.encoder.with_vjp(self.context[None], batched=True)
        return self.backward[classes](grad_text)


def first_of_equal(class_tokens: Sequence[Sequence[int]]) -> list[int]:
    """Returns the first class with the same tokens, for each class; usually the class itself."""
    first: dict[tuple[int, ...], int] = {}
    return [first.setdefault(tuple(tokens), label) for label, tokens in enumerate(class_tokens)]


def check_distinct(text: Tensor, class_tokens: Sequence[Sequence[int]]) -> None:
    """Refuses equal features of classes whose names have different tokens.

    A text tower that gives such features does not read the names.

    Args:
        text: Unit text features, (K, d).
        class_tokens: Tokens after the context, for each class.
    """
    classes = torch.tensor(sorted(set(first_of_equal(class_tokens))), device=text.device)
    distinct = text[classes]
    # Equal features have equal projections on any vector. Sorted by a projection they are
    # neighbours, so K comparisons do instead of one for each pair of classes.
    weights = torch.linspace(1, 2, text.shape[1], dtype=torch.double, device=text.device)
    order = (distinct.double() @ weights).argsort()
    equal = (distinct[order[1:]] - distinct[order[:-1]]).abs().amax(1) < EQUAL
    if not text.is_meta and equal.any():  # meta tensors have no values
        first = int(equal.int().argmax())
        pair = sorted(classes[order[first : first + 2]].tolist())
        raise WeightsError(
            f"classes {pair[0]} and {pair[1]} (counted from 0) get the same text features, though "
            f"their names differ: the tokenizer and the text tower of this backbone do not fit "
            f"together")
