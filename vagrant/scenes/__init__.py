# SPDX-License-Identifier: Apache-2.0
"""Scenes: a small Kubernetes node made of network namespaces, its real rules, and known traffic through it.

For a throw-away machine only: everything here works on the root network namespace and needs root.

    netns      run code in a namespace           topology   the node, its pods and its client
    rules      restore and remove rulesets       servers    the servers in the pods
    traffic    single requests                   packets    raw packets that conntrack finds invalid
    load       many packets, counted             scene      all of it as one context manager
"""
