#!/usr/bin/env bash
# Sets up .venv if needed, then runs the demo. Arguments go to tools/demo.py.
source "$(dirname "$0")/environment.sh" demo
exec .venv/bin/python tools/demo.py "$@"
