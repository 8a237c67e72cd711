#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what a checkout needs on Debian or Ubuntu: packages to build and boot the lab's machines (apt, as root), and a
# virtual environment with the development tools (pip). Prints nothing when everything is installed.
#   setup.sh VENV [PACKAGE]...     PACKAGE: installed, too
set -eu
venv=$1
shift

# virtiofsd is in qemu-system-common on Debian 12, and in its own package since then.
need="mmdebstrap e2fsprogs kmod busybox-static lz4 zstd xz-utils qemu-system-x86 qemu-system-common python3-venv gcc libc6-dev $*"
missing=
for package in $need; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ ! -x /usr/lib/qemu/virtiofsd ] && [ ! -x /usr/libexec/virtiofsd ]; then
    apt-cache show virtiofsd >/dev/null 2>&1 && missing="$missing virtiofsd"
fi
# The library of --filter; newer releases name it libpcap0.8t64, and provide this name.
ls /usr/lib/*/libpcap.so.* >/dev/null 2>&1 || missing="$missing libpcap0.8"
if [ -n "$missing" ]; then
    echo "installing:$missing"
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get update -qq
    # shellcheck disable=SC2086  # a list of words
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

if [ ! -x "$venv/bin/ruff" ] || [ ! -x "$venv/bin/mypy" ] || [ ! -x "$venv/bin/kubernetes-validate" ] ||
    [ ! -x "$venv/bin/kubectl" ] || ! "$venv/bin/python" -c 'import perfetto, prometheus_client, websockets' 2>/dev/null; then
    echo "installing the development tools into $venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -qqq --disable-pip-version-check -e '.[dev]'
fi
