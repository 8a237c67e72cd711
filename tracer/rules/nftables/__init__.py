# SPDX-License-Identifier: Apache-2.0
"""Rules of nftables: reads them from the kernel, reconstructs rule traces, simulates packets. Must not know: iptables, IPVS."""
