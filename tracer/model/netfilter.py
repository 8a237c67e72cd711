# SPDX-License-Identifier: Apache-2.0
"""The hooks of netfilter, and its verdicts: those of hooks, tables, chains and IPVS."""

from __future__ import annotations

from enum import StrEnum
from typing import NewType, TypeAlias


class Hook(StrEnum):
    """A hook, by the kernel's name. The values are those of the JSON output. NONE: outside of netfilter, or not known."""

    NONE = ""
    PREROUTING = "PREROUTING"
    INPUT = "INPUT"
    FORWARD = "FORWARD"
    OUTPUT = "OUTPUT"
    POSTROUTING = "POSTROUTING"
    INGRESS = "INGRESS"
    EGRESS = "EGRESS"
    BROUTING = "BROUTING"


IP_HOOKS = (Hook.PREROUTING, Hook.INPUT, Hook.FORWARD, Hook.OUTPUT, Hook.POSTROUTING)
"""The hooks of IP, by their numbers in the kernel (NF_INET_*)."""

_HOOKS_BY_NAME = {hook.value: hook for hook in Hook}


def decode_hook(name: str) -> Hook:
    """The hook of a name that another program wrote; NONE = no hook that this program knows."""
    return _HOOKS_BY_NAME.get(name, Hook.NONE)


class Verdict(StrEnum):
    """A verdict, by the kernel's name (NF_*). The values are those of the JSON output.

    REJECT is the kernel's DROP by a rule or by IPVS that answers the packet. NONE: no verdict.
    """

    NONE = ""
    DROP = "DROP"
    ACCEPT = "ACCEPT"
    STOLEN = "STOLEN"
    QUEUE = "QUEUE"
    REPEAT = "REPEAT"
    STOP = "STOP"
    REJECT = "REJECT"


UnknownVerdict = NewType("UnknownVerdict", str)
"""A verdict that this program does not know: the number of a newer kernel, or a word from a capture or from rules.

It is shown as it is, and equals no Verdict.
"""

AnyVerdict: TypeAlias = Verdict | UnknownVerdict

REFUSALS = (Verdict.DROP, Verdict.REJECT)
"""Verdicts that end a packet."""
PASSES = (Verdict.ACCEPT, Verdict.NONE)
"""Verdicts that let a packet go on."""

KERNEL_VERDICTS = (Verdict.DROP, Verdict.ACCEPT, Verdict.STOLEN, Verdict.QUEUE, Verdict.REPEAT, Verdict.STOP)
"""Verdicts by their numbers in the kernel (NF_*)."""

_VERDICTS_BY_NAME = {verdict.value: verdict for verdict in Verdict}


def decode_verdict(name: str) -> AnyVerdict:
    """The verdict of a name that another program wrote."""
    return _VERDICTS_BY_NAME[name] if name in _VERDICTS_BY_NAME else UnknownVerdict(name)
