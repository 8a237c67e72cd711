# SPDX-License-Identifier: Apache-2.0
"""The node's files, read from a container without the node's directories: real namespaces, a real container's view."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import spaces
from tracer.node import host_files

ROOT = Path(__file__).resolve().parents[3]
LOOK = """
import json
from tracer.node import host_files
from tracer.node.node import HostReader
from tracer.kube.cni_cache import CniCache
from tracer.node.namespaces import Namespaces
from tracer.node import netns
spaces = Namespaces()
inode = spaces.find("pod-a")
print(json.dumps([host_files.elsewhere(), spaces.name(inode) == "pod-a", str(netns.find(inode)),
    [s.name for s in CniCache().every()], list(HostReader().flannel_subnets())]))
"""
NEW = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
POD = [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web"]]
CACHED = {"kind": "cniCacheV1", "containerId": "c", "networkName": "n", "cniArgs": POD}
NODE = f"""
mount -t tmpfs none /run && mount -t tmpfs none /var/lib && mkdir -p /run/netns /run/flannel /var/lib/cni/results
echo FLANNEL_SUBNET=10.1.2.1/24 >/run/flannel/subnet.env
echo '{json.dumps(CACHED)}' >/var/lib/cni/results/n-c-eth0
touch /run/netns/pod-a && unshare --net mount --bind /proc/self/ns/net /run/netns/pod-a
"""
CONTAINER = "mount -t tmpfs none /run && mount -t tmpfs none /var/lib && "


@pytest.mark.parametrize(("inside", "elsewhere"), [(CONTAINER, True), ("", False)], ids=["container", "node"])
def test_names_and_pods_of_the_node(inside: str, elsewhere: bool) -> None:
    spaces.need(*NEW)
    look = f'exec "{sys.executable}" -c "$LOOK"'
    then = f"unshare --mount sh -c '{inside}{look}'" if elsewhere else f"sh -c '{look}'"
    ran = subprocess.run(
        [*NEW, "sh", "-ec", f"{NODE}\n{then}\ntrue"],
        cwd=ROOT, env={**os.environ, "LOOK": LOOK}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    where = "/proc/1/root/run/netns/pod-a" if elsewhere else "/run/netns/pod-a"
    assert json.loads(ran.stdout) == [elsewhere, True, where, ["web"], ["10.1.2.0/24"]]


def test_process_1_that_cannot_be_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_files, "MOUNTS", ("/proc/no/ns/mnt", "/proc/self/ns/mnt"))
    assert not host_files.elsewhere() and host_files.of_node("/run/x") == Path("/run/x")
