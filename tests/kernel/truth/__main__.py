"""python3 -m tests.kernel.truth nft|nftables [PACKETS] [SEED], as root on a machine to throw away."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "vagrant")]


def main(backend: str, packets: str = "300", seed: str = "1") -> int:
    """Runs one back end's comparison; the last line says what came of it."""
    seen, rules, mismatches = import_module(f"tests.kernel.truth.{backend}").run(int(packets), int(seed))
    print(f"packets={seen} rules={rules} mismatches={mismatches}")
    return 1 if mismatches or not rules else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
