"""Defaults: the keys that the tests use."""
from yacs.config import CfgNode

cfg_default = CfgNode({
    "OUTPUT_DIR": "./output", "RESUME": "", "SEED": -1, "USE_CUDA": True, "VERBOSE": True,
    "INPUT": {"SIZE": (224, 224), "TRANSFORMS": (), "INTERPOLATION": "bilinear"},
    "DATASET": {"ROOT": "", "NAME": "", "NUM_SHOTS": -1, "SOURCE_DOMAINS": (), "TARGET_DOMAINS": ()},
    "DATALOADER": {"NUM_WORKERS": 4, "TRAIN_X": {"BATCH_SIZE": 32}, "TEST": {"BATCH_SIZE": 32}},
    "MODEL": {"INIT_WEIGHTS": "", "BACKBONE": {"NAME": ""}},
    "OPTIM": {"NAME": "adam", "LR": 0.0003, "WEIGHT_DECAY": 5e-4, "MOMENTUM": 0.9, "MAX_EPOCH": 10,
              "WARMUP_EPOCH": -1, "WARMUP_CONS_LR": 1e-5},
    "TRAIN": {"PRINT_FREQ": 10},
    "TEST": {"EVALUATOR": "Classification", "PER_CLASS_RESULT": False, "SPLIT": "test", "FINAL_MODEL": "last_step"},
    "TRAINER": {"NAME": ""},
})


def get_cfg_default():
    return cfg_default.clone()
