"""How fast the engine is, beside the slow and obvious way; behind tools/benchmark.py."""
