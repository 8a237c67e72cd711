# SPDX-License-Identifier: Apache-2.0
"""Finds this node's name in Kubernetes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from tracer.kube.store import ObjectStore


def name_of_node(store: ObjectStore, local: frozenset[str], environment: Mapping[str, str] = os.environ) -> str:
    """Returns this node's name: $NODE_NAME, else the Node with one of our addresses, else the Node with our host name.

    Without Nodes to compare with, it is the host name. "" = no Node matches, or several do.
    """
    if environment.get("NODE_NAME"):
        return environment["NODE_NAME"]
    nodes = store.nodes.values()
    host = socket.gethostname().lower()
    ours = [n.name for n in nodes if local.intersection(n.addresses)]
    named = [n.name for n in nodes if n.name == host]
    if not nodes:
        return host
    return next((found[0] for found in (ours, named) if len(found) == 1), "")
