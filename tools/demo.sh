#!/usr/bin/env bash
# Sets up .venv if needed, then runs the main job on the embedded default. Arguments go to tools/demo.py.
source "$(dirname "$0")/environment.sh"
exec .venv/bin/python tools/demo.py "$@"
