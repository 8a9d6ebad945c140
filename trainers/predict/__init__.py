"""A user's own images, classified before and after tuning."""
