"""One run: its directory, lock, parts, progress and summary."""
