"""The small CLIP that ships with the package: its weights, prompts and training."""
