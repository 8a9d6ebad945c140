# Sourced by demo.sh and test.sh with "demo" or "tests": makes .venv with what the demo needs, or with what the tests
# need as well. Done once, and again when the dependencies in pyproject.toml, its commands or setup.py change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { echo "error: $1" >&2; exit 1; }

python=$(command -v python3 || command -v python) || fail "Python 3.11 or newer is needed"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or newer is needed, this is $("$python" --version)"

pip_install() { # shows one line per large package; pip's own output goes to a log, which is shown when pip fails
    .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off "$@" 2>&1 | tee -a "$log" |
        awk '/^ *Downloading .*MB/ { print "  " $2, $3, $4; fflush() } /^Installing/ { print "  installing"; fflush() }'
}

requirements() { # what an installation depends on; not the settings of ruff, mypy and pytest
    cat setup.py
    "$python" - <<'END'
import tomllib
from pathlib import Path

settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
print(settings["build-system"]["requires"])
for table in ("dependencies", "optional-dependencies", "scripts"):
    print(table, settings["project"][table])
END
}

install() { # demo or tests
    local version stamp packages=.
    version=$(requirements | cksum | tr ' ' '-')
    stamp=.venv/installed-$1-$version log=.venv/setup.log
    if [ -f "$stamp" ] && .venv/bin/python -c '' 2> /dev/null; then return; fi
    echo "Setting up .venv: PyTorch, CLIP and the rest, about 5 GB, a few minutes (again when dependencies change) ..."
    # An interrupted attempt may have left a .venv without pip.
    .venv/bin/python -m pip --version > /dev/null 2>&1 || "$python" -m venv --clear .venv || fail "cannot make .venv"
    : > "$log"
    [ "$1" = demo ] || packages=".[dev]"
    if ! pip_install --upgrade pip || ! pip_install --editable "$packages"; then
        grep -iE '^ *error' "$log" | head -3 >&2 || true
        fail "pip could not install what pyproject.toml asks for: check the network and pip's settings ($log), then run this again"
    fi
    .venv/bin/python -c 'from promptcal.trainers import adapt' # names what is missing if the installation failed
    find .venv -maxdepth 1 -name 'installed-*' ! -name "*-$version" -delete
    touch ".venv/installed-demo-$version" "$stamp"
    echo "Environment ready."
}

install "$1"
