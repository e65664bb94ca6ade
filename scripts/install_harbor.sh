#!/bin/sh
# Puts the real Harbor into a virtual environment of its own, for the tests that compare with it.
#   scripts/install_harbor.sh [FOLDER]      FOLDER: .harbor beside this script's folder
# Harbor needs Python 3.12 or newer. Interpreters are found by trying them: those on PATH, pyenv's,
# and Debian's python3 (installed by apt where this runs as root and nothing else is there).
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$root/.harbor}
version=0.26.0
legacy=0.17.0

if [ -x "$folder/bin/python" ] && [ -f "$folder/ready-$version-$legacy" ]; then
    echo "Harbor $version is ready in $folder"
    exit 0
fi

good() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' 2>/dev/null
}

find_python() {
    for python in python3.13 python3.12 python3.14 python3; do
        path=$(command -v "$python" 2>/dev/null) && good "$path" && { echo "$path"; return; }
    done
    # HOME may be another than the one that pyenv lies in
    pyenv=$(command -v pyenv || true) shim=$(command -v python3 || true)
    for python in "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.1[2-9]*/bin/python3 \
        "${pyenv%/bin/pyenv}"/versions/3.1[2-9]*/bin/python3 \
        "${shim%/shims/python3}"/versions/3.1[2-9]*/bin/python3 /usr/bin/python3; do
        [ -x "$python" ] && good "$python" && { echo "$python"; return; }
    done
    return 1
}

python=$(find_python) || {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq python3 python3-venv >&2
    fi
    python=$(find_python) || {
        echo "Harbor needs Python 3.12 or newer with venv, and none was found" >&2
        exit 1
    }
}

echo "setting Harbor $version up in $folder with $python"
rm -rf "$folder"
"$python" -m venv "$folder"
"$folder/bin/pip" install --quiet "harbor==$version"
# Of the old Harbor only one file is used, so nothing that it depends on is needed.
"$folder/bin/pip" install --quiet --no-deps --target "$folder/legacy" "harbor==$legacy"
touch "$folder/ready-$version-$legacy"
echo "Harbor $version is ready in $folder"
