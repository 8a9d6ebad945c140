"""A user's own pictures, classified before and after tuning."""
