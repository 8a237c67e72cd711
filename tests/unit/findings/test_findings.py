# SPDX-License-Identifier: Apache-2.0
"""Every finding has its page and its test; the questions that findings ask the node, on a node made of files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import findings as f
from tests.unit.findings import test_syn_dropped
from tracer import findings as findings_module
from tracer.cluster_findings import DEPARTURES, ENDS, SUSPICIONS, VIEWS
from tracer.findings import Findings, finders, found, syn_finders
from tracer.findings.context import FindingContext
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.handshake import Cause, ConnectionAttempt, HandshakeVerdict
from tracer.model.hop import Drop, DropHop, HookHop, Hop, Socket, SocketHop
from tracer.model.namespace_name import HOST
from tracer.model.packet import Packet
from tracer.node import kube_proxy, procnet
from tracer.node.node import HostReader
from tracer.util.evictions import evictions
from tracer.util.worker import user_warnings

ROOT = Path(__file__).resolve().parents[3]
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:7778 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 22001 1 0000000000000000 100
   1: 0100007F:0277 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 22002 1 0000000000000000 100
   2: 0A38A8C0:7778 0138A8C0:9C40 01 00000000:00000000 00:00000000 00000000     0        0 22003 1 0000000000000000 20
"""
UNSPECIFIED = "0" * 32
REST = f"{UNSPECIFIED}:0000 0A 00000000:00000000 00:00000000 00000000     0        0"
TCP6 = f"""  sl  local_address                         remote_address
   0: {UNSPECIFIED}:1F90 {REST} 22004 1 0000000000000000 100
   1: 0000000000000000FFFF00000A38A8C0:1F91 {REST} 22005 1 0000000000000000 100
"""


KIND = "kind: KubeProxyConfiguration\n"


def test_every_finding_has_a_page_and_a_test() -> None:
    of_clusters = {name for name, _ in (*DEPARTURES, *VIEWS, *ENDS)} | {name for name, _, _ in SUSPICIONS}
    names = sorted({name for name, _ in (*finders(), *syn_finders())} | of_clusters)
    assert len(names) >= 13
    assert sorted(p.stem for p in (ROOT / "docs/findings").glob("*.md") if p.stem != "README") == names
    folders = (ROOT / "tests/unit" / folder for folder in ("findings", "cluster_findings"))
    tests = {p.stem.removeprefix("test_") for folder in folders for p in folder.glob("test_*.py")}
    assert tests - {"findings"} >= set(names)
    files = {p.stem for p in (ROOT / "tracer/cluster_findings").glob("*.py")}
    assert files - {"__init__", "cluster_context", "endpoint_history", "seen_packets", "service_views"} == of_clusters
    index = (ROOT / "docs/findings/README.md").read_text()
    assert all(f"({name}.md)" in index for name in names)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    net = tmp_path / "1/net"
    net.mkdir(parents=True)
    for name, text in (("tcp", TCP), ("tcp6", TCP6)):
        (net / name).write_text(text)
    (net / "netstat").write_text("TcpExt: SyncookiesSent ListenOverflows\nTcpExt: 1 280\nIpExt: InNoRoutes\nIpExt: 3\n")
    (tmp_path / "sys/net/ipv4").mkdir(parents=True)
    (tmp_path / "sys/net/ipv4/ip_local_port_range").write_text("32768\t60999\n")
    (tmp_path / "sys/kernel").mkdir()
    (tmp_path / "sys/kernel/hostname").write_text("IP-10-188-166-140\n")
    (tmp_path / "1/ns").mkdir()
    for name in ("net", "user"):
        (tmp_path / "1/ns" / name).touch()
    return tmp_path


def test_listeners(proc: Path) -> None:
    assert [(b.address, b.port, b.inode) for b in procnet.bound(proc / "1/net", "tcp")] == [
        ("0.0.0.0", 0x7778, 22001), ("127.0.0.1", 0x277, 22002), ("::", 8080, 22004), ("192.168.56.10", 8081, 22005),
    ]  # fmt: skip
    assert procnet.bound(proc / "1/net", "udp") == () == procnet.bound(proc / "1/net", "sctp")


@pytest.mark.parametrize(
    ("address", "port", "place"),
    [
        ("192.168.56.10", 30584, "0.0.0.0:30584"),
        ("fd00::1", 30584, ""),
        ("192.168.56.10", 631, ""),
        ("127.0.0.1", 631, "127.0.0.1:631"),
        ("192.168.56.10", 8080, "[::]:8080"),
        ("fd00::1", 8080, "[::]:8080"),
        ("192.168.56.10", 8081, "192.168.56.10:8081"),
        ("192.168.56.11", 8081, ""),
    ],
)
def test_the_listener_that_would_get_a_packet(proc: Path, address: str, port: int, place: str) -> None:
    found = HostReader(proc).listener(address, port, "tcp")
    assert (found.place if found else "") == place


def test_settings_and_counters(proc: Path) -> None:
    node = HostReader(proc)
    assert node.setting("net/ipv4/ip_local_port_range") == "32768 60999"
    assert node.setting("net/ipv4/tcp_tw_recycle") == ""
    assert node.counters(1) == {"SyncookiesSent": 1, "ListenOverflows": 280} and node.counters(2) == {}


def test_this_process_is_found(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = next((b for b in procnet.bound(Path("/proc/self/net"), "tcp") if b.port == port), None)
        assert found and found.inode == os.fstat(server.fileno()).st_ino


def test_flannels_leases(tmp_path: Path) -> None:
    (tmp_path / "flannel").mkdir()
    text = "FLANNEL_NETWORK=192.168.64.0/20\nFLANNEL_SUBNET=192.168.64.1/24\nFLANNEL_IPV6_SUBNET=fd00:1::1/64\n"
    (tmp_path / "flannel/subnet.env").write_text(text)
    assert HostReader(run=tmp_path).flannel_subnets() == ("192.168.64.0/24", "fd00:1::/64")
    assert HostReader(run=tmp_path / "nothing").flannel_subnets() == ()


def kube_proxy_process(proc: Path, pid: int, *arguments: str, config: str | None = None, uid: int = 0, caps: int = -1) -> None:
    (proc / str(pid) / "ns").mkdir(parents=True)
    for name in ("net", "user"):
        os.link(proc / "1/ns" / name, proc / str(pid) / "ns" / name)
    caps &= (1 << 41) - 1
    (proc / str(pid) / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{caps:016x}\n")
    root = proc / str(pid) / "root/etc"
    root.mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_bytes(b"\0".join(a.encode() for a in arguments) + b"\0")
    if config is not None:
        (root / "conf.yaml").write_text(config)


@pytest.mark.parametrize(
    ("arguments", "config", "names"),
    [
        (("--proxy-mode=ipvs",), None, ["ip-10-188-166-140"]),
        (("--hostname-override", "Node-1"), None, ["node-1"]),
        (("--config=/etc/conf.yaml",), KIND + "hostnameOverride: node-1", ["node-1"]),
        (("--config=/etc/conf.yaml",), KIND + "hostnameOverride: 'node-1'  # by kops", ["node-1"]),
        (("--config=/etc/conf.yaml",), '{"kind":"KubeProxyConfiguration","hostnameOverride":"node-1"}', ["node-1"]),
        (("--config=/etc/conf.yaml",), KIND + 'hostnameOverride: ""', ["ip-10-188-166-140"]),
        (("--config=/etc/conf.yaml",), KIND + "hostnameOverride:", ["ip-10-188-166-140"]),
        (("--config=/etc/conf.yaml", "--hostname-override=node-1"), KIND, ["ip-10-188-166-140", "node-1"]),
        (("--config=/etc/conf.yaml", "--hostname-override=node-1"), KIND + "hostnameOverride: node-1", ["node-1"]),
        (("--config=/etc/conf.yaml",), None, []),
        (("--config=/etc/conf.yaml",), "kind: KubeletConfiguration", []),
    ],
)
def test_the_node_name_that_kube_proxy_uses(
    proc: Path, arguments: tuple[str, ...], config: str | None, names: list[str]
) -> None:
    kube_proxy_process(proc, 77, "/usr/local/bin/kube-proxy", *arguments, config=config)
    found = kube_proxy.running(proc)
    assert found and found.pid == 77 and [name for name, _ in found.names] == names


def test_conntracks_counters_and_an_interfaces_mtu(proc: Path, tmp_path: Path) -> None:
    (proc / "1/net/stat").mkdir()
    (proc / "1/net/stat/nf_conntrack").write_text(
        "entries insert_failed drop\n0000000a 00000001 00000000\n0000000a 0000001f 00000002\n"
    )
    (tmp_path / "class/net/cni0").mkdir(parents=True)
    (tmp_path / "class/net/cni0/mtu").write_text("1450\n")
    node = HostReader(proc, sys=tmp_path)
    assert node.conntrack_counters() == {"entries": 20, "insert_failed": 32, "drop": 2}
    assert (node.mtu("cni0"), node.mtu("gone")) == (1450, 0)
    assert procnet.conntrack(tmp_path) == {}


def test_which_process_is_kube_proxy(proc: Path) -> None:
    assert kube_proxy.running(proc) is None
    kube_proxy_process(proc, 78, "/hyperkube", "kubelet")
    kube_proxy_process(proc, 79, "/usr/local/bin/k3s", "server")
    assert kube_proxy.running(proc) is None
    kube_proxy_process(proc, 80, "/hyperkube", "proxy")
    node = HostReader(proc)
    assert [node.is_kube_proxy(pid) for pid in (78, 79, 80, 81)] == [False, True, True, False]
    found = kube_proxy.running(proc)
    assert found and found.pid == 80
    kube_proxy_process(proc, 82, "kube-proxy")
    assert kube_proxy.running(proc) is None, "with two it is unknown which one wrote the rules"


def test_a_process_that_cannot_write_rules_is_not_kube_proxy(proc: Path) -> None:
    kube_proxy_process(proc, 80, "kube-proxy", "--hostname-override=node-1")
    kube_proxy_process(proc, 81, "kube-proxy", uid=1000)
    kube_proxy_process(proc, 82, "kube-proxy", caps=0xA80425FB)  # the default of a container runtime
    kube_proxy_process(proc, 83, "kube-proxy")
    kube_proxy_process(proc, 84, "kube-proxy")
    for pid, name in ((83, "net"), (84, "user")):
        (proc / str(pid) / "ns" / name).unlink()
        (proc / str(pid) / "ns" / name).touch()
    found = kube_proxy.running(proc)
    assert found and found.pid == 80 and [name for name, _ in found.names] == ["node-1"]
    assert [HostReader(proc).is_kube_proxy(pid) for pid in range(80, 86)] == [True] + [False] * 5
    for name in ("net", "user"):
        (proc / "1/ns" / name).unlink()
    assert kube_proxy.running(proc) is None, "the namespaces of process 1 are unknown"


@pytest.mark.parametrize("how", ["fifo", "zero", "large", "relative", "outside", "gone"])
def test_a_configuration_that_is_not_read(proc: Path, how: str) -> None:
    config = {"relative": "etc/conf.yaml", "gone": "/gone"}.get(how, "/etc/conf.yaml")
    kube_proxy_process(proc, 77, "kube-proxy", f"--config={config}")
    path = proc / "77/root/etc/conf.yaml"
    if how == "fifo":
        os.mkfifo(path)
    elif how == "zero":
        path.symlink_to("/dev/zero")
    elif how == "outside":
        (proc / "secret").write_text(KIND + "hostnameOverride: another")
        path.symlink_to(proc / "secret")
    else:
        path.write_text(KIND + "hostnameOverride: node-1\n" + ("#" * 2_000_000 if how == "large" else ""))
    assert kube_proxy.running(proc) == kube_proxy.KubeProxy(77, ())


def test_a_configuration_behind_links_of_its_own_root(proc: Path) -> None:
    """The volume of a ConfigMap has such links."""
    kube_proxy_process(proc, 77, "kube-proxy", "--config=/etc/conf.yaml")
    (proc / "77/root/var/..data").mkdir(parents=True)
    (proc / "77/root/var/..data/config.conf").write_text(KIND + "hostnameOverride: node-1")
    (proc / "77/root/etc/conf.yaml").symlink_to("/var/..data/config.conf")
    assert kube_proxy.running(proc) == kube_proxy.KubeProxy(77, (("node-1", "hostnameOverride in /etc/conf.yaml"),))


def test_a_line_of_spaces_takes_no_longer_than_another(proc: Path) -> None:
    """The time once grew with the square of the line's length: hours for this line."""
    line = "hostnameOverride:" + " " * 900_000 + "'"
    kube_proxy_process(proc, 77, "kube-proxy", "--config=/etc/conf.yaml", config=f"{KIND}{line}\n")
    assert kube_proxy.running(proc) is not None


def test_a_command_line_without_end(proc: Path) -> None:
    kube_proxy_process(proc, 77, "kube-proxy", *["--v=2"] * 20_000)
    assert kube_proxy.running(proc) is None


def test_a_world_writable_lease_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "flannel").mkdir()
    path = tmp_path / "flannel/subnet.env"
    path.write_text("FLANNEL_SUBNET=192.168.64.1/24\n")
    path.chmod(0o666)
    assert HostReader(run=tmp_path).flannel_subnets() is None, "it exists, and may have leased networks"


def test_the_number_of_findings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender can make a finding with each packet. A known finding still counts its packets."""

    def find(packet: Packet, context: FindingContext) -> Finding:
        return Finding("", (packet.endpoints.sport,), "cause", (), "check", "cure", certain=True)

    monkeypatch.setattr(findings_module, "finders", lambda: (("mtu", find),))
    monkeypatch.setattr(found, "MOST_FINDINGS", 3)
    monkeypatch.setattr(user_warnings, "_keys", set())
    user_warnings.read()
    evictions.read()
    findings = Findings(FindingContext())
    packets = [f.packet([HookHop(n, HOST)], Endpoints("10.0.0.1", n % 10, "10.0.0.2", 80)) for n in range(20)]
    new = [findings.look(packet) for packet in packets]
    assert sum(map(len, new)) == 3 and [each.packets for each in findings.all] == [2, 2, 2]
    assert evictions.read()["findings"] == 14
    assert user_warnings.read() == ["There are more than 3 different findings: further ones are not shown."]


def test_dropped_packets_without_a_finding_are_counted() -> None:
    def dropped(number: int, reason: str) -> Packet:
        hops: list[Hop] = [
            SocketHop(0, HOST, socket=Socket(7, "LISTEN", 42, "server")),
            DropHop(1, HOST, drop=Drop(reason, "somewhere")),
        ]
        return replace(f.packet(hops, Endpoints(f.CLIENT, 40000, "192.168.56.10", 53), number), protocol="UDP")

    findings = Findings()
    for packet in (dropped(1, "SOCKET_RCVBUFF"), dropped(2, "UDP_CSUM"), dropped(3, "UDP_CSUM")):
        findings.look(packet)
    findings.look(f.packet([SocketHop(0, HOST, socket=Socket(7, "", 42, "server"))], Endpoints(f.CLIENT, 1, "10.0.0.1", 2)))
    assert findings.drops_without == 2 and [each.name for each in findings.all] == ["rcvbuf_full"]


def test_a_dropped_syn_has_the_finding_of_its_verdict() -> None:
    syn = test_syn_dropped.syn(test_syn_dropped.FULL, reason="TCP_OVERFLOW")
    findings = Findings(FindingContext(node=f.FakeNode()))
    findings.look(syn)
    assert findings.drops_without == 1
    ends, cause = syn.endpoints, Cause("accept queue full", "dropped", Evidence.OBSERVED)
    verdict = HandshakeVerdict(1, 0, ends, ends, HOST, cause, attempt=ConnectionAttempt(syn, 0))
    findings.look_syn(verdict)
    assert findings.drops_without == 0 and [each.name for each in findings.all] == ["syn_dropped"]
    findings.look_syn(verdict)
    assert findings.drops_without == 0, "each packet is counted once"


def test_waiting_segments_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.findings.MOST_WAITING", 2)
    findings = Findings(FindingContext(node=f.FakeNode()))
    for number in range(5):
        findings.look(test_syn_dropped.syn(test_syn_dropped.FULL, number, "TCP_OVERFLOW"))
    assert findings.drops_without == 5 and len(findings._waiting) == 2
