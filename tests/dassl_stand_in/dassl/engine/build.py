from dassl.utils import Registry

TRAINER_REGISTRY = Registry("TRAINER")


def build_trainer(cfg):
    return TRAINER_REGISTRY.get(cfg.TRAINER.NAME)(cfg)
