"""What of the benchmarks lies below a data root, and how to get the rest."""
