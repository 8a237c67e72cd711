# SPDX-License-Identifier: Apache-2.0
"""Runs the real kube-proxy in each mode with the API server double, and traces real requests. As root, in the lab:

    python3 tests/kernel/all_real_proxy.py

--native: on this machine's own kernel, without probes. The last line is real-proxy modes=… requests=… owners_wrong=… false=…
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "vagrant")]

from scenes import topology  # noqa: E402
from tests.kernel import audit_nodes, modules, real_cluster, real_situations  # noqa: E402
from tests.kernel.real_runs import Totals  # noqa: E402
from tests.kernel.real_situations import Place  # noqa: E402
from tests.kernel.watching import NOTHING, Watch  # noqa: E402
from tests.support import real_proxy  # noqa: E402
from tests.support.api_server import ApiServer  # noqa: E402
from tracer.kernel.session import Kernel, Session  # noqa: E402

INSIDE = "K8SNET_REAL_PROXY"
MODULES = """nf_tables nft_compat nft_chain_nat nft_numgen nft_fib_ipv4 nft_fib_ipv6 nft_fib_inet nft_masq nft_nat nft_ct
    nft_reject_ipv4 nft_reject_inet xt_recent xt_nfacct nfnetlink_acct br_netfilter veth bridge dummy nf_conntrack_netlink
    ip_vs_wrr ip_vs_sh ip_set_hash_ipportnet xt_ipvs"""
"""Modules that kube-proxy's modes and portmap need, in addition to those of the incidents."""

TOOLS = ("ip", "iptables", "ip6tables", "nft", "ipset", "ipvsadm", "conntrack")
"""Commands that the requests and kube-proxy's modes need; the lab's machine has them."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--native", action="store_true", help="without probes, on this machine's own kernel")
    parser.add_argument("--only", default="", metavar="WORDS", help="modes with one of these in their name, in this order")
    parser.add_argument("--explain", action="store_true", help="also compare each request with the output of `explain`")
    options = parser.parse_args()
    absent = real_proxy.missing()
    if absent:
        print(f"real-proxy skipped: {absent} The rules that were recorded of it stand in.")
        return 0
    if options.native and (missing := [tool for tool in TOOLS if not shutil.which(tool)]):
        parser.error(f"not installed: {', '.join(missing)}")
    modules.load(f"{modules.RANDOM_RULES} {modules.INCIDENTS} {MODULES}", anywhere=options.native)
    if options.native and INSIDE not in os.environ:
        # Own namespaces, also for the names of namespaces: the machine itself is not changed.
        command = ["unshare", "--mount", "--net", "--propagation", "private", sys.executable, *sys.argv]
        return subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode
    return run(options)


def run(options: argparse.Namespace) -> int:
    totals, with_ipvs = Totals(), Path("/proc/net/ip_vs").exists()
    modes = [m for w in options.only.split(",") for m in real_proxy.MODES if w in m.name and (m.proxy != "ipvs" or with_ipvs)]
    modes = list(dict.fromkeys(modes))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        proc = _own_namespaces() if options.native else Path("/proc")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        watch = None
        if not options.native:
            kernel = Kernel.running()
            watch = Watch(kernel, stack.enter_context(Session(kernel, NOTHING)))
        stack.callback(topology.end_servers)
        real_cluster.build()
        api = stack.enter_context(ApiServer(real_cluster.all_objects()))
        for mode in modes:
            began, before = time.monotonic(), len(totals.faults)
            place = Place(api, folder, watch, proc, totals, options.native or options.explain)
            try:
                real_situations.every(place, mode)
            except AssertionError as e:
                totals.missed.append(str(e))
            print(f"{mode.name}: {time.monotonic() - began:.0f} s, so far {totals.text}", flush=True)
            if len(totals.faults) > before:
                print(*(f"    {text}" for text in totals.faults[before:]), sep="\n", flush=True)
        audit_nodes.remove()
    print(f"IPVS: {'yes' if with_ipvs else 'not on this kernel'}")
    print(f"real-proxy modes={len(modes)} {totals.text}")
    return 1 if totals.faults else 0


def _own_namespaces() -> Path:
    """Mounts own directories for names and settings; returns a directory like /proc in which process 1 is this process."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
    Path("/run/netns").mkdir()
    found = Path(tempfile.mkdtemp(dir="/run"))
    for name, target in {"self": "/proc/self", "sys": "/proc/sys", "1": f"/proc/{os.getpid()}"}.items():
        (found / name).symlink_to(target)
    return found


if __name__ == "__main__":
    sys.exit(main())
