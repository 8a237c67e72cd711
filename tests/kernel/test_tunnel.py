# SPDX-License-Identifier: Apache-2.0
"""What goes into a VXLAN on one node and comes out on another node of the same machine is one packet, also behind DNAT."""

from __future__ import annotations

from scenes import servers, topology, traffic
from tests.kernel.sides import also_rules
from tests.kernel.test_timelines import only, stages, ways
from tests.kernel.test_timelines_ways import INNER_FAR, tunnel
from tests.kernel.timeline_runs import follow
from tests.kernel.watching import Watch

ASKED, FAR = 30999, 9143


def test_a_pod_of_another_node_behind_a_node_port(watch: Watch) -> None:
    """Only the NodePort is asked for. On the other node nothing has that number: its conntrack knows no translation."""
    far = servers.Server(topology.CLIENT, "far", http=FAR, udp=None)
    dnat = f"*nat\n-I PREROUTING -p tcp -m tcp --dport {ASKED} -j DNAT --to-destination {INNER_FAR}:{FAR}\nCOMMIT\n"
    with tunnel(), servers.running([far]), also_rules(dnat):
        story = follow(watch, (ASKED,), lambda: traffic.http_get(topology.NODE4, ASKED, ns="pod-a"))
    one = only(story, ASKED)
    assert ways(one)[:3] == ["-> SYN", "<- SYN ACK", "-> ACK"], story.text
    assert "in client" in stages(one, "->"), story.text
    assert not [s.remark for s in one.entries if "sent again" in s.remark], story.text
    (told,) = [s.text for s in one.entries if s.kind == "verdict"]
    assert told.startswith("accepted by scene-far") and "in client" in told, told
    assert (one.state, one.cause) == ("closed", "accepted"), story.text
