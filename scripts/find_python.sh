#!/bin/sh
# Prints a Python that can make poolmgr's virtual environment: 3.11 or newer, with venv; the newest
# of the versions that CI has seen, else any newer one. PYTHON=… in the environment decides instead.
set -eu
good() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}
for python in ${PYTHON:-python3.13 python3.12 python3.11 python3 python3.14 python3.15}; do
    # Tried, not only looked up: a version manager's stand-in may be on PATH without the version.
    if path=$(command -v "$python") && good "$path"; then
        echo "$path"
        exit 0
    fi
done
echo "poolmgr needs Python 3.11 or newer with venv (on Debian: apt-get install python3 python3-venv)" >&2
exit 1
