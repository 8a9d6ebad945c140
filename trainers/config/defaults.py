"""Every setting with its default and its meaning. Keys are Dassl's where Dassl has one.

Each method adds its own branch under `TRAINER` (see `extend_defaults` in its file).
"""
from __future__ import annotations

from yacs.config import CfgNode

from ..registry import TRAINER_REGISTRY


def get_cfg_default() -> CfgNode:
    """A fresh copy of all defaults, those of every registered method included."""
    cfg = CfgNode()
    cfg.SEED = 0  # views, few-shot samples and initial prompts follow from it; any whole number from 0
    cfg.OUTPUT_DIR = ""  # run folder; "" = output/<dataset>/<trainer>/<backbone>/<tag>/seed<k> below the current folder
    cfg.TAG = ""  # the <tag> of the run folder; "" = made from the settings that differ from the defaults
    cfg.DEVICE = "auto"  # auto = the GPU if there is one; or cpu, cuda, cuda:1, ...

    cfg.DATASET = CfgNode()
    cfg.DATASET.NAME = ""  # a registered data set, such as UCF101
    cfg.DATASET.ROOT = "data"  # folder that holds the data sets in CoOp's layout
    cfg.DATASET.NUM_SHOTS = -1  # labelled images a class for few-shot training; -1 = all
    cfg.DATASET.FEWSHOT_DIR = ""  # folder for the lists of few-shot images; "" = split_fewshot/ beside the data
    cfg.DATASET.SUBSAMPLE_CLASSES = "all"  # all, or CoOp's first half (base) or second half (new) of the classes

    cfg.INPUT = CfgNode()
    cfg.INPUT.SIZE = 0  # side of the views in pixels; 0 = what the backbone takes
    cfg.INPUT.PIXEL_MEAN = []  # of red, green and blue, from 0 to 1, that views are normalised by; [] = the backbone's
    cfg.INPUT.PIXEL_STD = []  # their deviations

    cfg.DATALOADER = CfgNode()
    cfg.DATALOADER.NUM_WORKERS = 2  # processes that decode images, or auto (-1) = the cores at hand, shared among ranks
    cfg.DATALOADER.JPEG = "pillow"  # or device: views' JPEGs are decoded on the GPU, some pixels a few levels off
    cfg.DATALOADER.ON_BAD_IMAGE = "error"  # error, or skip: leave unreadable images out, counted and listed

    cfg.MODEL = CfgNode()
    cfg.MODEL.BACKBONE = CfgNode()
    cfg.MODEL.BACKBONE.NAME = "ViT-L/14"  # OpenAI's name, "small", a path, open_clip:MODEL/TAG[@FILE] or hf:FOLDER
    cfg.MODEL.ACTIVATION = ""  # quick_gelu or gelu, for a weight file that does not say; "" = the file says
    cfg.MODEL.HEAD_WIDTH = 0  # numbers a head of an image tower wider than 1024, for such a file; 0 = 64
    cfg.MODEL.PREC = "auto"  # auto = fp32 on CPU, fp16 autocast on CUDA; or fp32, fp16, bf16
    cfg.MODEL.INIT_WEIGHTS = ""  # prompt checkpoint (CoOp's format) to start from; "" = PROMPT.CTX_INIT

    cfg.PROMPT = CfgNode()
    # Of a word of several tokens ("itap" in "itap of a") all are tuned; the public code counts words and tunes as many
    # tokens as there are words, from the first on.
    cfg.PROMPT.CTX_INIT = "a photo of a"  # words before the class name; their token embeddings are what is tuned
    cfg.PROMPT.TEMPLATE = ""  # ZeroShot: coop (the data set's), ensemble, or `a {} seen from above.|...`; "" = CTX_INIT

    cfg.TTA = CfgNode()  # test-time adaptation
    cfg.TTA.VIEWS = 64  # views an image, the plain one included
    cfg.TTA.SELECT = 0.1  # share of the views kept, those of lowest entropy
    cfg.TTA.STEPS = 1  # gradient steps an image; 0 = zero-shot
    # auto: off on ImageNet and on everywhere else, as C-TPT's and O-TPT's scripts have it. TPT's own script has it off
    # on ImageNet's four shifted sets too: give off there to compare with TPT's paper.
    cfg.TTA.AUGMIX = "auto"  # on, off, or auto = as the data set's public scripts have it
    cfg.TTA.EPISODES = 8  # images adapted at once; changes speed and memory, not the method
    cfg.TTA.JACOBIAN = "auto"  # make the text features' Jacobian: on, off, or auto = where it pays and fits
    cfg.TTA.JACOBIAN_GB = 4.5  # the most memory it may take; ViT-B/16's of ImageNet's 1000 classes takes 4.2

    cfg.OPTIM = CfgNode()
    cfg.OPTIM.NAME = "adamw"  # optimizer of the context
    cfg.OPTIM.LR = 0.005  # learning rate
    cfg.OPTIM.WEIGHT_DECAY = 0.01  # decoupled weight decay

    cfg.TRAINER = CfgNode()
    cfg.TRAINER.NAME = ""  # a registered trainer, such as SoC
    cfg.TRAINER.REGULARISERS = ""  # terms added to TPT, R-TPT or TPS, as name:weight, such as ctpt:50,atpt:10

    cfg.TEST = CfgNode()
    cfg.TEST.BINS = 20  # bins of ECE and ACE
    cfg.TEST.SALS = False  # report SaLS-scaled logits beside the plain ones
    cfg.TEST.SPLIT = "test"  # or val: predictions that the report fits temperature scaling on
    cfg.TEST.PART = 64  # images whose predictions are written to disk at once: the most that a kill can cost
    cfg.TEST.LIMIT = 0  # n test images spread evenly over the set, for a quick look; 0 = all

    cfg.CACHE = CfgNode()
    cfg.CACHE.DIR = ""  # folder for view features, shared by all methods; "" = no cache

    for name in TRAINER_REGISTRY:
        TRAINER_REGISTRY.get(name).extend_defaults(cfg)
    return cfg
