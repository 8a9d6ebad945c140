"""Runs the public code of TPT, C-TPT, O-TPT and A-TPT; stores what it computes in public_code.npz.

    python tests/evidence/make_public_code.py --tpt DIR --ctpt DIR --otpt DIR --atpt DIR

Each DIR is a git checkout of the method's repository; README.md beside this file names the
commits. Their files are not changed, and none of their code is here. This script calls it with a
CPU in place of a GPU, replaces the images by stored views, and records the intermediate results.
"""
from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import multiprocessing
import platform
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

OUTPUT = Path(__file__).with_name("public_code.npz")
STEPS = (1, 2)  # numbers of optimizer steps that are recorded
NUM_VIEWS = 64
STORED_SIZE = 16  # views are stored with so many pixels per side
ENLARGEMENT = 4  # each stored pixel becomes 4 × 4 pixels: the small CLIP takes 64 × 64
PIXEL_MEAN = (0.48145466, 0.4578275, 0.40821073)  # OpenAI's
PIXEL_STD = (0.26862954, 0.26130258, 0.27577711)
# Entropies of the last view that is selected and the first that is not must differ by more than
# rounding, otherwise the selection would be a matter of chance.
LEAST_GAP = 1e-4


@dataclass(frozen=True)
class PublicCode:
    """A public repository, and how its program is called."""

    repository: str
    program: str  # the module with main_worker
    settings: dict[str, Any]  # what is added to COMMON_SETTINGS


# The names are those of the programs' own options, the values those of the authors' scripts for
# the fine-grained data sets.
COMMON_SETTINGS: dict[str, Any] = {
    "data": "",
    "test_sets": "eurosat",
    "dataset_mode": "test",
    "resolution": STORED_SIZE * ENLARGEMENT,
    "workers": 0,
    "batch_size": NUM_VIEWS,
    "lr": 5e-3,
    "print_freq": 200,
    "gpu": "cpu",
    "tpt": True,
    "selection_p": 0.1,
    "n_ctx": 4,
    "ctx_init": "a_photo_of_a",
    "cocoop": False,
    "load": None,
    "seed": 0,
}
PUBLIC_CODE = {
    "TPT": PublicCode("azshue/TPT", "tpt_classification", {}),
    "CTPT": PublicCode("hee-suk-yoon/C-TPT", "tpt_classification", {
        "run_type": "tpt_ctpt",
        "lambda_term": 50.0,
        "two_step": False,
        "I_augmix": False,
    }),
    "OTPT": PublicCode("ashshaksharifdeen/O-TPT", "otpt_classification", {
        "run_type": "tpt_otpt",
        "lambda_term": 18.0,
        "two_step": False,
        "I_augmix": False,
        "disp_cons": [18.0],
        "csv_log": None,
    }),
    "ATPT": PublicCode("MB-Shihab-Aaqil-Ahamed/A-TPT", "atpt_classification", {
        "run_type": "tpt_atpt",
        "lambda_term": 80.0,
        "tau_term": 0.99999,
        "two_step": False,
        "I_augmix": False,
    }),
}


# Inputs


def enlarge(stored: np.ndarray) -> Tensor:
    """Pixel values of uint8 views (B, V, 3, 16, 16) as the image tower takes them: (B, V, 3, 64, 64)."""
    pixels = torch.from_numpy(stored).float().repeat_interleave(ENLARGEMENT, dim=-2)
    return pixels.repeat_interleave(ENLARGEMENT, dim=-1)


def normalise(pixels: Tensor) -> Tensor:
    """Pixel values from 0 to 255 (..., 3, H, W), normalised with CLIP's mean and deviation."""
    mean = torch.tensor(PIXEL_MEAN)[:, None, None]
    std = torch.tensor(PIXEL_STD)[:, None, None]
    return (pixels / 255 - mean) / std


def draw_views() -> np.ndarray:
    """Views of four LandCover tiles, uint8, shape (4, 64, 3, 16, 16)."""
    from promptcal.datasets import build_dataset
    from promptcal.datasets.views import make_views

    dataset = build_dataset("LandCover", "")
    views = []
    for classname in ("annual crop land", "river", "forest", "residential area"):
        item = next(item for item in dataset.test if item.classname == classname)
        image = dataset.read_image(item)
        drawn = make_views(image, index=len(views), count=NUM_VIEWS, size=STORED_SIZE, augmix=False, seed=0)
        views.append(drawn.numpy())
    return np.stack(views)


def save_small_clip(path: Path) -> str:
    """Writes the embedded CLIP as a TorchScript archive, the form of OpenAI's weights; returns their hash.

    The public code loads such archives itself. It rounds the weights to fp16 on the way, which
    does not change these.
    """
    from promptcal.trainers import load_clip

    model = load_clip("small")
    archive = nn.Module()
    for name, tensor in model.state_dict().items():
        *folders, last = name.split(".")
        module = archive
        for folder in folders:
            if not hasattr(module, folder):
                module.add_module(folder, nn.Module())
            module = getattr(module, folder)
        module.register_buffer(last, tensor)
    torch.jit.script(archive).save(str(path))
    return weights_hash(model)


def weights_hash(model: nn.Module) -> str:
    """sha256 of all weights, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def draw_confidences() -> tuple[np.ndarray, np.ndarray]:
    """Confidences (N,), some on edges of the 20 bins, some saturated; and whether predictions are right."""
    rng = np.random.default_rng(0)
    on_edges = np.linspace(0, 1, 21)[1:]
    saturated = 1 - np.float32(10.0) ** -np.arange(3, 9)
    confidence = np.concatenate([rng.beta(3, 1, 400), on_edges, saturated]).astype(np.float32)
    correct = rng.random(len(confidence)) < 0.8 * confidence
    return confidence, correct


# Recording


class EvaluationFinished(Exception):
    """Ends the public program after its evaluation. O-TPT's then writes to a fixed folder."""


class Recorder:
    """Collects what a public program computes, in the order in which it takes the images."""

    def __init__(self, program: types.ModuleType, views: Tensor) -> None:
        """Replaces the program's functions by ones that call them and note arguments and results.

        `views` are normalised, (B, V, 3, H, W).
        """
        self.program = program
        self.views = views
        self.model: Any = None
        self.current: dict[str, list[Tensor]] = {}  # of the image that is being adapted to
        self.images: dict[int, dict[str, Tensor]] = {}
        program.build_dataset = self.build_dataset
        self.wrap("get_coop", self.after_get_coop)
        self.wrap("select_confident_samples", self.after_selection)
        self.wrap("avg_entropy", self.after_entropy)
        self.wrap("accuracy", self.after_accuracy)
        self.wrap("test_time_adapt_eval", self.after_evaluation)
        torch.cuda.amp.GradScaler = self.make_scaler_class()

    def wrap(self, name: str, after: Callable) -> None:
        """Calls `after(result, *args)` whenever the program has called its function `name`."""
        function = getattr(self.program, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            after(result, *args)
            return result

        setattr(self.program, name, wrapper)

    def note(self, name: str, value: Tensor) -> None:
        self.current.setdefault(name, []).append(value.detach().clone())

    def build_dataset(self, *args: Any, **kwargs: Any) -> list[tuple[list[Tensor], int]]:
        """In place of the program's images: for each image its views and, as label, its index."""
        return [(list(views), index) for index, views in enumerate(self.views)]

    def after_get_coop(self, model: Any, *args: Any) -> None:
        self.model = model
        encode = model.get_text_features

        def get_text_features() -> Tensor:
            text = encode()
            self.note("text", text)
            return text

        model.get_text_features = get_text_features

    def after_selection(self, result: tuple[Tensor, Tensor], logits: Tensor, share: float) -> None:
        self.note("view_logits", logits)
        self.note("selected", result[1])

    def after_entropy(self, loss: Tensor, *args: Any) -> None:
        self.note("entropy", loss)

    def make_scaler_class(self) -> type:
        recorder = self

        class RecordingScaler(torch.amp.GradScaler):
            """Sees the loss and the gradient of each step. Without a GPU it scales nothing."""

            def __init__(self, **kwargs: Any) -> None:
                super().__init__("cuda", enabled=False, **kwargs)

            def scale(self, loss: Tensor) -> Tensor:
                recorder.note("loss", loss)
                return super().scale(loss)

            def step(self, optimizer: torch.optim.Optimizer) -> Any:
                recorder.note("gradient", recorder.model.prompt_learner.ctx.grad)
                return super().step(optimizer)

        return RecordingScaler

    def after_accuracy(self, result: Any, logits: Tensor, target: Tensor, *args: Any) -> None:
        """Called once per image, with its final logits (1, K)."""
        noted = self.current
        self.images[int(target)] = {
            "view_logits": noted["view_logits"][0],  # (V, K), with the initial prompt
            "selected": noted["selected"][0],  # (n,)
            "text": noted["text"][0],  # (K, d), with the initial prompt
            "entropy": torch.stack(noted["entropy"]),  # (steps,)
            "loss": torch.stack(noted["loss"]),  # (steps,)
            "gradient": torch.stack(noted["gradient"]),  # (steps, n_ctx, width)
            "context": self.model.prompt_learner.ctx.detach().clone(),  # (n_ctx, width)
            "logits": logits[0].clone(),  # (K,)
        }
        self.current = {}

    def after_evaluation(self, *args: Any) -> None:
        raise EvaluationFinished

    def results(self) -> dict[str, np.ndarray]:
        """All images' results by name, each of shape (B, ...)."""
        stacked = {}
        for name in self.images[0]:
            per_image = [self.images[index][name] for index in range(len(self.views))]
            stacked[name] = torch.stack(per_image).numpy()
        return stacked


def add_missing_modules() -> None:
    """Stands in for what the programs import and these runs do not need."""
    sys.modules["ipdb"] = types.ModuleType("ipdb")  # a debugger
    resources = types.ModuleType("pkg_resources")  # new versions of setuptools lack it
    resources.packaging = importlib.import_module("packaging")  # type: ignore[attr-defined]
    importlib.import_module("packaging.version")
    sys.modules["pkg_resources"] = resources


def import_program(method: str, checkout: Path) -> types.ModuleType:
    add_missing_modules()
    sys.path.insert(0, str(checkout))
    return importlib.import_module(PUBLIC_CODE[method].program)


def record(
    method: str, checkout: Path, weights: Path, stored_views: np.ndarray, steps: int,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Runs a public program on the CPU, in a process of its own.

    Returns:
        The results by name, see `Recorder.after_accuracy`, and the class names.
    """
    torch.set_num_threads(1)
    program = import_program(method, checkout)
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    recorder = Recorder(program, normalise(enlarge(stored_views)))
    settings = {**COMMON_SETTINGS, **PUBLIC_CODE[method].settings}
    args = argparse.Namespace(**settings, arch=str(weights), tta_steps=steps)
    program.args = args  # type: ignore[attr-defined]  # O-TPT reads this global
    arguments: list[Any] = ["cpu", args]
    if method in ("CTPT", "ATPT"):
        # These programs collect their predictions in a dict of the caller.
        arguments.append({"max_confidence": [], "prediction": [], "label": []})
    with contextlib.suppress(EvaluationFinished):
        program.main_worker(*arguments)
    return recorder.results(), list(recorder.model.prompt_learner.classnames)


def record_ece(checkout: Path, confidence: np.ndarray, correct: np.ndarray) -> float:
    """C-TPT's expected calibration error with 20 bins, a fraction."""
    program = import_program("CTPT", checkout)
    unused_predictions = [0] * len(confidence)
    ece = program.ECE_Loss(20, unused_predictions, confidence.tolist(), correct.tolist())[0]
    return float(ece)


def in_new_process(function: Callable, *args: Any) -> Any:
    """The repositories have modules of equal names, so each call gets its own process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *args).result()


# Checks and output


def unmodified_commit(checkout: Path) -> str:
    """The commit of a checkout. Ends the script if a file of the commit was changed."""
    git = ["git", "-C", str(checkout)]
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], check=False)
    if changed.returncode != 0:
        raise SystemExit(f"{checkout} has changed files: use a clean checkout")
    answer = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return answer.stdout.strip()


def check_selection(results: dict[str, np.ndarray]) -> None:
    """Ends the script if rounding could change which views are selected."""
    log_p = torch.from_numpy(results["view_logits"]).log_softmax(dim=-1)
    entropies = -(log_p.exp() * log_p).sum(dim=-1)  # (B, V)
    entropies = entropies.sort(dim=-1).values
    count = results["selected"].shape[1]
    gaps = entropies[:, 1 : count + 1] - entropies[:, :count]
    if gaps.min() < LEAST_GAP:
        raise SystemExit(f"entropies of views differ by {gaps.min():.1e} only: draw other views")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for method in PUBLIC_CODE:
        parser.add_argument(f"--{method.lower()}", dest=method, type=Path, required=True, metavar="DIR")
    checkouts = vars(parser.parse_args())
    if not (checkouts["OTPT"] / "clip" / "bpe_simple_vocab_16e6.txt.gz").exists():
        raise SystemExit("O-TPT's repository lacks clip/bpe_simple_vocab_16e6.txt.gz: copy TPT's")

    views = draw_views()
    confidence, correct = draw_confidences()
    arrays: dict[str, np.ndarray] = {"views": views}
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "small.pt"
        made_with = {
            "weights": save_small_clip(weights),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        }
        for method, public in PUBLIC_CODE.items():
            made_with[public.repository] = unmodified_commit(checkouts[method])
            for steps in STEPS:
                results, classnames = in_new_process(record, method, checkouts[method], weights, views, steps)
                check_selection(results)
                arrays.setdefault("classnames", np.array(classnames))
                if list(arrays["classnames"]) != classnames:
                    raise SystemExit(f"{method} has other class names: {classnames}")
                for name, array in results.items():
                    arrays[f"{method}/{steps}/{name}"] = array
    arrays["ece/confidence"] = confidence
    arrays["ece/correct"] = correct
    arrays["ece/value"] = np.array(in_new_process(record_ece, checkouts["CTPT"], confidence, correct))
    arrays["made_with"] = np.array(json.dumps(made_with))
    np.savez_compressed(OUTPUT, **arrays)
    print(f"{OUTPUT}: {OUTPUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
