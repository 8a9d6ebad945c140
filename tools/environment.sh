# Sourced by demo.sh and test.sh: makes the virtual environment .venv once, and again when setup.py changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { echo "error: $1" >&2; exit 1; }

python=$(command -v python3 || command -v python) || fail "Python 3.11 or newer is needed"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or newer is needed, this is $("$python" --version)"

# pip's lines as one that moves on, or, where nobody watches, one for each of the larger packages.
progress() {
    local count=0 verb what rest
    while read -r verb what rest; do
        case $verb in
            Collecting | Downloading | Using) count=$((count + 1)) ;;
            Installing) what="installing what was fetched" rest="" ;;
            *) continue ;;
        esac
        if [ -t 1 ]; then
            printf '\r\033[K  %3d  %s' "$count" "${what:0:60}"
        elif [[ $rest == *MB* || $verb == Installing ]]; then
            echo "  $what $rest"
        fi
    done
    [ ! -t 1 ] || printf '\r\033[K'
}

pip_install() { # its own words, build tools' banners included, go to a log and are shown when it fails
    .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off "$@" 2>&1 | tee -a "$log" | progress
}

stamp=".venv/installed-$(cat setup.py pyproject.toml | cksum | tr ' ' '-')"
log=.venv/setup.log
if [ ! -f "$stamp" ] || ! .venv/bin/python -c '' 2> /dev/null; then
    if compgen -G '.venv/installed-*' > /dev/null; then
        echo "setup.py has changed: bringing .venv up to date ..."
    else
        echo "Setting up .venv: PyTorch, CLIP and the rest, about 5 GB, a few minutes (once) ..."
    fi
    # An interrupted attempt may have left a .venv without pip.
    .venv/bin/python -m pip --version > /dev/null 2>&1 || "$python" -m venv --clear .venv || fail "cannot make .venv"
    : > "$log"
    if ! pip_install --upgrade pip || ! pip_install --editable ".[dev]"; then
        if grep -qiE 'connection (broken|error|refused|timed)|name resolution|max retries|read timed out|ProxyError' "$log"
        then fail "the package index is not reached: check the network or pip's settings, then run this again ($log)"
        fi
        grep -iE '^ *error' "$log" | head -3 >&2 || true
        fail "pip could not install what setup.py asks for ($log has all it said); run this again once it can"
    fi
    .venv/bin/python -c 'from promptcal.trainers import adapt' # says what is missing if the installation failed
    rm -f .venv/installed-*
    touch "$stamp"
    echo "Environment ready."
fi
