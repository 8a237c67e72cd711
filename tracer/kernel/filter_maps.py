# SPDX-License-Identifier: Apache-2.0
"""Writes a Filter into the maps that `bpf/records/filter.h` reads."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tracer.events import cstruct
from tracer.kernel.bpf_syscall import BpfMap
from tracer.model.filter import MAX_HOSTS, Filter, Network

EXCLUDED = cstruct.members("records/filter.h", "role")["EXCLUDED"]
"""The role of ports and networks that no packet may have."""


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
    row["protocol"], row["family"], row["drops_only"] = packet_filter.protocol, packet_filter.family, packet_filter.drops_only
    row["packet_bound"] = bool(packet_filter.netns or packet_filter.ifindex)
    ports, hosts = roles_in_use(packet_filter.ports_by_role), roles_in_use(packet_filter.hosts_by_role)
    row["ports"], row["hosts"] = bool(ports), bool(hosts)
    row["wanted"] = ports & ~EXCLUDED | (hosts & ~EXCLUDED) << 4
    row["excluded"] = ports & EXCLUDED | (hosts & EXCLUDED) << 4
    row["has_tcp_flags"] = bool(packet_filter.tcp_flags)
    for value in packet_filter.tcp_flags:
        row["tcp_flags"][value >> 5] |= np.uint32(1 << (value & 31))
    return out


def roles_in_use(by_role: Sequence[Sequence[object]]) -> int:
    """Bits of `enum role`. by_role: ports or networks in the order of the roles."""
    return sum(1 << role for role, members in enumerate(by_role) if members)


def port_roles(by_role: Sequence[Sequence[int]]) -> npt.NDArray[np.uint64]:
    """`struct port_set`: 4,096 words, the roles of port p in the four bits from p % 16 * 4 on of word p / 16."""
    roles = np.zeros(65536, np.uint64)
    for role, ports in enumerate(by_role):
        roles[list(ports)] |= np.uint64(1 << role)
    shifts = np.arange(16, dtype=np.uint64) * np.uint64(4)
    words: npt.NDArray[np.uint64] = np.bitwise_or.reduce(roles.reshape(4096, 16) << shifts, axis=1)
    return words


def host_roles(by_role: Sequence[Sequence[Network]]) -> dict[bytes, bytes]:
    """The map of hosts: for each network, by its key, its roles and those of all networks that it is in, one byte."""
    keys = [(role, network_key(network)) for role, networks in enumerate(by_role) for network in networks]
    if len({role for role, _ in keys}) == 1:
        return {key: bytes([1 << role]) for role, key in keys}
    prefixes = [(role, *_prefix(key)) for role, key in keys]
    found: dict[bytes, bytes] = {}
    for (_, key), (_, bits, address) in zip(keys, prefixes, strict=True):
        roles = {role for role, outer, base in prefixes if bits >= outer and (address ^ base) >> 128 - outer == 0}
        found[key] = bytes([sum(1 << role for role in roles)])
    return found


def _prefix(key: bytes) -> tuple[int, int]:
    """Length of the prefix in bits, and the address, of a key that `network_key` wrote."""
    return int.from_bytes(key[:4], "little"), int.from_bytes(key[4:], "big")


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
    new, old = host_roles(packet_filter.hosts_by_role), {key: hosts[key] for key in list(hosts.keys())}
    crowded = len(new.keys() | old.keys()) > MAX_HOSTS
    for key in old.keys() - new.keys() if crowded else ():
        del hosts[key]
    for key, roles in new.items():
        if old.get(key) == roles:
            continue
        if key in old and len(old) >= MAX_HOSTS:
            # A full trie may refuse a new value for a key that it has: see docs/kernel-facts.md, "A full trie".
            del hosts[key]
        hosts[key] = roles
    # A set that comes into use is filled first; a set that is no longer used is emptied last.
    has_ports = any(packet_filter.ports_by_role)
    values = [("ports", port_roles(packet_filter.ports_by_role)), ("filters", filter_record(packet_filter))]
    for name, value in values if has_ports else reversed(values):
        maps[name][bytes(4)] = value.tobytes()
    for key in () if crowded else old.keys() - new.keys():
        del hosts[key]
