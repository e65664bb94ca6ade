#!/bin/sh
# Installs the programs that the tests compare with, where this runs as root on Debian; quick when
# all is there. Elsewhere the tests that need a missing one say so and are skipped.
set -eu
here=$(dirname "$0")
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not root on Debian: tests whose programs are missing will be skipped"
    exit 0
fi
wanted="squashfs-tools squashfs-tools-ng busybox-static gnupg tmux docker-registry skopeo umoci"
missing=
for package in $wanted; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    echo "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    # shellcheck disable=SC2086
    apt-get -qq install -y --no-install-recommends $missing >/dev/null
fi
sh "$here/install_apptainer.sh"
# Only the tests that compare with Harbor need it; they say so themselves where it could not be had.
sh "$here/install_harbor.sh" || true
