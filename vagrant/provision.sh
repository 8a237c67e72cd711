#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Turns a public Debian box into a machine like those of vagrant/box: `provision.sh kernel 5.10`, and after a reboot
# `provision.sh packages 5.10`. The checkout is in /vagrant.
set -eu
what=$1 kernel=$2
export DEBIAN_FRONTEND=noninteractive
. /etc/os-release
case $kernel in
    5.10) suite=bullseye ;;
    6.1) suite=bookworm ;;
    6.12) suite=trixie ;;
    7.2) suite=sid ;;
esac

if [ "$what" = kernel ]; then
    if [ "$suite" != "$VERSION_CODENAME" ]; then
        # Only the kernel comes from that suite, and packages that are requested by name.
        echo "deb http://deb.debian.org/debian $suite main" >/etc/apt/sources.list.d/kernel.list
        printf 'Package: *\nPin: release n=%s\nPin-Priority: 50\n' "$suite" >/etc/apt/preferences.d/kernel
    fi
    apt-get -qq update
    # Newer kernel packages use options of debianutils' run-parts that bookworm's version does not have.
    apt-get -qq install --no-install-recommends -t "$suite" linux-image-amd64 debianutils >/dev/null
    newest=$(ls /boot/vmlinuz-"$kernel".* | sort -V | tail -n 1)
    # GRUB starts the newest installed kernel; this selects the requested one by name.
    sed -i '/^GRUB_DEFAULT=/d' /etc/default/grub
    echo "GRUB_DEFAULT=\"Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux ${newest#/boot/vmlinuz-}\"" >>/etc/default/grub
    update-grub
else
    case $(uname -r) in
        "$kernel".*) ;;
        *) echo "provision: this is Linux $(uname -r), not $kernel" >&2; exit 1 ;;
    esac
    names=$(cd /vagrant/vagrant && python3 -c "from lab import packages; print(*packages.for_box('$VERSION_CODENAME'))")
    # shellcheck disable=SC2086  # a list of words
    apt-get -qq install --no-install-recommends $names >/dev/null
    for command in k8snet-trace incident; do ln -sf "/vagrant/vagrant/lab/guest/bin/$command" /usr/local/bin/; done
fi
