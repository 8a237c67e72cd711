# SPDX-License-Identifier: Apache-2.0
"""Reads this host: namespaces, processes, routes, procfs, netlink, tools. Must not know: packets, rules, Kubernetes.

It changes nothing.
"""
