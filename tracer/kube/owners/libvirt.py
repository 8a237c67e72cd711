# SPDX-License-Identifier: Apache-2.0
"""libvirt: chains LIBVIRT_* of its networks, tables libvirt_network since 10.4, chains of its filters for guests.

Source: libvirt src/network/network_iptables.c, network_nftables.c, src/nwfilter/nwfilter_ebiptables_driver.c.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.owners.by_name import ExactNames
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

NAMES = ExactNames(
    "libvirt",
    chains=re.compile(r"LIBVIRT_(INP|OUT|FWI|FWO|FWX|PRT)|libvirt-(in|out|in-post|host-in)"),
    tables=frozenset({"libvirt_network"}),
)


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    return NAMES.owner(rule)
