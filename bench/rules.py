# SPDX-License-Identifier: Apache-2.0
"""The cost of reading a node's rules, compared with the system's tools that print them: rules of thousands of Services.

    lab run --kernel 6.12 -- python3 -m bench.rules [RULES [RULES OF NFTABLES]]

It replaces the machine's nat table, in legacy iptables and then in iptables-nft. Times are CPU seconds, user and system, of
this process and its children, the median of three.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from statistics import median

from tracer.node.nfnetlink import Nfnetlink
from tracer.rules.iptables import table_reader
from tracer.rules.iptables.table_reader import TableRequest
from tracer.rules.nftables import netlink_dump, snapshot

RULES, NFT_RULES, ENDS, ROUNDS = 80_000, 10_000, 3, 3
A_SERVICE = 2 + 2 * ENDS + ENDS + 1
"""Rules per Service: in KUBE-SERVICES and KUBE-NODEPORTS, in each endpoint's chain, in the Service's chain."""
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
    """A nat table with this number of rules, as kube-proxy writes it."""
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
    """Median of the CPU seconds of ROUNDS runs."""
    found = []
    for _ in range(ROUNDS):
        began = spent()
        work()
        found.append(spent() - began)
    return median(found)


def legacy(rules: int) -> str:
    subprocess.run(["iptables-legacy-restore"], input=text(rules), text=True, check=True)
    request = TableRequest(0, "ip", "nat")
    there = table_reader.read_here(request)
    save = cost(lambda: subprocess.run(SAVE, stdout=subprocess.DEVNULL, check=True))
    ours = cost(lambda: table_reader.read_here(request))
    return f"legacy, {len(there.rules)} rules: iptables-save {save:.2f} s, the tracer {ours:.2f} s, ratio {ours / save:.2f}"


def nftables(rules: int) -> str:
    """Compares iptables-nft-save, the tracer, the tracer's netlink dump alone, and pyroute2's dump."""
    from pyroute2.nftables.main import NFTables

    subprocess.run(["iptables-nft-restore"], input=text(rules), text=True, check=True)
    save = cost(lambda: subprocess.run(["iptables-nft-save"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True))
    ours = cost(lambda: snapshot.read_here(0, ()))

    def dump() -> None:
        with Nfnetlink() as nfnetlink:
            netlink_dump.read(nfnetlink)

    def pyroute2() -> None:
        with NFTables(nfgen_family=0) as socket:
            sum(1 for _ in socket.get_rules())

    return (
        f"nftables, {rules} rules: iptables-nft-save {save:.2f} s, the tracer {ours:.2f} s, ratio {ours / save:.2f}; "
        f"of it the dump over netlink {cost(dump):.2f} s, with pyroute2 {cost(pyroute2):.2f} s"
    )


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    print(legacy(*given[:1] or [RULES]), flush=True)
    print(nftables(*given[1:2] or [NFT_RULES]), flush=True)
