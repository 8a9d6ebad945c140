"""The embedded small CLIP: its weights, prompts and training."""
