"""CLIP: loading, prompts, towers."""
