#!/usr/bin/env bash
# Sets up .venv if needed, checks style and types, runs the tests. Arguments go to pytest: bash tools/test.sh -k views
source "$(dirname "$0")/environment.sh" tests
echo "Checking style with ruff ..."
.venv/bin/ruff check .
echo "Checking types with mypy (about a minute, later calls a few seconds) ..."
.venv/bin/mypy
echo "Running the tests in two processes (CPU, offline; some minutes; -m 'not slow' omits the long ones) ..."
exec .venv/bin/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder "$@"
