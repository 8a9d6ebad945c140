"""The table of settings that all methods share. Keys are Dassl's where Dassl has one.

Each method declares its own settings in its file (see `settings` in soc.py). Defaults, checks,
help, labels, run folders and records are made from these rows. To change a setting, change its row.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ...datasets.base import DATASET_REGISTRY
from ...datasets.columns import canonical_columns, is_column_choice
from ...datasets.views.geometry import OPENAI_MEAN, OPENAI_STD
from ..functional import BINS
from .registry import MethodInfo, method_key
from .schema import Check, OneOf, Range, Role, Setting, Settings, plain_number

# CoOp's key, but every method that starts from a learnt prompt reads it.
CLASS_TOKEN_POSITION = "TRAINER.COOP.CLASS_TOKEN_POSITION"
EVERY_IMAGE = ("image", "1")  # values of TTA.RESET with which nothing is carried to the next image
MEAN, SIMILARITY = "mean", "similarity"  # PROMPT.ENSEMBLE
LONGEST_LABEL = 80
AVERAGE = "Average"  # the column of averages in tables


# When a setting has an effect. These functions return "" if it has one, else what to do to give it
# one. Their arguments are all settings by their full keys, and the run's method.

def needs_training(settings: Settings, method: MethodInfo) -> str:
    """Settings of training prompts have an effect on methods that train one."""
    if method.trained:
        return ""
    return "train with --trainer CoOp, then use its prompt with --model-dir"


def needs_corruption(settings: Settings, method: MethodInfo) -> str:
    """DATASET.SEVERITY has an effect if there is a corruption."""
    if settings.get("DATASET.CORRUPTION"):
        return ""
    return "give DATASET.CORRUPTION too"


def needs_table(settings: Settings, method: MethodInfo) -> str:
    """DATASET.COLUMNS has an effect on readers of tables."""
    if takes_option(settings, "columns"):
        return ""
    return "use --dataset-config-file table or parquet"


def needs_own_images(settings: Settings, method: MethodInfo) -> str:
    """DATASET.CLASSNAMES has an effect on readers of a user's own images."""
    if takes_option(settings, "classnames"):
        return ""
    return "use --dataset-config-file table, parquet or image_folder"


def takes_option(settings: Settings, option: str) -> bool:
    """Whether the reader of the data set takes an option, such as `columns`."""
    name = str(settings.get("DATASET.NAME"))
    return name in DATASET_REGISTRY and option in DATASET_REGISTRY.get(name).options


def needs_stream(settings: Settings, method: MethodInfo) -> str:
    """TEST.ORDER has an effect on methods whose predictions depend on the order of the images."""
    if is_online(settings, method):
        return ""
    return "only online methods, such as TDA, and TTA.RESET never depend on the order of the images"


def needs_correlated_order(settings: Settings, method: MethodInfo) -> str:
    """TEST.CORRELATION has an effect on a correlated order."""
    reason = needs_stream(settings, method)
    if not reason and settings.get("TEST.ORDER") != "correlated":
        reason = "set TEST.ORDER correlated"
    return reason


def needs_own_context(settings: Settings, method: MethodInfo) -> str:
    """PROMPT.CTX_INIT has an effect unless templates, descriptions or a learnt prompt replace it.
    """
    if has_texts(settings):
        return "leave PROMPT.TEMPLATE and PROMPT.DESCRIPTIONS out"
    # The zero-shot predictions of a method that is trained are those of the hand-written prompt.
    if settings.get("MODEL.INIT_WEIGHTS") and not method.trained:
        return "leave MODEL.INIT_WEIGHTS out, which gives the prompt"
    return ""


def needs_no_texts(settings: Settings, method: MethodInfo) -> str:
    """Settings of a context have an effect unless templates or descriptions replace it."""
    if has_texts(settings):
        return "leave PROMPT.TEMPLATE and PROMPT.DESCRIPTIONS out"
    return ""


def needs_texts(settings: Settings, method: MethodInfo) -> str:
    """PROMPT.ENSEMBLE has an effect on templates and descriptions."""
    if has_texts(settings):
        return ""
    return "give PROMPT.TEMPLATE or PROMPT.DESCRIPTIONS too"


def needs_descriptions(settings: Settings, method: MethodInfo) -> str:
    """PROMPT.DESCRIPTION_FORMAT has an effect on descriptions."""
    if settings.get("PROMPT.DESCRIPTIONS"):
        return ""
    return "give PROMPT.DESCRIPTIONS too"


def needs_several_views(settings: Settings, method: MethodInfo) -> str:
    """Settings of random views have an effect if there are views besides the plain one."""
    if settings.get("TTA.VIEWS") == 1:
        return "use more TTA.VIEWS than the plain one"
    return ""


def needs_steps(settings: Settings, method: MethodInfo) -> str:
    """Settings of the step have an effect if there is one.

    Without a step a built-in method that tunes selects no views and has no optimizer.
    """
    if settings.get("TTA.STEPS") == 0 and method.tunes_by_gradients and not method.is_plugin:
        return "use TTA.STEPS 1 or more"
    return ""


def has_texts(settings: Settings) -> bool:
    """Whether templates or descriptions replace the context."""
    return bool(settings.get("PROMPT.TEMPLATE") or settings.get("PROMPT.DESCRIPTIONS"))


def is_online(settings: Settings, method: MethodInfo) -> bool:
    """Whether predictions depend on the order of the images: by the method, or by TTA.RESET."""
    return method.online or str(settings.get("TTA.RESET", "image")) not in EVERY_IMAGE


# What a default stands for, as far as the settings tell.

def augmix_of_dataset(settings: Settings) -> object:
    """Returns what TTA.AUGMIX auto stands for: what the public scripts do on the data set.

    None if the data set is not registered.
    """
    name = str(settings.get("DATASET.NAME"))
    if name not in DATASET_REGISTRY:
        return None
    return "on" if DATASET_REGISTRY.get(name).augmix else "off"


def precision_of_device(settings: Settings) -> object:
    """Returns what MODEL.PREC auto stands for: fp32 on a CPU, fp16 on a GPU."""
    device = str(settings.get("DEVICE", "auto"))
    if device == "auto":
        import torch  # takes seconds, and only a run with a precision of its own gets here

        device = "cuda" if torch.cuda.is_available() else "cpu"
    return "fp32" if device == "cpu" else "fp16"


def mean_of_backbone(settings: Settings) -> object:
    """Returns what INPUT.PIXEL_MEAN [] stands for: OpenAI's mean.

    None for other libraries, whose models tell it when they are loaded.
    """
    if is_openai(settings):
        return list(OPENAI_MEAN)
    return None


def std_of_backbone(settings: Settings) -> object:
    """Returns what INPUT.PIXEL_STD [] stands for: OpenAI's standard deviation.

    None for other libraries, whose models tell it when they are loaded.
    """
    if is_openai(settings):
        return list(OPENAI_STD)
    return None


def is_openai(settings: Settings) -> bool:
    """Whether OpenAI's code loads the backbone. Names for other libraries have a prefix, as hf:X.
    """
    return ":" not in str(settings.get("MODEL.BACKBONE.NAME"))


# Checks of single values.

def is_label(value: object) -> bool:
    """Whether a text fits into a table, and is not the name of a column that tables add."""
    text = str(value)
    if text != text.strip():  # it would look empty, or like another name
        return False
    return len(text) <= LONGEST_LABEL and text.isprintable() and text != AVERAGE


def is_number_of_shots(value: object) -> bool:
    """Whether a value is a number of training images per class, or -1 for all of them."""
    return isinstance(value, int) and (value == -1 or value > 0)


def is_reset(value: object) -> bool:
    """Whether a value of TTA.RESET is `image`, `never`, or a number of images."""
    return value in ("image", "never") or bool(re.fullmatch("[1-9][0-9]{0,8}", str(value)))


def are_pixel_means(value: object) -> bool:
    """Whether a value is empty or three means from 0 to 1."""
    return are_pixel_numbers(value, 0.0)


def are_pixel_deviations(value: object) -> bool:
    """Whether a value is empty or three standard deviations, above 0 because they divide, up to 1.
    """
    return are_pixel_numbers(value, 1e-9)


def are_pixel_numbers(value: object, lowest: float) -> bool:
    """Whether a value is empty or three numbers, of red, green and blue, from `lowest` to 1."""
    if not isinstance(value, list | tuple) or len(value) not in (0, 3):
        return False
    return all(isinstance(number, int | float) and lowest <= number <= 1 for number in value)


def are_words(value: object) -> bool:
    """Whether a text has words and no place for a class name, which only templates have."""
    text = str(value)
    return bool(text.strip(" _")) and "{" not in text


# One spelling for values that mean the same.

def one_spelling_of_words(value: object) -> object:
    """PROMPT.CTX_INIT: underscores are spaces, as TPT's scripts write them."""
    return " ".join(str(value).replace("_", " ").split())


def one_reset(value: object) -> object:
    """Returns a value of TTA.RESET in one spelling: `1` is `image`."""
    if str(value) in EVERY_IMAGE:
        return EVERY_IMAGE[0]
    return value


def one_order_of_terms(value: object) -> object:
    """Returns a value of TRAINER.REGULARISERS in one spelling.

    The order of the terms and the spelling of names and numbers do not change the method.
    """
    terms = []
    for term in str(value).split(","):
        name, colon, weight = term.partition(":")
        with suppress(ValueError):  # 2, 2.0 and 2e0 are one weight
            weight = plain_number(float(weight))
        if term.strip():
            terms.append(f"{method_key(name)}{colon}{weight.strip()}")
    return ",".join(sorted(terms))


# Words for row labels.

def reset_words(reset: object) -> str:
    """What a label adds for a value of TTA.RESET; "" if each image starts from the initial prompt.
    """
    if reset is None or str(reset) in EVERY_IMAGE:
        return ""
    if reset == "never":
        return "never reset"
    return f"reset every {reset} images"


def show_precision(value: object) -> str:
    """The words for a precision. bf16 changes probabilities visibly, so its row says so."""
    if value == "bf16":
        return "bf16 (coarse rounding)"
    return str(value)


def show_reset(reset: object) -> str:
    """When a context is reset."""
    return reset_words(reset) or "reset for each image"


def show_steps(steps: object) -> str:
    """The number of steps."""
    if steps == 1:
        return "1 step"
    return f"{steps} steps"


def show_augmix(augmix: object) -> str:
    """The words for TTA.AUGMIX, which records of views have as True or False."""
    if augmix in (True, "on"):
        return "AugMix"
    if augmix in (False, "off"):
        return "no AugMix"
    return f"AugMix {augmix}"


def show_views(views: object) -> str:
    """The number of views."""
    if views == 1:
        return "1 view"
    return f"{views} views"


def show_shots(shots: object) -> str:
    """The number of training images per class."""
    if shots == -1:
        return "all training images"
    if shots == 1:
        return "1 shot"
    return f"{shots} shots"


def show_ensemble(kind: object) -> str:
    """How the texts of a class are combined."""
    if kind == MEAN:
        return "mean feature"
    return "mean of cosines"


def show_prompt(name: object) -> str:
    """The prompt that a run starts from."""
    if name:
        return f"prompt {name}"
    return "hand-written prompt"


def show_words(words: object) -> str:
    """The words of a context."""
    if words:
        return f"“{words}”"
    return "no initial words"


def show_template(template: object) -> str:
    """The templates."""
    if template:
        return f"templates “{template}”"
    return "no templates"


def show_descriptions(name: object) -> str:
    """The file of descriptions."""
    if name:
        return f"descriptions {name}"
    return "no descriptions"


def show_terms(terms: object) -> str:
    """The terms that are added to a method."""
    return str(terms) or "no added terms"


SEVERAL_VIEWS = "methods that use several views, such as TPT and VTE"
SELECTING = "methods that select views, such as TPT and VTE"
GRADIENTS = "methods that tune by gradients, such as TPT, RTPT and TPS"
LABEL = Check(is_label, f"a name of up to {LONGEST_LABEL} printable characters, without spaces at "
                        f"its ends, not {AVERAGE}",
              good=("", "Garden birds"),
              bad=("a\nb", "x" * (LONGEST_LABEL + 1), AVERAGE, f"{AVERAGE} ", "   "))
ON_OFF_AUTO = OneOf(("auto", "on", "off"))

TABLE: Sequence[Setting] = (
    Setting(
        "SEED", 0,
        "seed of views, few-shot samples, initial prompts and the order of a stream",
        Role.DATA, Range(least=0), in_path=True, show="seed {}"),
    Setting(
        "OUTPUT_DIR", "",
        "run folder; empty = output/<dataset>/<trainer>/<backbone>/<tag>/seed<k>", Role.PLACE),
    Setting(
        "TAG", "",
        "<tag> of the run folder; empty = made of the settings that are not defaults",
        Role.PLACE),
    Setting(
        "DEVICE", "auto", "device: cpu, cuda, cuda:1, … or auto", Role.NUMERICS, rounding=True,
        auto="the GPU if there is one",
        alias=("USE_CUDA", {True: "auto", False: "cpu"})),

    Setting(
        "DATASET.NAME", "", "registered data set, such as UCF101", Role.DATA, in_path=True),
    Setting(
        "DATASET.ROOT", "data", "folder of the data sets, in CoOp's layout", Role.PLACE),
    Setting(
        "DATASET.LABEL", "", "name of the data set in tables; empty = its own name",
        Role.REPORTING, LABEL),
    Setting(
        "DATASET.NUM_SHOTS", -1,
        "number of labelled images per class for few-shot training; -1 = all", Role.METHOD,
        Check(is_number_of_shots, "-1 (all) or above 0", good=(-1, 1, 16), bad=(-2, 0)),
        effect=needs_training, show=show_shots),
    Setting(
        "DATASET.FEWSHOT_DIR", "",
        "folder for the lists of few-shot images; empty = split_fewshot/ next to the data",
        Role.PLACE),
    Setting(
        "DATASET.CORRUPTION", "",
        "corruption of ImageNetC, CIFAR10C, CIFAR100C or LandCover, such as fog; empty = none",
        Role.DATA, in_path=True),
    Setting(
        "DATASET.SEVERITY", 5, "severity of the corruption, 1 to 5", Role.DATA,
        Range(least=1, most=5, text="one of 1, 2, 3, 4, 5"), effect=needs_corruption, in_path=True,
        show="severity {}"),
    Setting(
        "DATASET.IMAGE_LIST", "",
        "file with the test images to use, such as RobustBench's 5,000 of ImageNet; empty = all",
        Role.DATA, names_file=True),
    Setting(
        "DATASET.COLUMNS", "",
        "columns of a table of your own images, such as \"image=path label=diagnosis split=fold\"; "
        "empty = usual names", Role.DATA,
        Check(is_column_choice, "pairs such as image=path label=diagnosis split=fold",
              good=("", "image=path label=diagnosis", "split=fold test=4,5"),
              bad=("path", "image=", "image=a image=b", "picture=path")),
        effect=needs_table, canonical=canonical_columns),
    Setting(
        "DATASET.CLASSNAMES", "",
        "words for the classes of your own images: a file (json, csv, txt), or "
        "NV=nevus; MEL=melanoma", Role.DATA, effect=needs_own_images, names_file=True),
    Setting(
        "DATASET.SUBSAMPLE_CLASSES", "all",
        "classes: all, or CoOp's first half (base) or second half (new)",
        Role.DATA, OneOf(("all", "base", "new")), show="{} classes"),

    Setting(
        "INPUT.SIZE", 0, "side of the views in pixels, which must be what the backbone takes",
        Role.NONE, Range(least=0), auto="what the backbone takes"),
    Setting(
        "INPUT.PIXEL_MEAN", [], "mean of red, green and blue, from 0 to 1, to normalise views",
        Role.VIEWS,
        Check(are_pixel_means, "[] (the backbone's) or three numbers up to 1",
              good=([], [0.5, 0.5, 0.5]), bad=([0.5], [2, 0, 0], ["a", "b", "c"])),
        auto="the backbone's", resolve=mean_of_backbone, show="pixel mean {}"),
    Setting(
        "INPUT.PIXEL_STD", [],
        "standard deviation of red, green and blue, from 0 to 1, to normalise views", Role.VIEWS,
        Check(are_pixel_deviations, "[] (the backbone's) or three numbers up to 1",
              good=([], [0.5, 0.5, 0.5]), bad=([0.5], [0, 0, 0], ["a", "b", "c"])),
        auto="the backbone's", resolve=std_of_backbone, show="pixel std {}"),

    Setting(
        "DATALOADER.NUM_WORKERS", -1, "number of threads that decode images and make views",
        Role.NONE, Range(least=-1), auto="the available cores (also written auto)"),
    Setting(
        "DATALOADER.ON_BAD_IMAGE", "error",
        "treatment of unreadable images: error; or skip, which leaves them out, counted and listed",
        Role.DATA, OneOf(("error", "skip"))),

    Setting(
        "MODEL.BACKBONE.NAME", "ViT-L/14",
        "backbone: OpenAI's name, small, a path, open_clip:MODEL/TAG[@FILE] or hf:FOLDER",
        Role.MODEL,
        Check(bool, "a model's name, a path to weights, open_clip:MODEL/TAG or hf:FOLDER",
              good=("ViT-B/16", "small"), bad=("",)),
        in_path=True, names_backbone=True),
    Setting(
        "MODEL.BACKBONE.LABEL", "", "name of the backbone in tables; empty = its own name",
        Role.REPORTING, LABEL),
    Setting(
        "MODEL.PREC", "auto", "precision of both towers", Role.NUMERICS,
        OneOf(("auto", "fp32", "fp16", "bf16")), show=show_precision, title="precision",
        auto="fp32 on a CPU, fp16 autocast on a GPU", resolve=precision_of_device,
        alias=("TRAINER.COOP.PREC", {"fp16": "fp16", "amp": "fp16", "fp32": "fp32"})),
    Setting(
        "MODEL.INIT_WEIGHTS", "",
        "prompt checkpoint (CoOp's format) to start from; empty = PROMPT.CTX_INIT", Role.MODEL,
        names_file=True, show=show_prompt, title="prompt"),

    Setting(
        "PROMPT.CTX_INIT", "a photo of a",
        "words before the class name; the embeddings of all their tokens are tuned", Role.MODEL,
        Check(are_words, "at least one word, without {}: the class name follows by itself",
              good=("a", "itap of a"), bad=("", " _ ", "a photo of {}")),
        effect=needs_own_context, canonical=one_spelling_of_words, show=show_words,
        title="initial prompt"),
    Setting(
        "PROMPT.TEMPLATE", "",
        "templates: coop (the data set's), ensemble, or `a {} seen from above.|…`, for methods "
        "that do not tune the context; empty = CTX_INIT", Role.MODEL, show=show_template),
    Setting(
        "PROMPT.DESCRIPTIONS", "",
        "file of descriptions, JSON {class: [text, …]} as CuPL's and DCLIP's, alone or with "
        "templates", Role.MODEL, names_file=True, show=show_descriptions),
    Setting(
        "PROMPT.DESCRIPTION_FORMAT", "auto",
        "form of the descriptions: sentences (CuPL's) or phrases (DCLIP's)", Role.MODEL,
        OneOf(("auto", "sentences", "phrases")), effect=needs_descriptions,
        auto="what most texts are", show="descriptions as {}"),
    Setting(
        "PROMPT.ENSEMBLE", MEAN,
        "combination of a class's texts: mean, the mean of their features, made unit; similarity, "
        "not made unit (mean of cosines)",
        Role.MODEL, OneOf((MEAN, SIMILARITY)), effect=needs_texts, show=show_ensemble),
    Setting(
        "PROMPT.LABEL", "", "name of the learnt prompt or the descriptions in tables",
        Role.REPORTING, LABEL),

    Setting(
        "TTA.VIEWS", 64, "number of views per image, the plain one included", Role.VIEWS,
        Range(least=1, most=1_000_000, text="a whole number from 1 to 1,000,000"),
        used_by=SEVERAL_VIEWS, show=show_views, title="number of views"),
    Setting(
        "TTA.SELECT", 0.1, "share of the views that is used, those of lowest entropy", Role.METHOD,
        Range(above=0, most=1, text="a share above 0 and up to 1"), used_by=SELECTING,
        effect=needs_steps),
    Setting(
        "TTA.STEPS", 1, "number of gradient steps per image; 0 = zero-shot", Role.METHOD,
        Range(least=0), used_by=GRADIENTS, show=show_steps, title="number of steps"),
    # The context and AdamW's moments are carried and reset together.
    Setting(
        "TTA.RESET", "image",
        "start from the initial prompt: image, at every image; never; or N, at every N images. "
        "TPT and the methods built on it are online unless it is image", Role.METHOD,
        Check(is_reset, "image, never, or a number of images, such as 10",
              good=("image", "never", "10", "1"), bad=("0", "-1", "always", "")),
        used_by=GRADIENTS, canonical=one_reset, show=show_reset, title="when the context is reset"),
    # TPT's own script has it off on ImageNet's four shifted sets too: set it to off there to
    # compare with TPT's paper.
    Setting(
        "TTA.AUGMIX", "auto", "AugMix on the views", Role.VIEWS, ON_OFF_AUTO,
        used_by=SEVERAL_VIEWS, effect=needs_several_views,
        auto="as in C-TPT's and O-TPT's scripts: off on ImageNet, on elsewhere",
        resolve=augmix_of_dataset, show=show_augmix, title="AugMix"),
    Setting(
        "TTA.EPISODES", 0,
        "number of images adapted at once; it changes speed and memory, not the method",
        Role.NUMERICS, Range(least=0), rounding=True,
        auto="8 on a CPU, 32 on a GPU (also written auto)"),
    Setting(
        "TTA.JACOBIAN", "auto",
        "Jacobian of the text features, computed once and used in the first step of every image",
        Role.NUMERICS, ON_OFF_AUTO, rounding=True,
        auto="where it is faster and takes at most 4.5 GB"),

    Setting(
        "OPTIM.LR", 0.005, "learning rate of AdamW, or of SGD with CoOp", Role.METHOD,
        Range(above=0, most=1e30, text="above 0 and at most 1e30"), used_by=GRADIENTS,
        effect=needs_steps, show="learning rate {}", title="learning rate"),
    Setting(
        "OPTIM.WEIGHT_DECAY", 0.01, "decoupled weight decay of AdamW, or weight decay of SGD with "
        "CoOp", Role.METHOD,
        Range(least=0), used_by=GRADIENTS, effect=needs_steps, show="weight decay {}",
        title="weight decay"),

    Setting(
        "TRAINER.NAME", "", "registered trainer, such as SoC", Role.METHOD, in_path=True),
    Setting(
        CLASS_TOKEN_POSITION, "end",
        "position of the class name in the prompt: end, middle or front; every method that starts "
        "from CoOp's prompts reads it", Role.MODEL,
        OneOf(("end", "middle", "front")), effect=needs_no_texts, show="class token {}"),
    Setting(
        "TRAINER.REGULARISERS", "",
        "terms added to TPT, R-TPT or TPS, as name:weight, such as ctpt:50,atpt:10", Role.METHOD,
        used_by=GRADIENTS, canonical=one_order_of_terms, show=show_terms),

    Setting(
        "TEST.BINS", BINS, "number of bins of ECE and ACE", Role.REPORTING, Range(least=1)),
    Setting(
        "TEST.SPLIT", "test", "split: test, or val for the report to fit temperature scaling",
        Role.DATA, OneOf(("test", "val"))),
    Setting(
        "TEST.PART", 64, "number of images per part; predictions are written part by part",
        Role.NUMERICS, Range(least=1), rounding=True),
    Setting(
        "TEST.LIMIT", 0, "number of test images, spread evenly over the set; 0 = all", Role.DATA,
        Range(least=0), is_limit=True, show="{} images"),
    Setting(
        "TEST.ORDER", "random",
        "order of the images for online methods: random, correlated (neighbours of a class) or "
        "sorted", Role.METHOD, OneOf(("random", "correlated", "sorted")), effect=needs_stream,
        show="{} order", title="order of the images"),
    Setting(
        "TEST.CORRELATION", 0.1,
        "γ of a correlated order, as in RoTTA: lower is more correlated; its values do not compare "
        "across data sets",
        Role.METHOD, Range(above=0, text="above 0; TEST.ORDER sorted is the limit of 0"),
        effect=needs_correlated_order, show="γ {}"),
    Setting(
        "TEST.IMBALANCE", 0.0,
        "Zipf exponent a: the class of rank r keeps 1/r^a of its images; 0 = all", Role.DATA,
        Range(least=0), show="imbalance {}"),

    Setting(
        "CACHE.DIR", "",
        "folder of cached view features, shared by all methods; empty = no cache", Role.PLACE),
)

SHARED: Mapping[str, Setting] = {row.key: row for row in TABLE}
