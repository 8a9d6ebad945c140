"""promptcal inside a Dassl checkout such as CoOp, MaPLe or KgCoOp. See README.md in this folder.

This package imports nothing: `plugin` patches Dassl and extends it, `__main__` runs a checkout's train.py with it.
"""
