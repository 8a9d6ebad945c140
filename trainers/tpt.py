"""Implements TPT, test-time prompt tuning, which is the base class of the calibrated methods.

An episode is this file from top to bottom: the hooks that other methods override, `adapt` for a
batch of images, `run_episodes` and `tune` for the steps of AdamW, `text_gradient` for the gradient
of one step, and `Term` for the regularisers in it. Images are tuned in batches, but each row of
every tensor belongs to one image: contexts, optimizer moments and losses never mix.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor
from yacs.config import CfgNode

from ..datasets import Dataset
from ..datasets.utils.errors import ConfigError
from .base import BaseTrainer
from .config.build import parse_regularisers, require_kept_views
from .engine.adapted import Adapted
from .engine.continual import ContinualContext, Moments, TunableText
from .engine.jacobian import TextShape, build_jacobian, decide_jacobian
from .functional.objectives import class_logits, confident_views, marginal_entropy
from .functional.posthoc import StrongViews
from .registry import EVERY_IMAGE, TRAINER_REGISTRY, branch_of, find_method, method_key
from .vlm.budget import Budget, retry_on_oom
from .vlm.prompted_clip import LoadedModel, PromptedCLIP


@TRAINER_REGISTRY.register()
class TPT(BaseTrainer):
    """Minimises over the context L_TPT, the entropy of the mean prediction of confident views.

    (Shu et al., NeurIPS 2022.) Other methods override its hooks. One that adds a regulariser
    defines `penalty` and `weight`; its loss is L_TPT + weight · penalty. TRAINER.REGULARISERS adds
    the terms of such methods to any of them.
    """

    label = "TPT"
    colour = "#E69F00"
    marker = "^"
    display_order = 10
    tunes_context = True
    takes_regularisers = True

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        """Refuses settings that select no view, and regularisers that do not exist."""
        if cfg.TTA.STEPS:
            require_kept_views(cfg)
        for name in parse_regularisers(cfg.TRAINER.REGULARISERS):
            require_lambda(find_regulariser(name), cfg)

    def __init__(
        self, cfg: CfgNode, dataset: Dataset | None = None, model: LoadedModel | None = None,
    ) -> None:
        super().__init__(cfg, dataset, model)
        self.online = cfg.TTA.RESET not in EVERY_IMAGE

    # Hooks. A method overrides some of them; none of them stores anything.

    def select(self, logits: Tensor) -> Tensor:
        """Returns the indices of the views to learn from, selected once with the initial prompt.

        Args:
            logits: Logits of all views before the first step, (B, V, K).

        Returns:
            Indices of the n selected views, (B, n).
        """
        return confident_views(logits, self.cfg.TTA.SELECT)

    def view_loss(self, logits: Tensor) -> Tensor:
        """Returns the loss of the selected views, (B, n, K) -> (B,)."""
        return marginal_entropy(logits)

    def episode_loss(self, logits: Tensor, first: Tensor, plain: Tensor) -> Tensor:
        """Returns `view_loss`. Methods that compare with logits of the first step override it.

        Args:
            logits: Logits of the selected views in this step, (B, n, K).
            first: Logits of the selected views in the first step, (B, n, K). In the first step it
                is `logits` itself.
            plain: Logits of the plain view before the first step, (B, 1, K).

        Returns:
            The loss of each episode, (B,).
        """
        return self.view_loss(logits)

    def penalty(self, text: Tensor) -> Tensor | None:
        """Returns the regulariser of text features; None if the method has none.

        Args:
            text: Unit text features, (K, d) or (B, K, d).

        Returns:
            One number per episode, () or (B,).
        """
        return None

    def weight(self, loss: Tensor, penalty: Tensor) -> Tensor | float:
        """Returns the factor of the penalty. Gradients run through it unless it is detached.

        Args:
            loss: `episode_loss` of each episode, (B,).
            penalty: `penalty` of each episode, (B,).

        Returns:
            A number, or one per episode, (B,).
        """
        return 1.0

    def predict(self, views: Tensor, text: Tensor) -> Tensor:
        """Returns the logits of the prediction, which are those of the plain view.

        Args:
            views: Unit view features, (B, V, d), view 0 the plain one.
            text: Tuned text features, (B, K, d); (K, d) without a step.

        Returns:
            Logits, (B, K).
        """
        return class_logits(views[:, :1], text, self.clip.scale)[:, 0]

    @cached_property
    def terms(self) -> list[Term]:
        """The regularisers in the loss: the method's own, and those of TRAINER.REGULARISERS."""
        terms = [Term(self.penalty, self.weight)]
        for name, weight in parse_regularisers(self.cfg.TRAINER.REGULARISERS).items():
            terms.append(Term.of_method(find_regulariser(name), self.cfg, weight))
        return terms

    # Where episodes start.

    def prepare(self) -> None:
        """Decides whether there is a Jacobian, and loads the model, before the first image."""
        self.run_dir.decide(self.dist, jacobian=self.decide_jacobian())
        self.initial  # noqa: B018 - loads the model, and may compute a Jacobian

    def decide_jacobian(self) -> bool:
        """Decides by counts and settings alone whether gradients of the first step use a Jacobian.

        It is the Jacobian at the initial context, so it is of no use where the context is carried
        from image to image.
        """
        if not self.tunes_context or not self.cfg.TTA.STEPS or self.online:
            return False
        shape = TextShape.of(self.clip.encoder, self.clip.context)
        return decide_jacobian(self.cfg, shape, len(self.data.indices))

    @property
    def uses_jacobian(self) -> bool:
        """Whether this run uses a Jacobian, as it was decided before its first part.

        For images in memory there is none.
        """
        if self.given_classes:
            return False
        return self.run_dir.record.numerics["jacobian"] is True

    def with_jacobian(self) -> PromptedCLIP:
        """Returns the model with the Jacobian of its initial prompt, cached or computed."""
        key = {"record": self.record.key("jacobian")}
        jacobian = build_jacobian(self.clip, self.cfg.CACHE.DIR, key, self.dist)
        return self.clip.with_jacobian(jacobian)

    @cached_property
    def initial(self) -> TunableText:
        """The context (or what else is tuned) as it is before the first image."""
        if self.uses_jacobian:
            return self.with_jacobian()
        return self.clip

    @cached_property
    def continual(self) -> ContinualContext:
        """The context that TTA.RESET never | N carries from image to image."""
        if self.cfg.TTA.RESET == "never":
            return ContinualContext(self.initial, reset_every=0)
        return ContinualContext(self.initial, reset_every=int(self.cfg.TTA.RESET))

    def state_tensors(self) -> dict[str, Tensor]:
        """Returns the state with TTA.RESET never | N: the context, AdamW's moments and step count.
        """
        return self.continual.tensors()

    # The episode.

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        """Tunes for each of B images, given as unit view features (B, V, d), and predicts them."""
        if self.online:
            return Adapted.join([self.adapt_next(image) for image in views.split(1)])
        return self.within_memory(partial(self.run_episodes, self.initial), views)

    def adapt_next(self, image: Tensor) -> Adapted:
        """Adapts to the next image (1, V, d) of a stream. It starts where the last one ended."""

        def run(views: Tensor) -> Adapted:
            # A copy of the moments: when memory runs out in the middle of an episode, it is run
            # again.
            start, moments = self.continual.start_next()
            adapted = self.run_episodes(start, views, moments)
            self.continual.finish(adapted, moments)
            return adapted

        return self.within_memory(run, image)

    def within_memory(self, run: Callable[[Tensor], Adapted], views: Tensor) -> Adapted:
        """Adapts all images, as many at once as the device holds.

        Args:
            run: A function from view features (b, V, d) to the predictions of b images.
            views: Unit view features, (B, V, d).
        """
        if not self.tunes_context:
            return run(views)  # no text tower runs, so memory is no concern
        return adapt_within_memory(run, views, self.clip.budget)

    def run_episodes(
        self, start: TunableText, views: Tensor, moments: Moments | None = None,
    ) -> Adapted:
        """Tunes and predicts B images at once.

        Args:
            start: The context that all of them start from.
            views: Unit view features (B, V, d), view 0 the plain one.
            moments: AdamW's state to start from, which is updated; None = a new one.

        Returns:
            The predictions of the B images.
        """
        logits = class_logits(views, start.text, self.clip.scale)  # (B, V, K)
        tuned = self.tune(start, views, logits, moments)
        if self.cfg.TTA.STEPS:
            text = start.encoder.text(tuned.context)  # (B, K, d)
            tuned_logits = class_logits(views, text, self.clip.scale)
        else:
            text = start.text
            tuned_logits = logits
        zero_shot_logits = logits
        # They differ where the context was learnt: a hand-written prompt is then the zero-shot one.
        if start.zero_shot_text is not start.text:
            zero_shot_logits = class_logits(views, start.zero_shot_text, self.clip.scale)
        return Adapted(
            logits=self.predict(views, text),
            zero_shot_logits=zero_shot_logits[:, 0],
            ctx=tuned.context.detach(),
            columns={"loss": tuned.loss, "penalty": tuned.penalty},
            strong_views=StrongViews.of(zero_shot_logits, tuned_logits),
        )

    def tune(
        self, start: TunableText, views: Tensor, logits: Tensor, moments: Moments | None = None,
    ) -> Tuned:
        """Takes TTA.STEPS steps of AdamW.

        Args:
            start: The context that all images start from.
            views: Unit view features, (B, V, d), view 0 the plain one.
            logits: Logits of all views before the first step, (B, V, K).
            moments: AdamW's state to start from, which is updated; None = a new one.
        """
        batch = len(views)
        context = start.context.expand(batch, *start.context.shape).clone()
        if self.cfg.TTA.STEPS == 0:
            nothing = torch.full((batch,), torch.nan, device=views.device)
            return Tuned(context, nothing, nothing)

        # Selected once, with the initial prompt, as in TPT's public code: later steps cannot turn
        # to views of which the prompt has become sure.
        selected = self.select(logits)[..., None]  # (B, n, 1)
        selected_views = views.take_along_dim(selected, dim=1)  # (B, n, d)
        first_logits = logits.take_along_dim(selected, dim=1)  # (B, n, K)
        plain_logits = logits[:, :1]  # (B, 1, K)
        # AdamW works elementwise, so one optimizer on a batch of contexts is one optimizer per
        # image.
        optimizer = torch.optim.AdamW(
            [context], lr=self.cfg.OPTIM.LR, weight_decay=self.cfg.OPTIM.WEIGHT_DECAY)
        if moments is not None:
            optimizer.state[context] = moments  # continues where the image before it ended

        # In the first step all episodes share the text features of `start`, which are computed
        # already: the text tower runs neither forward nor, with a Jacobian, backward.
        result = self.text_gradient(start.text, selected_views, plain_logits)
        context.grad = start.gradient(result.gradient)
        optimizer.step()
        for _ in range(1, self.cfg.TTA.STEPS):
            text, to_context = start.encoder.with_vjp(context)  # (B, K, d)
            result = self.text_gradient(text, selected_views, plain_logits, first_logits)
            context.grad = to_context(result.gradient)
            optimizer.step()
        return Tuned(context, result.loss, result.penalty)

    def text_gradient(
        self, text: Tensor, selected_views: Tensor, plain_logits: Tensor,
        first_logits: Tensor | None = None,
    ) -> TextGradient:
        """Computes the gradient of the episodes' losses L(ℓ, p₁, p₂, …) at the text features T.

        dL/dT = ∂L/∂ℓ · dℓ/dT + Σ ∂L/∂pᵢ · dpᵢ/dT, with the loss ℓ of the views and penalties pᵢ. In
        the first step all episodes share T, so each dpᵢ/dT is computed once; ∂L/∂ℓ and ∂L/∂pᵢ are
        numbers that differ from episode to episode.

        Args:
            text: Text features: (K, d) in the first step, where all episodes share them;
                (B, K, d) later.
            selected_views: Unit features (B, n, d) of the selected views.
            plain_logits: Logits of the plain view before the first step, (B, 1, K).
            first_logits: Logits of the selected views in the first step, (B, n, K); None in that
                step.
        """
        batch = len(selected_views)
        with torch.enable_grad():
            # Each episode has a gradient of its own at the features, also where all share them.
            leaf = text.expand(batch, *text.shape[-2:]).detach().requires_grad_()  # (B, K, d)
            logits = class_logits(selected_views, leaf, self.clip.scale)  # (B, n, K)
            if first_logits is None:
                first_logits = logits
            loss = self.episode_loss(logits, first_logits, plain_logits)  # (B,)
            # An episode's loss depends on its own row alone, so the gradient of the sum holds those
            # of the single losses.
            (loss_gradient,) = torch.autograd.grad(loss.sum(), leaf)

            # L as a function of the numbers ℓ and pᵢ of each episode.
            loss = loss.detach().requires_grad_()
            total = loss.clone()
            penalties: list[Tensor] = []  # (B,) each
            penalty_gradients: list[Tensor] = []  # (K, d) or (B, K, d) each
            for term in self.terms:
                penalty_value = term.evaluate(text)
                if penalty_value is None:
                    continue
                penalty = penalty_value.value.expand(batch).clone().requires_grad_()
                total = total + term.weight(loss, penalty) * penalty
                penalties.append(penalty)
                penalty_gradients.append(penalty_value.gradient)
            # ∂L/∂ℓ, then each ∂L/∂pᵢ, (B,) each.
            loss_slope, *penalty_slopes = torch.autograd.grad(total.sum(), [loss, *penalties])

        gradient = loss_slope[:, None, None] * loss_gradient
        if penalties:
            of_penalties = torch.zeros((), device=text.device)
            for slope, penalty_gradient in zip(penalty_slopes, penalty_gradients, strict=True):
                of_penalties = of_penalties + slope[:, None, None] * penalty_gradient
            gradient = gradient + of_penalties
        penalty_sum = torch.zeros_like(loss.detach())
        for penalty in penalties:
            penalty_sum = penalty_sum + penalty.detach()
        return TextGradient(gradient, loss.detach(), penalty_sum)


def adapt_within_memory(
    adapt: Callable[[Tensor], Adapted], views: Tensor, budget: Budget,
) -> Adapted:
    """Adapts to all images, as many at once as the device holds.

    When memory runs out, first the number of episodes, then the number of classes per pass is
    halved for the rest of the run.

    Args:
        adapt: A function from view features (b, V, d) to the predictions of b images.
        views: Unit view features (B, V, d).
        budget: The number of episodes and classes at once, which may become smaller.
    """
    parts: list[Adapted] = []
    done = 0
    while done < len(views):
        rest = views[done:]

        # The budget is read at each attempt, because `halve` changes it. Default values bind the
        # images of this turn of the loop.
        def adapt_first(rest: Tensor = rest) -> Adapted:
            return adapt(rest[: budget.episodes])

        def halve(images: int = len(rest)) -> str:
            return budget.halve_episodes(min(images, budget.episodes))

        parts.append(retry_on_oom(halve, adapt_first))
        done += len(parts[-1].logits)
    return Adapted.join(parts)


class Tuned(NamedTuple):
    """The result of the steps of B episodes."""

    context: Tensor  # the contexts after the last step, (B, ...)
    loss: Tensor  # loss of the views before the last step, (B,); NaN without a step
    penalty: Tensor  # sum of all penalties before the last step, (B,); NaN without a step


class TextGradient(NamedTuple):
    """The gradient of B episodes' losses at the text features, and the losses."""

    gradient: Tensor  # (B, K, d)
    loss: Tensor  # loss of the views, (B,)
    penalty: Tensor  # sum of all penalties, (B,)


class PenaltyValue(NamedTuple):
    """A penalty and its gradient at given text features."""

    value: Tensor  # () for shared features (K, d), (B,) for (B, K, d)
    gradient: Tensor  # the same shape as the features


class Term:
    """A regulariser of the text features in the loss of an episode: weight · penalty."""

    def __init__(
        self, penalty: Callable[[Tensor], Tensor | None],
        weight: Callable[[Tensor, Tensor], Tensor | float],
    ) -> None:
        self.penalty = penalty
        self.weight = weight
        # The last shared text features and the penalty there, by their id.
        self.shared: dict[int, tuple[Tensor, PenaltyValue | None]] = {}

    @classmethod
    def of_method(cls, method: type[TPT], cfg: CfgNode, weight: float) -> Term:
        """Returns the regulariser of a method for another one: with its settings and another λ.

        `penalty` and `weight` are hooks of a trainer class, but read only its settings. So they are
        called on an object that has nothing else: no data, no model, no life cycle.

        Args:
            method: The class that defines the hooks.
            cfg: All settings.
            weight: λ, in place of the method's own.
        """
        settings = cfg.clone()
        settings.defrost()
        settings.TRAINER[branch_of(method.__name__)].LAMBDA = weight
        settings.freeze()
        hooks = method.__new__(method)  # without calling __init__
        hooks.cfg = settings
        return cls(hooks.penalty, hooks.weight)

    def evaluate(self, text: Tensor) -> PenaltyValue | None:
        """Computes penalty and gradient at text features (..., K, d); None if there is no penalty.

        A penalty depends on no image. Features (K, d) that all episodes share are those of the
        context that they start from. It is the same in the whole run unless the method is online,
        so their penalty is computed once, which matters for thousands of classes.
        """
        is_shared = text.dim() == 2
        if is_shared and id(text) in self.shared:
            return self.shared[id(text)][1]
        with torch.enable_grad():
            leaf = text.detach().requires_grad_()
            value = self.penalty(leaf)
            if value is None:
                result = None
            else:
                (gradient,) = torch.autograd.grad(value.sum(), leaf)
                result = PenaltyValue(value.detach(), gradient)
        if is_shared:
            # The features are stored too: as long as they exist, no other tensor gets their id.
            self.shared = {id(text): (text, result)}
        return result


def is_regulariser(method: type | None) -> TypeGuard[type[TPT]]:
    """Whether a method is TPT plus a weighted penalty, which other methods can add."""
    return (
        isinstance(method, type) and issubclass(method, TPT) and method.penalty is not TPT.penalty
    )


def find_regulariser(name: str) -> type[TPT]:
    """Returns the regulariser of a name, in any spelling; refuses other names."""
    method = find_method(name)
    if is_regulariser(method):
        return method
    known = []
    for other in TRAINER_REGISTRY:
        if is_regulariser(TRAINER_REGISTRY.get(other)):
            known.append(method_key(other))
    raise ConfigError(
        f"TRAINER.REGULARISERS names {name!r}, which is not a regulariser: use some of "
        f"{', '.join(known)}, each as name:weight"
    )


def require_lambda(method: type[TPT], cfg: CfgNode) -> None:
    """Refuses a regulariser without LAMBDA, the setting that TRAINER.REGULARISERS replaces.

    Args:
        method: The class that defines the penalty.
        cfg: All settings.
    """
    branch = branch_of(method.__name__)
    if "LAMBDA" not in cfg.TRAINER.get(branch, {}):
        raise ConfigError(
            f"TRAINER.REGULARISERS cannot weight {method.__name__}: a penalty that other "
            f"methods add needs its λ in TRAINER.{branch}.LAMBDA"
        )
