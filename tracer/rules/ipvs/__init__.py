# SPDX-License-Identifier: Apache-2.0
"""Virtual servers of IPVS, read from the kernel. Must not know: iptables, nftables."""
