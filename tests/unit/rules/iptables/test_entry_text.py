# SPDX-License-Identifier: Apache-2.0
"""The text made of the kernel's blob is what iptables-save prints, or there is none.

The tables and what iptables-save printed of them are recorded: tests/support/iptables_recordings.py.
"""

from __future__ import annotations

import struct
from random import Random

import pytest

from tests.support.iptables_recordings import recording
from tracer.rules import xt_options
from tracer.rules.iptables import save_join
from tracer.rules.iptables.blob import BlobTable
from tracer.rules.iptables.entry import Entry, Extension, TableHeader
from tracer.rules.iptables.entry_text import rule_text
from tracer.rules.xt_options import has_options

UNKNOWN = ("--to-destination 1.2.3.4:1000-1100/100", "NETMAP", "-p gre", "-p ipencap", "-p ospf", "255.0.255.0", "--tcp-option",
           "--ctproto", "--ctstatus", "-m state", "--physdev-in ", "-m limit", "LOG", "TCPMSS")  # fmt: skip
"""Options of the recorded rules that have no text."""


def texts(table: BlobTable, printed: str) -> list[tuple[str, str]]:
    """(text of the blob, text that iptables-save printed) of each rule."""
    saved = save_join.SavedRules(table, printed)
    return [(rule_text(table.family, table.entry(at), table.target_name(at)), saved[at].text) for at in saved]


@pytest.mark.parametrize(("name", "least"), [("kube-proxy-1.36", 70), ("kube-proxy-1.20", 50)])
def test_all_rules_of_kube_proxy_and_portmap(name: str, least: int) -> None:
    found = [both for table, printed in recording(name) for both in texts(table, printed)]
    assert [own for own, _ in found] == [printed for _, printed in found] and len(found) >= least
    assert all(has_options(table.extensions()) for table, _ in recording(name))


def test_each_option() -> None:
    """iptables before 1.8.10 prints nothing for `! --sport 0:65535`, which no packet matches."""
    found = [both for table, printed in recording("options") for both in texts(table, printed)]
    unknown = [printed for own, printed in found if not own and printed]
    assert [own for own, printed in found if own and own != printed] == []
    assert [printed for printed in unknown if not any(option in printed for option in UNKNOWN)] == ["-p tcp -m tcp -j a"]
    assert len(unknown) == len(UNKNOWN) + 1 and len(found) > 100


def test_a_counter_of_nfacct() -> None:
    """kube-proxy counts with it. iptables-save prints two spaces."""
    name = Extension("nfacct", 0, 0, b"localhost_nps_accepted_pkts".ljust(40, b"\0"))
    everything = TableHeader(0, 0, 0, 0, 0, 0, 0, 0, 0, True, False, 0)
    entry = Entry(0, 0, everything, (name,), Extension("", 0, 0, b"\0" * 4), False, "KUBE-NODEPORTS", 1)
    assert rule_text("ip", entry, "KUBE-EXT-A") == "-m nfacct --nfacct-name  localhost_nps_accepted_pkts -j KUBE-EXT-A"


def test_a_condition_that_is_not_known_is_not_left_out() -> None:
    """A text without it would be that of another rule."""
    kinds = xt_options.match_options("addrtype", 1, struct.pack("<HHI", 1 << 12, 4, 0), "ip")
    flags = xt_options.match_options("addrtype", 1, struct.pack("<HHI", 0, 4, 16), "ip")
    assert kinds is None and flags is None


def test_a_table_with_an_extension_that_has_no_text() -> None:
    kinds = {(table.family, table.name): table.extensions() for table, _ in recording("options")}
    assert {("limit", 0), ("LOG", 0), ("", 0), ("ERROR", 0)} <= kinds["ip", "filter"]
    assert not has_options(kinds["ip", "filter"]) and has_options(kinds["ip6", "nat"])


@pytest.mark.parametrize("family", ["ip", "ip6"])
def test_hostile_data_has_some_text_or_none(family: str) -> None:
    """The blob of another network namespace was written by others."""
    random, bits = Random(1), {"ip": 32, "ip6": 128}[family]
    kinds = [("m", kind) for kind in xt_options._MATCHES] + [("t", kind) for kind in xt_options._TARGETS]
    everything = TableHeader(0, 0, 0, 0, 0, 0, 0, 0, 0, True, False, 0)
    for _ in range(300):
        src, src_mask, dst, dst_mask = (random.getrandbits(bits) for _ in range(4))
        into, in_mask, out, out_mask = (random.getrandbits(128) for _ in range(4))
        odd = TableHeader(src, src_mask, dst, dst_mask, into, in_mask, out, out_mask, 6, False, False, random.getrandbits(8))
        for place, (name, revision) in kinds:
            extension = Extension(name, revision, 0, random.randbytes(random.choice((0, 1, 4, 17, 48, 200))))
            target = Extension("", 0, 0, b"\0" * 4) if place == "m" else extension
            matches = (extension,) if place == "m" else ()
            for header in (odd, everything):
                text = rule_text(family, Entry(0, 0, header, matches, target, False, "INPUT", 1), "ACCEPT")
                assert text.isprintable()
