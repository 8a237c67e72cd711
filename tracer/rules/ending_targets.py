# SPDX-License-Identifier: Apache-2.0
"""Verdicts of iptables targets: which of them end the traversal of a table."""

from __future__ import annotations

CONTINUE = ""
ENDS = {
    "DNAT": ("ACCEPT", "DROP"), "SNAT": ("ACCEPT", "DROP"), "MASQUERADE": ("ACCEPT", "DROP"), "REDIRECT": ("ACCEPT", "DROP"),
    "NETMAP": ("ACCEPT", "DROP"), "REJECT": ("DROP",), "NFQUEUE": ("QUEUE", CONTINUE), "MARK": (CONTINUE,), "LOG": (CONTINUE,),
    "NFLOG": (CONTINUE,), "TRACE": (CONTINUE,), "CONNMARK": (CONTINUE,), "CT": (CONTINUE,), "NOTRACK": (CONTINUE,),
    "SET": (CONTINUE,), "CLASSIFY": (CONTINUE,), "TEE": (CONTINUE,), "CHECKSUM": (CONTINUE,), "RATEEST": (CONTINUE,),
    "AUDIT": (CONTINUE,), "SECMARK": (CONTINUE,), "CONNSECMARK": (CONTINUE,), "HMARK": (CONTINUE,),
    "TCPMSS": (CONTINUE, "DROP"), "DSCP": (CONTINUE, "DROP"), "TOS": (CONTINUE, "DROP"), "TTL": (CONTINUE, "DROP"),
    "HL": (CONTINUE, "DROP"), "ECN": (CONTINUE, "DROP"),
}  # fmt: skip
"""Verdicts that a target function may return; CONTINUE = next rule. A target that is not listed may return any of them."""
