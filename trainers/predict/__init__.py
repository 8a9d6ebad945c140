"""A user's own images, classified before and after tuning; and a whole run from Python."""
