# Sourced by demo.sh and test.sh: makes the virtual environment .venv once, and again when setup.py changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$(command -v python3 || command -v python) || { echo "error: Python 3.11 or newer is needed" >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "error: Python 3.11 or newer is needed, this is $("$python" --version)" >&2; exit 1; }

stamp=".venv/installed-$(cksum < setup.py | tr ' ' '-')"
if [ ! -f "$stamp" ]; then
    echo "Setting up .venv: PyTorch, CLIP and the rest, about 5 GB, a few minutes (once) ..."
    # An interrupted attempt may have left a .venv without pip.
    .venv/bin/python -m pip --version > /dev/null 2>&1 || "$python" -m venv --clear .venv
    .venv/bin/python -m pip install --quiet --upgrade pip
    .venv/bin/python -m pip install --progress-bar on --editable ".[dev]" |
        grep --line-buffered -E '^(Downloading|Installing|Successfully)' || [ "${PIPESTATUS[0]}" -eq 0 ] ||
        { echo "error: pip could not install what setup.py asks for, see above; run this again once it can" >&2; exit 1; }
    .venv/bin/python -c 'from promptcal.trainers import adapt' # says what is missing if the installation failed
    touch "$stamp"
    echo "Environment ready."
fi
