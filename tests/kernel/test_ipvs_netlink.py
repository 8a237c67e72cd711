# SPDX-License-Identifier: Apache-2.0
"""Virtual servers and sets that kube-proxy's ipvs mode made are read over netlink."""

from __future__ import annotations

import re

from tests.kernel import restored
from tests.support.nodes import node
from tracer.node.machine import Machine
from tracer.rules import backends, ipset
from tracer.rules.ipvs.netlink import IpvsSocket

RECORDED_NODE = node("1.20.2-ipvs-nft", "S2-three")


def test_servers_and_sets_are_read_as_made(node: None) -> None:
    restored.put(RECORDED_NODE, "ipvs")
    try:
        with IpvsSocket() as socket:
            servers = {(s.address, s.port, s.protocol, s.scheduler): s for s in socket.virtual_servers()}
            real_servers = {key[:2]: {(r.address, r.port) for r in socket.real_servers(s)} for key, s in servers.items()}
        made = re.findall(r"^-A -t ([\d.]+):(\d+) -s (\w+)", RECORDED_NODE.files["ipvsadm-save"], re.M)
        assert set(servers) == {(address, int(port), "tcp", scheduler) for address, port, scheduler in made}
        real = re.findall(r"^-a -t ([\d.]+):(\d+) -r ([\d.]+):(\d+)", RECORDED_NODE.files["ipvsadm-save"], re.M)
        assert {(v, int(p), r, int(q)) for v, p, r, q in real} == {(*v, *r) for v, rs in real_servers.items() for r in rs}
        sets = {s.name: s.kind for s in ipset.sets()}
        assert sets.items() >= dict(re.findall(r"^create (\S+) (\S+)", RECORDED_NODE.files["ipset-save"], re.M)).items()
        assert {s.name: s.entries for s in ipset.sets()}["KUBE-LOOP-BACK"] == 3
        facts = {f.subject: f for f in backends.gather(Machine(), nft_loaded=True)}
        assert facts["IPVS"].text == f"{len(servers)} virtual servers (rr)" and "sets, " in facts["ipset"].text
    finally:
        restored.plain()
