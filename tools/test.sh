#!/usr/bin/env bash
# Sets up .venv if needed, checks the style, runs the tests. Arguments go to pytest: bash tools/test.sh -k views
source "$(dirname "$0")/environment.sh"
echo "Checking style with ruff ..."
.venv/bin/ruff check .
echo "Running the tests in two processes (CPU, offline; some minutes; -m 'not slow' leaves out the long ones) ..."
exec .venv/bin/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder "$@"
