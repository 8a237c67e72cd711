# SPDX-License-Identifier: Apache-2.0
"""Options that select packets: what the kernel gets of each, what user space does, and the table in the guide."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.support import sample_packets
from tracer.cli.filters import FILTER_OPTIONS, NAMES, with_filters
from tracer.errors import BadOption
from tracer.kube.selectors import Selectors
from tracer.model.filter import Filter
from tracer.selection import stored_filter
from tracer.selection.display_filter import DisplayFilter
from tracer.selection.filter_options import FilterOptions

ROOT = Path(__file__).resolve().parents[3]
VALUES: dict[str, dict[str, Any]] = {
    "--port": {"ports": ("80",)}, "--sport": {"source_ports": ("80",)}, "--dport": {"destination_ports": ("80",)},
    "--host": {"hosts": ("10.0.0.1",)}, "--src": {"sources": ("10.0.0.1",)}, "--dst": {"destinations": ("10.0.0.1",)},
    "--proto": {"proto": "tcp"}, "-4": {"family": 4}, "-6": {"family": 6}, "--tcp-flags": {"tcp_flags": ("SYN",)},
    "--iface": {"iface": "lo"}, "--netns": {"netns": "pid:self"}, "--not-port": {"excluded_ports": ("80",)},
    "--not-host": {"excluded_hosts": ("10.0.0.1",)}, "--drops-only": {"drops_only": True}, "--pid": {"pids": (1,)},
    "--comm": {"commands": ("x",)}, "--filter": {"expression": "tcp"},
}  # fmt: skip


def rows() -> dict[str, tuple[str, str]]:
    """The table "What evaluates a filter": option -> kernel, this program."""
    text = (ROOT / "docs/guide/filters.md").read_text().partition("## What evaluates a filter")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (`.*?) \|(.*?)\|(.*?)\|$", text, re.M)
    return {name: (kernel.strip(), own.strip()) for names, kernel, own in lines for name in re.findall(r"`(.*?)`", names)}


def test_the_table_has_every_option() -> None:
    def command() -> None:
        """Has the options."""

    given = with_filters(command).__click_params__
    assert len(given) == len(FILTER_OPTIONS) and {option.name for option in given} == NAMES
    names = {name for option in given for name in option.opts}
    assert rows().keys() == names - {"-p", "--selector"}


@pytest.mark.parametrize("option", sorted(VALUES))
def test_the_table_says_what_evaluates_an_option(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.node.namespaces.Namespaces", Namespaces)
    kernel, own = rows()[option]
    options = FilterOptions.of(VALUES[option])
    assert (options.kernel_filter() != Filter()) == kernel.startswith("yes")
    if option != "--drops-only":  # its second half is the outcome, see DisplayStage
        assert (options.live_filter() != DisplayFilter()) == own.startswith("yes")
        assert options.capture_filter() != DisplayFilter(), "of a capture, everything is evaluated here"


class Namespaces:
    """Stands in for the namespaces of this machine."""

    own = 5

    def find(self, name: str) -> int:
        return 5


def test_options_of_objects_are_selectors() -> None:
    objects = {"services", "pods", "node_ports", "host_ports", "namespaces", "workloads", "labels"}
    both = {"sources", "destinations"}  # addresses and names
    assert {field.name for field in fields(Selectors)} == objects | both
    assert {field.name for field in fields(FilterOptions)} == NAMES - objects


@pytest.mark.parametrize(
    ("options", "is_shown"),
    [
        ({"ports": ("1,30000-32767",)}, True), ({"ports": ("8000-8100",)}, True), ({"ports": ("1-1000",)}, False),
        ({"destination_ports": ("30285",)}, True), ({"destination_ports": ("8080",)}, True),
        ({"source_ports": ("8080",)}, False),
        ({"source_ports": ("40812",)}, True), ({"sources": ("192.168.56.1",)}, True), ({"sources": ("10.244.0.11",)}, False),
        ({"sources": ("192.168.56.1",), "destinations": ("10.244.0.11",)}, True), ({"destinations": ("192.168.56.1",)}, False),
        ({"excluded_ports": ("8080",)}, False), ({"excluded_ports": ("22",)}, True),
        ({"excluded_hosts": ("10.244.0.0/16",)}, False),
        ({"tcp_flags": ("SYN,not-ACK",)}, True), ({"tcp_flags": ("ACK",)}, False), ({"tcp_flags": ("ACK", "SYN")}, True),
        ({"pids": (4242,)}, True), ({"pids": (1,)}, False), ({"commands": ("nginx",)}, True), ({"commands": ("ngin",)}, False),
        ({"expression": "tcp dst port 30285"}, True), ({"expression": "udp"}, False),
        ({"ports": ("30285",), "excluded_hosts": ("10.244.0.11",)}, False),
        ({"ports": ("30285",), "hosts": ("10.244.0.11",)}, True),
    ],
)  # fmt: skip
def test_conditions_on_a_packet_that_was_translated(options: dict[str, Any], is_shown: bool) -> None:
    """192.168.56.1:40812 -> 192.168.56.10:30285, translated to 10.244.0.11:8080; a SYN that nginx (pid 4242) answered."""
    assert FilterOptions.of(options).capture_filter()(sample_packets.node_port()) is is_shown


LIVE = FilterOptions(excluded_ports=("22,80-81",), excluded_hosts=("10.0.0.0/8",), pids=(7,), commands=("x",), expression="udp")


def test_a_capture_remembers_what_user_space_evaluated() -> None:
    stored = stored_filter.encoded(LIVE.live_filter())
    found = stored_filter.decoded(stored)
    assert stored_filter.encoded(found) == stored and found.excluded_ports == {22, 80, 81}
    assert found.expression and found.expression.text == "udp" and not found(sample_packets.node_port())
    assert stored_filter.encoded(FilterOptions(ports=("80",)).live_filter()) == {}
    assert stored_filter.decoded({}) == DisplayFilter()


@pytest.mark.parametrize(
    "hostile",
    [
        {"other": ()}, {"pids": 1}, {"pids": ("x",)}, {"pids": (True,)}, {"excluded_hosts": ("x",)}, {"commands": (1,)},
        {"expression": "x" * 20_000}, {"program": ("x",)}, {"program": ((6, 0, 0),)}, {"program": ((0, 0, 0, 0),)},
        {"program": ((5, 0, 0, 9), (6, 0, 0, 0))}, {"program": ((0x15, 9, 0, 0), (6, 0, 0, 0))},
        {"program": ((2, 0, 0, 16), (6, 0, 0, 0))}, {"program": ((0x60, 0, 0, 99), (6, 0, 0, 0))},
        {"program": ((6, 0, 0, 0),) * 5000}, {"program": ((0x38, 0, 0, 0), (6, 0, 0, 0))}, {"program": ((1 << 16, 0, 0, 0),)},
        {"program": ((0xE0, 0, 0, 0), (6, 0, 0, 0))}, {"program": ((6, 0, 0, -1),)},
    ],
)  # fmt: skip
def test_a_hostile_capture_has_no_conditions(hostile: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        stored_filter.decoded(hostile)


def test_one_direction_of_a_connection_proves_no_missing_answer() -> None:
    for option in ("--sport", "--dport", "--src", "--dst", "--tcp-flags"):
        assert FilterOptions.of(VALUES[option]).kernel_filter().is_one_sided, option
    for option in ("--pid", "--comm", "--filter"):
        assert FilterOptions.of(VALUES[option]).live_filter().is_one_sided, option
    for option in ("--drops-only", "--port", "--host", "--not-port", "--not-host", "--proto", "-4"):
        options = FilterOptions.of(VALUES[option])
        assert not options.kernel_filter().is_one_sided and not options.capture_filter().is_one_sided, option


def test_too_many_networks() -> None:
    many = tuple(f"10.0.{n >> 8}.{n & 255}" for n in range(257))
    for options in (FilterOptions(sources=many), FilterOptions(hosts=many[:128], destinations=many[128:])):
        for make in (options.kernel_filter, options.capture_filter):
            with pytest.raises(BadOption, match="257 --host options are too many"):
                make()
