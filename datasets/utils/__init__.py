"""What everything stands on: errors, registries, whole files, the frame of a command. Nothing here needs torch."""
