"""The report's HTML page."""
