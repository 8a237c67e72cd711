# SPDX-License-Identifier: Apache-2.0
"""Computes and parses the chain names of kube-proxy and portmap.

Source: kube-proxy's pkg/proxy/iptables/proxier.go (portProtoHash, servicePortEndpointChainName), pkg/proxy/nftables/proxier.go
(hashAndTruncate), and the CNI plugins' plugins/meta/portmap/utils.go (formatChainName). Checked on real dumps of 1.20, 1.30
and 1.36: every chain name was computed correctly.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from tracer.util.octets import encoded

IPTABLES_CHAIN = re.compile(r"KUBE-(SVC|SEP|FW|XLB|SVL|EXT)-([A-Z2-7]{16})")
NFTABLES_CHAIN = re.compile(
    r"(?P<kind>service|local|external|firewall|endpoint|affinity)-(?P<hash>[A-Z2-7]{8})-"
    r"(?P<source>(?P<ns>[^/]+)/(?P<name>[^/]+)/(?P<proto>[a-z]+)/(?P<port>[^/]*?)(?:__(?P<ip>[0-9a-f.]+)/(?P<eport>\d+))?)"
)


@dataclass(frozen=True)
class NftChainName:
    """The parts of a chain name of the nftables mode.

    Attributes:
        kind: "service", "local", "external", "firewall", "endpoint" or "affinity".
        address: The endpoint's address, IPv6 with colons; "" = no endpoint.
        endpoint_port: The endpoint's port; 0 = no endpoint.
    """

    kind: str
    namespace: str
    name: str
    port_name: str
    protocol: str
    address: str = ""
    endpoint_port: int = 0


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS = tuple(a + b for a in _ALPHABET for b in _ALPHABET)


def _hash(text: str, length: int) -> str:
    """Returns the first characters (a multiple of 8) of the SHA-256 in base 32. Takes ten bits at a time: b32encode is slow."""
    bits = length * 5
    number = int.from_bytes(hashlib.sha256(encoded(text)).digest()[: bits // 8], "big")
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(bits - 10, -1, -10)])


def service_hash(label: str, protocol: str) -> str:
    """The 16 characters after KUBE-SVC-, KUBE-EXT-, KUBE-SVL-, KUBE-FW- and KUBE-XLB-; label: ns/name[:port]."""
    return _hash(label + protocol, 16)


def endpoint_hash(label: str, protocol: str, address: str, port: int) -> str:
    """The 16 characters after KUBE-SEP-."""
    return _hash(f"{label}{protocol}[{address}]:{port}" if ":" in address else f"{label}{protocol}{address}:{port}", 16)


def nftables_name(source: str) -> str:
    """Returns the part after the kind in a chain name of the nftables mode; source: ns/name/proto/port[__IP/port]."""
    return f"{_hash(source, 8)}-{source}"


def read_nftables_name(chain: str) -> NftChainName | None:
    """Parses a chain name; None = not such a name, or its hash does not match the rest."""
    match = NFTABLES_CHAIN.fullmatch(chain)
    if not match or _hash(match["source"], 8) != match["hash"]:
        return None
    address = match["ip"] or ""
    if address.count(".") != 3:
        address = address.replace(".", ":")
    ends = (address, int(match["eport"] or 0))
    return NftChainName(match["kind"], match["ns"], match["name"], match["port"], match["proto"], *ends)


def portmap_chain(network: str, container: str) -> str:
    """The chain of a container's host ports: CNI-DN- and a hash, 28 characters in all."""
    return ("CNI-DN-" + hashlib.sha512(encoded(network + container)).hexdigest())[:28]
