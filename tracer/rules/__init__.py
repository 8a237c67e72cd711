# SPDX-License-Identifier: Apache-2.0
"""The rules that decided about a packet. Each back end has its package: `iptables` (legacy), `nftables`, `ipvs`.

Must not know: how events were caught, Kubernetes, how rules are shown. Nothing here writes a rule.
"""
