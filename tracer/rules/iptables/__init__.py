# SPDX-License-Identifier: Apache-2.0
"""Rules of legacy iptables: read from the kernel, reconstruct a traversed path, simulate a packet.

Must not know: nftables, IPVS.
"""
