"""The benchmark against the slow reference."""
