# SPDX-License-Identifier: Apache-2.0
"""The guest's Debian packages: one row each, with the reason where the name does not show it.

Recommended packages and kernel headers are left out: the tracer must work without them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """A Debian package (component main) of the guest."""

    name: str
    why: str = ""
    suites: tuple[str, ...] = ()
    """Only in these suites; empty: in all."""


PACKAGES = (
    # imported by the tracer
    Package("python3"),
    Package("python3-bpfcc", "bcc"),
    Package("python3-click"),
    Package("python3-rich"),
    Package("python3-pyroute2"),
    Package("python3-prometheus-client", "the command agent"),
    Package("python3-textual", "the command ui; bookworm's version is too old", suites=("trixie", "sid")),
    # imported by its tests
    Package("python3-numpy"),
    Package("python3-pytest"),
    Package("python3-jsonschema"),
    # used to read rules and owners
    Package("iptables", "iptables-legacy, iptables-nft and their -save"),
    Package("nftables"),
    Package("nfacct", "xt_nfacct rules need an accounting object first"),
    Package("ipvsadm"),
    Package("ipset"),
    Package("conntrack"),
    # scenes: namespaces, traffic
    Package("iproute2"),
    Package("iputils-ping"),
    Package("curl"),
    Package("ca-certificates", "curl"),
    Package("socat"),
    Package("netcat-openbsd"),
    Package("iperf3"),
    Package("ethtool"),
    Package("netbase", "/etc/services and /etc/protocols"),
    # ground truth and inspection
    Package("tcpdump"),
    Package("bpftool"),
    Package("strace"),
    Package("pwru", "to compare with", suites=("trixie", "sid")),
    # not in sid's minimal system
    Package("kmod", "the kernel calls modprobe when iptables and nft need a module"),
    Package("mount", "no mount, no tracefs"),
    Package("procps", "sysctl"),
    Package("passwd"),
)

BOX = (
    # for a machine that boots by itself, with DHCP and a log-in for Vagrant
    Package("systemd-sysv"),
    Package("udev"),
    Package("dbus"),
    Package("login"),
    Package("openssh-server"),
    Package("sudo"),
    Package("rsync", "the synced folder"),
    Package("python3-yaml", "kubeconfig files"),
)
"""Additional packages of a Vagrant box."""


def for_box(suite: str) -> list[str]:
    """The package names of a box of that suite, sorted."""
    return sorted({*for_suite(suite), *(p.name for p in BOX)})


def for_suite(suite: str) -> list[str]:
    """The package names of a guest of that suite, sorted."""
    return sorted(p.name for p in PACKAGES if not p.suites or suite in p.suites)
