"""A warm-up followed by a cosine scheduler, which its state contains as a live object."""
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler


class _BaseWarmupScheduler(LRScheduler):
    def __init__(self, optimizer, successor, warmup_epoch, last_epoch=-1, verbose=False):
        self.successor, self.warmup_epoch = successor, warmup_epoch
        super().__init__(optimizer, last_epoch, verbose)

    def step(self, epoch=None):
        if self.last_epoch >= self.warmup_epoch:
            self.successor.step(epoch)
            self._last_lr = self.successor.get_last_lr()
        else:
            super().step(epoch)


class ConstantWarmupScheduler(_BaseWarmupScheduler):
    def __init__(self, optimizer, successor, warmup_epoch, cons_lr, last_epoch=-1, verbose=False):
        self.cons_lr = cons_lr
        super().__init__(optimizer, successor, warmup_epoch, last_epoch, verbose)

    def get_lr(self):
        warm = self.last_epoch < self.warmup_epoch
        return [self.cons_lr for _ in self.base_lrs] if warm else self.successor.get_last_lr()


def build_lr_scheduler(optimizer, cfg):
    cosine = CosineAnnealingLR(optimizer, float(cfg.MAX_EPOCH))
    if cfg.WARMUP_EPOCH <= 0:
        return cosine
    return ConstantWarmupScheduler(optimizer, cosine, cfg.WARMUP_EPOCH, cfg.WARMUP_CONS_LR)
