"""One run: its record, folder, parts, progress and summary."""
