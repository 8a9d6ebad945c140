from .lr_scheduler import build_lr_scheduler

__all__ = ["build_lr_scheduler"]
