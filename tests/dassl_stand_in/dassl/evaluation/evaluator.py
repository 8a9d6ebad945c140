"""Accuracy, printed in the lines that parse_test_res.py reads."""
from collections import OrderedDict

import sklearn  # noqa: F401 (Dassl's own needs it)

from dassl.utils import Registry

EVALUATOR_REGISTRY = Registry("EVALUATOR")


def build_evaluator(cfg, **kwargs):
    return EVALUATOR_REGISTRY.get(cfg.TEST.EVALUATOR)(cfg, **kwargs)


@EVALUATOR_REGISTRY.register()
class Classification:
    def __init__(self, cfg, lab2cname=None, **kwargs):
        self.cfg, self._lab2cname = cfg, lab2cname
        self._y_true, self._y_pred = [], []

    def reset(self):
        self._y_true, self._y_pred = [], []

    def process(self, mo, gt):
        self._y_true += gt.tolist()
        self._y_pred += mo.argmax(1).tolist()

    def evaluate(self):
        total = len(self._y_true)
        correct = sum(a == b for a, b in zip(self._y_true, self._y_pred, strict=True))
        accuracy = 100 * correct / total
        print(f"=> result\n* total: {total:,}\n* correct: {correct:,}\n* accuracy: {accuracy:.1f}%")
        return OrderedDict(accuracy=accuracy, error_rate=100 - accuracy)
