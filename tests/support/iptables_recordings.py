# SPDX-License-Identifier: Apache-2.0
"""Recorded legacy tables: the kernel's blobs, with what iptables-save printed of them.

    unshare -n python3 -m tests.support.iptables_recordings tests/data/iptables/NAME.json.xz ip RULES ip6 RULES6

restores the rules in a network namespace of its own, and writes a recording. Rules that need a set, or that this kernel does
not know (nfacct), are to be left out of the files before.
"""

from __future__ import annotations

import base64
import json
import lzma
import subprocess
import sys
from pathlib import Path

from tracer.rules.iptables import sockopt
from tracer.rules.iptables.blob import BlobTable

DATA = Path(__file__).parents[1] / "data/iptables"
_RESTORE = {"ip": "iptables-legacy-restore", "ip6": "ip6tables-legacy-restore"}


def recording(name: str) -> list[tuple[BlobTable, str]]:
    """The tables of a recording, each with the output of iptables-save."""
    stored = json.loads(lzma.decompress((DATA / f"{name}.json.xz").read_bytes()))
    return [
        (BlobTable(family, table, base64.b64decode(blob), dict(hooks), dict(underflows)), text)
        for family, table, blob, hooks, underflows, text in stored
    ]


def record(files: list[tuple[str, str]]) -> list[list[object]]:
    """Restores files of rules, (family, path) each, and reads their tables."""
    made: list[list[object]] = []
    for family, path in files:
        subprocess.run([_RESTORE[family]], input=Path(path).read_text(encoding="utf-8"), text=True, check=True)
        for table in sockopt.present(family):
            raw = sockopt.read(family, table)
            places = sorted(raw.hooks.items()), sorted(raw.underflows.items())
            made.append([family, table, base64.b64encode(raw.blob).decode(), *places, sockopt.save(family, table)])
    return made


if __name__ == "__main__":
    target, *rest = sys.argv[1:]
    recorded = record(list(zip(rest[::2], rest[1::2], strict=True)))
    Path(target).write_bytes(lzma.compress(json.dumps(recorded).encode(), preset=9))
