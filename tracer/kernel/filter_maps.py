# SPDX-License-Identifier: Apache-2.0
"""Writes a Filter into the maps that `bpf/records/filter.h` reads."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tracer.events import cstruct
from tracer.kernel.bpf_syscall import BpfMap
from tracer.model.filter import MAX_HOSTS, Filter, Network


def network_key(network: Network) -> bytes:
    """`struct network` of bpf/records/filter.h: length of the prefix (u32), then 16 address bytes, IPv4 as ::ffff:a.b.c.d."""
    address = network.network_address.packed
    if len(address) == 4:
        return struct.pack("<I", 96 + network.prefixlen) + b"\0" * 10 + b"\xff\xff" + address
    return struct.pack("<I", network.prefixlen) + address


def filter_record(packet_filter: Filter) -> npt.NDArray[np.void]:
    """`struct filter` of bpf/records/filter.h, as an array of one."""
    out = np.zeros(1, cstruct.dtype("records/filter.h", "filter"))
    row = out[0]
    row["netns"], row["ifindex"], row["if_netns"] = packet_filter.netns, packet_filter.ifindex, packet_filter.if_netns
    row["ports"], row["protocol"], row["family"] = bool(packet_filter.ports), packet_filter.protocol, packet_filter.family
    row["drops_only"], row["hosts"] = packet_filter.drops_only, bool(packet_filter.hosts)
    row["packet_bound"] = bool(packet_filter.netns or packet_filter.ifindex)
    return out


def port_bits(ports: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    """`struct port_set`: 1,024 words, bit p % 64 of word p / 64 set for each port p."""
    bits = np.zeros(1024, np.uint64)
    for port in ports:
        bits[port >> 6] |= np.uint64(1 << (port & 63))
    return bits


def write(maps: Mapping[str, BpfMap], packet_filter: Filter) -> None:
    """Puts the filter in force.

    Packets arrive meanwhile. A packet that both the old and the new filter select is selected all the time: new entries are
    added before they are in use, and old entries are removed after they are no longer in use. Only if both sets of hosts
    together do not fit into the kernel's map, the old ones are removed first.

    Args:
        maps: The maps of the programs by name.
        packet_filter: The new filter.
    """
    hosts = maps["hosts"]
    new, old = {network_key(network) for network in packet_filter.hosts}, set(hosts.keys())
    crowded = len(new | old) > MAX_HOSTS
    for key in old - new if crowded else ():
        del hosts[key]
    for key in new - old:
        hosts[key] = b"\1"
    # A set that comes into use is filled first; a set that is no longer used is emptied last.
    values = [("ports", port_bits(packet_filter.ports)), ("filters", filter_record(packet_filter))]
    for name, value in values if packet_filter.ports else reversed(values):
        maps[name][bytes(4)] = value.tobytes()
    for key in () if crowded else old - new:
        del hosts[key]
