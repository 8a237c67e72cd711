# SPDX-License-Identifier: Apache-2.0
"""Interrupts that deliver packets while programs run for others: a timer takes the place of a network card."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kernel import modules

QDISC = ("tc", "-n", "client", "qdisc")
TIMER = ("netem", "delay", "300us", "100us")


@contextmanager
def sent_by_a_timer() -> Iterator[None]:
    """The client's packets go on in the softirq of a timer, which also interrupts the client while it sends further ones."""
    modules.load("sch_netem")
    subprocess.run([*QDISC, "add", "dev", "eth0", "root", *TIMER], check=True)
    try:
        yield
    finally:
        subprocess.run([*QDISC, "del", "dev", "eth0", "root"], check=True)
