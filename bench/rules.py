"""What reading a node's rules costs beside the system's own tool that prints them: 80,000 rules of Services in legacy iptables.

    lab run --kernel 6.12 -- python3 -m bench.rules [RULES]

It replaces the machine's nat table. Times are of this thread and its children, user and system, in CPU seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median

from tracer.rules import reader
from tracer.rules.reader import Wanted

RULES, ENDS, ROUNDS = 80_000, 3, 3
A_SERVICE = 2 + 2 * ENDS + ENDS + 1
"""Rules: in KUBE-SERVICES and KUBE-NODEPORTS, in each endpoint's chain, in the Service's."""
SAVE = ("iptables-legacy-save", "-M", "/bin/true", "-t", "nat")


def _service(n: int) -> Iterator[str]:
    name, chain = f"default/service-{n}:http", f"KUBE-SVC-{n:016d}"
    words = f'-p tcp -m comment --comment "{name} cluster IP" -m tcp'
    yield f"-A KUBE-SERVICES -d 172.{16 + n // 65536}.{n // 256 % 256}.{n % 256}/32 {words} --dport 80 -j {chain}"
    yield f'-A KUBE-NODEPORTS -p tcp -m comment --comment "{name}" -m tcp --dport {20000 + n} -j {chain}'
    yield f'-A {chain} ! -s 10.0.0.0/8 -p tcp -m comment --comment "{name}" -m tcp -j KUBE-MARK-MASQ'
    for e in range(ENDS):
        sep, pod = f"KUBE-SEP-{ENDS * n + e:016d}", f"10.{e}.{n // 256}.{n % 256}"
        chance = "" if e == ENDS - 1 else f" -m statistic --mode random --probability {1 / (ENDS - e):.11f}"
        yield f'-A {chain} -m comment --comment "{name} -> {pod}:8080"{chance} -j {sep}'
        yield f'-A {sep} -s {pod}/32 -m comment --comment "{name}" -j KUBE-MARK-MASQ'
        yield f'-A {sep} -p tcp -m comment --comment "{name}" -m tcp -j DNAT --to-destination {pod}:8080'


def text(rules: int) -> str:
    """A nat table of so many rules, as kube-proxy writes it."""
    services = rules // A_SERVICE
    chains = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-MARK-MASQ"]
    chains += [f"KUBE-SVC-{n:016d}" for n in range(services)] + [f"KUBE-SEP-{n:016d}" for n in range(ENDS * services)]
    lines = ["*nat", *(f":{chain} - [0:0]" for chain in chains), "-A PREROUTING -j KUBE-SERVICES"]
    lines += ["-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000"]
    for n in range(services):
        lines += _service(n)
    return "\n".join([*lines, "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS", "COMMIT"]) + "\n"


def spent() -> float:
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def cost(work: Callable[[], object]) -> float:
    """Median CPU seconds of ROUNDS runs."""
    found = []
    for _ in range(ROUNDS):
        began = spent()
        work()
        found.append(spent() - began)
    return median(found)


def main(rules: int) -> int:
    subprocess.run(["iptables-legacy-restore"], input=text(rules), text=True, check=True)
    wanted = Wanted(0, "ip", "nat")
    there = reader.read_here(wanted)
    assert there
    save = cost(lambda: subprocess.run(SAVE, stdout=subprocess.DEVNULL, check=True))
    ours = cost(lambda: reader.read_here(wanted))
    print(f"{len(there[1])} rules: iptables-save {save:.2f} s, the tracer {ours:.2f} s, ratio {ours / save:.2f}")
    return 0


if __name__ == "__main__":
    began = time.monotonic()
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else RULES))
