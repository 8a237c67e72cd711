# SPDX-License-Identifier: Apache-2.0
"""k8snet-trace: what a Kubernetes node really does to a packet."""

import os

RELEASE = "0.1.0"
"""The last release; before the first one, the release in preparation."""


def _built() -> str:
    """The version that the build has written into the package; "" = a checkout."""
    try:
        with open(os.path.join(os.path.dirname(__file__), "VERSION"), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


__version__ = _built() or RELEASE
