"""Shared utilities: errors, registries, file access, command-line entry points.

Nothing here imports torch.
"""
