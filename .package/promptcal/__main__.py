"""`python -m promptcal train ...`, where the command `promptcal` is not on the path."""
from promptcal.tools.command import run

if __name__ == "__main__":
    run()
