# SPDX-License-Identifier: Apache-2.0
"""Rules of nftables where a run, a map or a name could be mistaken for another: copies sent from within a rule, elements that
time out, names too long for records, packets that are reassembled from fragments on their path."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from random import Random

import pytest

from scenes import rules, scene, traffic
from scenes.netns import entered
from scenes.topology import CLIENT, CLIENT4, CLIENT6, NODE4, NODE6
from tests.kernel.truth import compare
from tests.kernel.watching import NOTHING, Watch
from tracer.events.record import Event
from tracer.model.filter import Filter
from tracer.model.hop import ChainHop
from tracer.model.rule import RuleTrace

PACKETS = 30
LONG = "long-" * 20
COPIES = f"""table ip6 copies6 {{
  chain {LONG}out {{ type filter hook output priority 3; counter; }}
  chain {LONG}early {{ type filter hook postrouting priority -5; dup to {CLIENT6} counter return; }}
  chain {LONG}late {{ type filter hook postrouting priority 5; ip6 daddr != {CLIENT6} counter; jump {LONG}; }}
  chain {LONG} {{ counter return; }}
}}
table ip {LONG}4 {{
  chain before {{ type filter hook prerouting priority -200; meta l4proto {{ tcp, udp }} dup to {CLIENT4} counter; }}
  chain copies {{ type filter hook output priority 3; dup to {CLIENT4} counter return; }}
  chain early {{ type filter hook postrouting priority -5; meta l4proto udp counter accept; counter return; }}
  chain late {{ type filter hook postrouting priority 5; counter; }}
}}
"""


@pytest.fixture(autouse=True)
def restored_scene(node: None) -> Iterator[None]:
    """Restores the scene that other tests expect, when these tests are done."""
    yield
    if not scene_is_up():
        scene.up()
    else:
        rules.flush()
        rules.restore("http-proxy", "http-proxy-v6")


def scene_is_up() -> bool:
    return subprocess.run(["ip", "link", "show", "cni0"], capture_output=True, check=False).returncode == 0


class Copies:
    """Rules that copy nearly every packet, so that runs of the same chains are nested."""

    def restore(self, random: Random, home: bool, big: bool) -> None:
        subprocess.run(["nft", "-f", "-"], input=COPIES, text=True, check=True)

    def replace_part(self, random: Random) -> None:
        raise NotImplementedError

    def check(self, e: Event, trace: RuleTrace) -> str:
        return ""


def test_nested_runs(watch: Watch) -> None:
    scene.down()
    with compare.bench(watch.session) as bench:
        bench.round(Random(5), PACKETS, Copies())
    watch.session.set_filter(NOTHING)
    assert bench.packets == PACKETS and bench.rules > 4 * PACKETS and bench.mismatches == 0


TABLE = "table-" + "x" * 60
TIMED = f"""table ip {TABLE} {{
  chain {LONG} {{ counter; }}
  map late {{ type ipv4_addr : verdict; flags timeout; elements = {{ {NODE4} timeout 600ms : jump {LONG}, * : jump {LONG} }} }}
  map stays {{ type ipv4_addr : verdict; elements = {{ {NODE4} : jump {LONG}, * : jump {LONG} }} }}
  chain {LONG}in {{
    type filter hook input priority 7;
    tcp dport 9558 ip daddr vmap @late
    tcp dport 9558 ip daddr vmap @stays
  }}
}}
"""
READ_SECONDS = 2


def test_a_timed_out_element_and_long_names(watch: Watch) -> None:
    """The wildcard matches where the rules as read have an element with the same verdict: neither is named."""
    rules.flush()
    with watch(Filter(ports=(9558,)), nft=True) as seen:
        subprocess.run(["nft", "-f", "-"], input=TIMED, text=True, check=True)
        time.sleep(READ_SECONDS)
        assert traffic.tcp_connect(NODE4, 9558, timeout=0.5).outcome == "refused"
    hops = [h for p in seen.packets for h in p.hops if isinstance(h, ChainHop) and h.chain.startswith(LONG)]
    assert hops
    for hop in hops:
        assert hop.rule_trace and not hop.rule_trace.undecided and hop.rule_trace.decision, hop.rule_trace
        assert (hop.table, hop.chain) == (f"ip {TABLE}", f"{LONG}in")
        elements = [(v.element, v.verdict) for v in hop.rule_trace.hits if v.rule and " vmap " in v.rule.text]
        assert elements == [("", f"JUMP {LONG}"), (f"{NODE4} : jump {LONG}", f"JUMP {LONG}")]


DROPS_WHOLE = """table inet whole {
  chain parts { type filter hook prerouting priority -500; counter; }
  chain behind { type filter hook prerouting priority -300; udp dport 9558 counter drop; }
  chain tracking { type filter hook prerouting priority 0; ct state new counter; }
}
"""
"""Conntrack reassembles fragments at priority -400."""


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, NODE4), (socket.AF_INET6, NODE6)])
def test_the_rule_that_drops_a_packet_put_together_from_fragments(
    watch: Watch, family: socket.AddressFamily, address: str
) -> None:
    """No event is written between the last fragment's chain and the rule that drops the whole packet in its buffer."""
    rules.flush()
    subprocess.run(["nft", "-f", "-"], input=DROPS_WHOLE, text=True, check=True)
    with watch(Filter(protocol=socket.IPPROTO_UDP), nft=True) as seen:
        time.sleep(READ_SECONDS)
        with entered(CLIENT), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"signs" * 600, (address, 9558))
    runs = [
        h for p in seen.packets for h in p.hops if isinstance(h, ChainHop) and h.table == "inet whole" and h.chain == "behind"
    ]
    assert [(h.verdict, h.rule_trace and h.rule_trace.undecided) for h in runs] == [("DROP", "")]
    assert runs[0].rule_trace and runs[0].rule_trace.decision and runs[0].rule_trace.decision.rule
    assert "udp dport 9558" in runs[0].rule_trace.decision.rule.text
