"""promptcal inside a user's Dassl checkout: CoOp, MaPLe, KgCoOp and their kin. See README.md here.

Nothing is imported yet: `plugin` is what mends Dassl and adds to it, `__main__` runs a checkout's train.py with it.
"""
