# SPDX-License-Identifier: Apache-2.0
"""A packet that goes into a VXLAN on one node and comes out on another one of this machine is one packet, also after DNAT."""

from __future__ import annotations

from scenes import servers, topology, traffic
from tests.kernel.sides import also_rules
from tests.kernel.test_timelines import only, packet_entries, stages
from tests.kernel.test_timelines_ways import INNER_FAR, tunnel
from tests.kernel.timeline_runs import follow
from tests.kernel.watching import Watch

NODE_PORT, FAR = 30999, 9143


def test_a_pod_of_another_node_behind_a_node_port(watch: Watch) -> None:
    """Only the NodePort is in the filter. On the other node no packet has that port: its conntrack knows no translation."""
    far = servers.Server(topology.CLIENT, "far", http=FAR, udp=None)
    dnat = f"*nat\n-I PREROUTING -p tcp -m tcp --dport {NODE_PORT} -j DNAT --to-destination {INNER_FAR}:{FAR}\nCOMMIT\n"
    with tunnel(), servers.running([far]), also_rules(dnat):
        followed = follow(watch, (NODE_PORT,), lambda: traffic.http_get(topology.NODE4, NODE_PORT, ns="pod-a"))
    one = only(followed, NODE_PORT)
    assert packet_entries(one)[:3] == ["-> SYN", "<- SYN ACK", "-> ACK"], followed.text
    assert "in client" in stages(one, "->"), followed.text
    assert not [s.remark for s in one.entries if "sent again" in s.remark], followed.text
    (verdict,) = [s.text for s in one.entries if s.kind == "verdict"]
    assert verdict.startswith("accepted by scene-far") and "in client" in verdict, verdict
    assert (one.state, one.cause) == ("closed", "accepted"), followed.text
