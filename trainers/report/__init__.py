"""Many finished runs: read, measured, compared, laid out as tables, figures and a page."""
