"""What `tools/doctor.py` looks at: the machine, how fast each part of a run is on it, whether its numbers are right."""
