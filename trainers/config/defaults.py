"""Every setting with its default and its meaning. Keys are Dassl's where Dassl has one.

Each method adds its own branch under `TRAINER` (see `extend_defaults` in its file).
"""
from __future__ import annotations

from collections.abc import Iterable

from yacs.config import CfgNode

from ..functional import BINS
from ..registry import TRAINER_REGISTRY


def get_cfg_default(methods: Iterable[str] = TRAINER_REGISTRY) -> CfgNode:
    """A fresh copy of all defaults, with those of the given methods."""
    cfg = CfgNode()
    cfg.SEED = 0  # of views, few-shot samples and initial prompts; 0 or more
    cfg.OUTPUT_DIR = ""  # run folder; "" = output/<dataset>/<trainer>/<backbone>/<tag>/seed<k> below the current folder
    cfg.TAG = ""  # the <tag> of the run folder; "" = from the settings that differ from the defaults
    cfg.DEVICE = "auto"  # auto = the GPU if there is one; or cpu, cuda, cuda:1, ...

    cfg.DATASET = CfgNode()
    cfg.DATASET.NAME = ""  # a registered data set, such as UCF101
    cfg.DATASET.ROOT = "data"  # folder of the data sets, in CoOp's layout
    cfg.DATASET.NUM_SHOTS = -1  # labelled images per class for few-shot training; -1 = all
    cfg.DATASET.FEWSHOT_DIR = ""  # folder for the lists of few-shot images; "" = split_fewshot/ next to the data
    cfg.DATASET.CORRUPTION = ""  # of ImageNetC, CIFAR10C, CIFAR100C or LandCover, such as fog; "" = none
    cfg.DATASET.SEVERITY = 5  # of the corruption, 1 to 5
    cfg.DATASET.IMAGE_LIST = ""  # file with the test images to use, such as RobustBench's 5,000 of ImageNet; "" = all
    cfg.DATASET.SUBSAMPLE_CLASSES = "all"  # all, or CoOp's first half (base) or second half (new) of the classes

    cfg.INPUT = CfgNode()
    cfg.INPUT.SIZE = 0  # side of the views in pixels; 0 = what the backbone takes
    cfg.INPUT.PIXEL_MEAN = []  # of red, green and blue, from 0 to 1, to normalise views; [] = the backbone's
    cfg.INPUT.PIXEL_STD = []  # their standard deviations

    cfg.DATALOADER = CfgNode()
    cfg.DATALOADER.NUM_WORKERS = -1  # threads that decode images and make views; auto (-1) = the available cores
    cfg.DATALOADER.ON_BAD_IMAGE = "error"  # error, or skip: leave unreadable images out, counted and listed

    cfg.MODEL = CfgNode()
    cfg.MODEL.BACKBONE = CfgNode()
    cfg.MODEL.BACKBONE.NAME = "ViT-L/14"  # OpenAI's name, "small", a path, open_clip:MODEL/TAG[@FILE] or hf:FOLDER
    cfg.MODEL.PREC = "auto"  # auto = fp32 on CPU, fp16 autocast on CUDA; or fp32, fp16, bf16
    cfg.MODEL.INIT_WEIGHTS = ""  # prompt checkpoint (CoOp's format) to start from; "" = PROMPT.CTX_INIT

    cfg.PROMPT = CfgNode()
    # All tokens of a word ("itap" in "itap of a") are tuned. The public code tunes as many tokens as there are words.
    cfg.PROMPT.CTX_INIT = "a photo of a"  # words before the class name; their token embeddings are tuned
    # These replace CTX_INIT where the context is not tuned: ZeroShot, TPS, ZERO, MTA, VTE and the online methods.
    cfg.PROMPT.TEMPLATE = ""  # coop (the data set's), ensemble, or `a {} seen from above.|...`; "" = CTX_INIT
    cfg.PROMPT.DESCRIPTIONS = ""  # JSON file {class: [text, ...]}, as CuPL's and DCLIP's, alone or with templates
    cfg.PROMPT.DESCRIPTION_FORMAT = "auto"  # sentences (CuPL), phrases (DCLIP), or auto = what most texts are
    cfg.PROMPT.ENSEMBLE = "mean"  # of a class's text features, made unit; similarity: not made unit (mean of cosines)

    cfg.TTA = CfgNode()  # test-time adaptation
    cfg.TTA.VIEWS = 64  # views per image, the plain one included
    cfg.TTA.SELECT = 0.1  # share of the views kept, those of lowest entropy
    cfg.TTA.STEPS = 1  # gradient steps per image; 0 = zero-shot
    # The context and AdamW's moments are carried and reset together. Otherwise TPT and its family are online.
    cfg.TTA.RESET = "image"  # image: every image starts from the initial prompt; never; or N: every N images
    # auto: off on ImageNet and on elsewhere, as in C-TPT's and O-TPT's scripts. TPT's own script has it off on
    # ImageNet's four shifted sets too: set it to off there to compare with TPT's paper.
    cfg.TTA.AUGMIX = "auto"  # on, off, or auto = as the data set's public scripts have it
    cfg.TTA.EPISODES = 8  # images adapted at once; changes speed and memory, not the method
    cfg.TTA.JACOBIAN = "auto"  # use the text features' Jacobian: on, off, or auto = where it is faster and fits
    cfg.TTA.JACOBIAN_GB = 4.5  # memory limit of the Jacobian; ViT-B/16's for ImageNet's 1000 classes takes 4.2

    cfg.OPTIM = CfgNode()
    cfg.OPTIM.NAME = "adamw"  # optimizer of the context
    cfg.OPTIM.LR = 0.005  # learning rate
    cfg.OPTIM.WEIGHT_DECAY = 0.01  # decoupled weight decay

    cfg.TRAINER = CfgNode()
    cfg.TRAINER.NAME = ""  # a registered trainer, such as SoC
    cfg.TRAINER.COOP = CfgNode()
    cfg.TRAINER.COOP.CLASS_TOKEN_POSITION = "end"  # or middle, front; read by every method that loads CoOp's prompts
    cfg.TRAINER.REGULARISERS = ""  # terms added to TPT, R-TPT or TPS, as name:weight, such as ctpt:50,atpt:10

    cfg.TEST = CfgNode()
    cfg.TEST.BINS = BINS  # of ECE and ACE
    cfg.TEST.SALS = False  # also measure SaLS-scaled logits
    cfg.TEST.SPLIT = "test"  # or val, for the report to fit temperature scaling
    cfg.TEST.PART = 64  # images per part: predictions are written part by part, so a kill costs at most one
    cfg.TEST.LIMIT = 0  # number of test images, spread evenly over the set; 0 = all
    cfg.TEST.ORDER = "random"  # of the images for online methods: random, correlated (neighbours of a class) or sorted
    cfg.TEST.CORRELATION = 0.1  # of a correlated order, RoTTA's γ: lower is more correlated; not comparable across sets
    cfg.TEST.IMBALANCE = 0.0  # Zipf exponent a: the class of rank r keeps 1/r^a of its images; 0 = all

    cfg.CACHE = CfgNode()
    cfg.CACHE.DIR = ""  # folder of cached view features, shared by all methods; "" = no cache

    for name in methods:
        TRAINER_REGISTRY.get(name).extend_defaults(cfg)
    return cfg
