"""promptcal inside a Dassl checkout such as CoOp, MaPLe or KgCoOp: see README.md in this folder."""
