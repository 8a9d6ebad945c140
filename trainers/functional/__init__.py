"""Formulas as pure functions: objectives, calibration metrics, post-hoc scaling, conformal sets, theory."""

BINS = 20  # of ECE, ACE and MCE by default; here because settings need it without torch
