# SPDX-License-Identifier: Apache-2.0
"""Rules of legacy iptables: reads them from the kernel, reconstructs rule traces, simulates packets.

Must not know: nftables, IPVS.
"""
