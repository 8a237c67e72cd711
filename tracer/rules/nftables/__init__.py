# SPDX-License-Identifier: Apache-2.0
"""Rules of nftables: read from the kernel, reconstruct a traversed path, simulate a packet. Must not know: iptables, IPVS."""
