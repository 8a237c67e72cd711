"""Which capabilities a run can do without, and what it loses by it; in the lab, as root: `python3 tests/kernel/all_rights.py`.

A run for each of tracer/kernel/rights.py, which has all the others; two at a time. A line each: its exit status, what it told
less than one that had all, and what it said.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

from scenes import scene, topology, traffic  # noqa: E402
from tests.kernel import tracers  # noqa: E402
from tests.kernel.tracers import Tracer, holding  # noqa: E402
from tests.kernel.truth import legacy  # noqa: E402
from tracer.kernel import rights  # noqa: E402

CHAINS = "table inet few { chain in { type filter hook input priority 5; tcp dport 9126 drop; }; }"
PORTS = (traffic.NODEPORT_HTTP, traffic.NODEPORT_LONELY, 9126)


def runs(directory: Path, without: tuple[str, ...]) -> dict[str, list[tracers.Line]]:
    """Two at once: what each printed, by the capability that it had not ("" = it had all)."""
    both = [Tracer(directory, name or "all", holding(*(c for c in rights.BITS if c != name)), PORTS) for name in without]
    if any([tracer.started() for tracer in both]):
        traffic.http_get()
        traffic.tcp_connect(topology.NODE4, traffic.NODEPORT_LONELY)
        traffic.tcp_connect(topology.NODE4, 9126, timeout=0.5)
        time.sleep(2)
    return {name: tracer.end() for name, tracer in zip(without, both, strict=True)}


def main() -> int:
    legacy.load_modules()
    with tempfile.TemporaryDirectory() as directory, scene.scene():
        subprocess.run(["nft", "-f", "-"], input=CHAINS, text=True, check=True)
        names = ["", *rights.BITS]
        lines: dict[str, list[tracers.Line]] = {}
        for i in range(0, len(names), 2):
            lines |= runs(Path(directory), tuple(names[i : i + 2]))
    everything = tracers.told(lines[""])
    print("with all:", ", ".join(what for what, there in everything.items() if there))
    for name in rights.BITS:
        now = tracers.told(lines[name])
        lost = ", ".join(what for what, there in everything.items() if there and not now[what])
        print(f"without {name}: {'ran' if lines[name] else 'did not run'}; less: {lost or 'nothing'}")
    return int(not all(everything.values()))


if __name__ == "__main__":
    sys.exit(main())
