"""The record of one run."""
