# SPDX-License-Identifier: Apache-2.0
"""Random nodes to compare the audit with, with rules written by the real kube-proxy and the real portmap."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from incidents.objects import Object
from tests.kernel import audit_nodes, real_cluster
from tests.kernel.audit_nodes import Plan
from tests.kernel.real_situations import has_written
from tests.support import real_proxy
from tests.support.api_server import ApiServer
from tests.support.real_proxy import MODES, KubeProxy, Mode, until


def plan(seed: int, with_ipvs: bool) -> tuple[Plan, Mode]:
    """The Services, hostPorts and listening processes of the random node of this number, and the mode of its kube-proxy."""
    dice = random.Random(seed)
    mode = dice.choice([m for m in MODES if with_ipvs or m.proxy != "ipvs"])
    found = audit_nodes.plan(seed, with_ipvs)
    is_ipvs = mode.proxy == "ipvs"
    services = tuple(replace(s, affinity=s.affinity and not is_ipvs) for s in found.services)
    beside = dice.choice(["legacy", "nft"])
    words = [mode.name, *([f"portmap in {beside}"] if found.host_ports else [])]
    return Plan(seed, mode.proxy, beside, services, found.host_ports, found.listens, words=words), mode


@contextmanager
def written(made: Plan, mode: Mode, proc: Path) -> Iterator[None]:
    """Runs portmap, and kube-proxy during the block; their rules are then there. proc: like /proc, gets its process."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        api = stack.enter_context(ApiServer(_objects(made)))
        if mode.version.startswith("1.20"):
            real_cluster.kubelet(mode.back)
        proxy = KubeProxy(mode, api.kubeconfig(folder), folder)
        proxy.start()
        stack.callback(proxy.stop)
        assert proxy.process
        link = proc / str(proxy.process.pid)
        link.symlink_to(f"/proc/{link.name}")
        stack.callback(link.unlink)
        until(has_written, proxy, "it does not report that it has written its rules")
        program = real_proxy.portmap()
        for host in made.host_ports if program else ():
            assert program
            host_port = real_proxy.HostPort(host.port, "default/pod-d", host.address, host.to, host.container)
            real_proxy.host_port(program, made.back, folder, host_port)
        yield


def _objects(made: Plan) -> list[Object]:
    found = made.objects()
    with_affinity = {s.name for s in made.services if s.affinity}
    for body in found:
        if body["kind"] == "Service" and f"default/{body['metadata']['name']}" in with_affinity:
            body["spec"]["sessionAffinity"] = "ClientIP"
    return found
