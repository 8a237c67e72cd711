# SPDX-License-Identifier: Apache-2.0
"""pcapng as Wireshark's own programs read it: identity of packets, times in ns, names, and the profile with colours.

The blocks themselves are also read here, without these programs.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures, sample_packets
from tracer import __version__
from tracer.export import CaptureInfo, ExportOptions, _address_names, _pcapng_blocks, pcapng
from tracer.export._address_names import AddressNames
from tracer.export.pcapng import MORE_INTERFACES, Pcapng, as_shown
from tracer.model.endpoints import Endpoints
from tracer.model.kube import Owner
from tracer.model.namespace_name import Netns
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary

pytest.importorskip("scapy")
PROFILE = Path(__file__).resolve().parents[3] / "docs/wireshark/k8snet-trace"
ABOUT = CaptureInfo("a.k8st", "node-1", "6.12.0", "--port 1", 0)
POD, SERVICE = Owner("Pod", "shop", "web-a", detail="on node-1"), Owner("Service", "shop", "cart", detail="cluster IP")
with_tshark = pytest.mark.skipif(not shutil.which("tshark"), reason="there is no tshark here (make report-check installs it)")


def written(target: Path, *packets: Packet, as_it_came: bool = False) -> Path:
    made = Pcapng(target, ABOUT, ExportOptions(as_it_came))
    for packet in packets:
        made.packet(packet)
    made.close(RunSummary())
    return target


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Type and body of each block; both lengths of a block are compared."""
    data = path.read_bytes()
    while data:
        kind, length = struct.unpack_from("<II", data)
        assert length % 4 == 0 and struct.unpack_from("<I", data, length - 4) == (length,)
        yield kind, data[8 : length - 4]
        data = data[length:]


def options(body: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while body:
        code, length = struct.unpack_from("<HH", body)
        if not code:
            break
        found[code] = body[4 : 4 + length]
        body = body[4 + length + -length % 4 :]
    return found


def tshark(path: Path, home: Path, *words: str) -> list[list[str]]:
    """Fields that tshark prints, without the user's own settings."""
    done = subprocess.run(
        ["tshark", "-r", str(path), *words], capture_output=True, text=True, env=os.environ | {"HOME": str(home)}, check=False
    )
    wrong = [line for line in done.stderr.splitlines() if not line.startswith("Running as user")]
    assert done.returncode == 0 and wrong == []
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_each_block_as_the_format_says(tmp_path: Path) -> None:
    packet = sample_packets.node_port()
    found = list(blocks(written(tmp_path / "a.pcapng", packet)))
    kinds = [kind for kind, _ in found]
    assert kinds == [0x0A0D0D0A, 1, 6, 1, 6, 6]
    program = f"k8snet-trace {__version__}".encode()
    assert options(found[0][1][16:]) == {3: b"Linux 6.12.0", 4: program, 1: b"--port 1"}
    assert options(found[1][1][8:]) == {2: b"node/eth0", 9: b"\x09"}
    number, high, low, kept, length = struct.unpack_from("<IIIII", found[2][1])
    assert (number, high << 32 | low, length) == (0, packet.time, 60)
    more = options(found[2][1][20 + kept + -kept % 4 :])
    assert struct.unpack("<Q", more[5]) == (packet.number,) and more[1].startswith(b"packet 1: SYN answered")


def test_the_copies_of_a_packet_have_its_identity(tmp_path: Path) -> None:
    packets = [sample_packets.node_port(), sample_packets.node_port_reply()]
    numbers: list[int] = []
    for kind, body in blocks(written(tmp_path / "a.pcapng", *packets)):
        if kind == 6:
            kept = struct.unpack_from("<I", body, 12)[0]
            numbers += struct.unpack("<Q", options(body[20 + kept + -kept % 4 :])[5])
    assert numbers == [1, 1, 1, 2, 2, 2]


def test_one_copy_of_each_packet_as_it_came(tmp_path: Path) -> None:
    packets = [sample_packets.node_port(), sample_packets.node_port_reply()]
    found = [body for kind, body in blocks(written(tmp_path / "a.pcapng", *packets, as_it_came=True)) if kind == 6]
    assert [struct.unpack_from("<II", body, 4) for body in found] == [divmod(p.time, 1 << 32) for p in packets]


@pytest.mark.parametrize("form", ["html", "jsonl", "parquet"])
def test_other_formats_do_not_have_this_option(run: Any, tmp_path: Path, form: str) -> None:
    status, out, err = run("export", tmp_path / "a.k8st", "--to", form, "--as-it-came", tmp_path / "x")
    assert (status, out) == (2, "") and f"--as-it-came is an option of pcapng, not of {form}." in err


def test_the_option_of_the_command(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    capture = captures.capture(tmp_path / "a.k8st", captures.some_batches(20), form="json")
    assert run("export", capture.path, "--to", "pcapng", "--as-it-came", tmp_path / "a.pcapng")[0] == 0
    assert sum(kind == 6 for kind, _ in blocks(tmp_path / "a.pcapng")) == 20


def test_names_of_pods_and_services() -> None:
    packet = replace(sample_packets.node_port(), src_owner=POD, dst_owner=SERVICE)
    names = AddressNames()
    names.add(packet)
    names.add(packet)
    assert names.by_address() == {"192.168.56.1": "web-a.shop.pod", "192.168.56.10": "cart.shop.svc"}


@pytest.mark.parametrize(
    "owner",
    [
        Owner("Service", "shop", "cart", detail="NodePort 30285"),
        Owner("Pod", "shop", "web-a", detail="hostPort 80"),
        Owner("external"),
        Owner("Pod", "shop", "a\x1b[31m"),
        Owner("Pod", "shop", "a" * 300),
    ],
)
def test_an_address_that_is_not_the_owners_has_no_name(owner: Owner) -> None:
    names = AddressNames()
    names.add(replace(sample_packets.node_port(), dst_owner=owner))
    assert names.by_address() == {}


def test_an_address_with_two_names_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_address_names, "MOST_NAMES", 2)
    packet = replace(sample_packets.node_port(), src_owner=POD)
    names = AddressNames()
    for owner in (POD, replace(POD, name="web-b"), POD):
        names.add(replace(packet, src_owner=owner))
    names.add(replace(packet, endpoints=replace(packet.endpoints, src="not an address")))
    names.add(replace(packet, endpoints=replace(packet.endpoints, src="10.0.0.9")))
    assert names.by_address() == {}, "the first has two names, the second is no address, and for the third there is no room"


def test_there_is_a_most_of_interfaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pcapng, "MOST_INTERFACES", 2)
    packets = [replace(sample_packets.ping(), iface=f"eth{n}", number=n) for n in range(4)]
    found = list(blocks(written(tmp_path / "a.pcapng", *packets)))
    assert [options(body[8:])[2].decode() for kind, body in found if kind == 1] == ["node/eth0", "node/eth1", MORE_INTERFACES]
    assert [struct.unpack_from("<I", body)[0] for kind, body in found if kind == 6] == [0, 1, 2, 2]


def test_a_long_text_is_cut_at_a_character() -> None:
    block = _pcapng_blocks.interface("é" * 40_000)
    name = options(block[16:-4])[2]
    assert len(name) == 65_534 and set(name.decode()) == {"é"}


def test_a_capture_for_wireshark(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    capture = captures.capture(tmp_path / "a.k8st", captures.some_batches(20), form="json")
    target = tmp_path / "out.pcapng"
    assert run("export", capture.path, "--to", "pcapng", target)[0] == 0
    from scapy.utils import PcapNgReader

    with PcapNgReader(str(target)) as reader:
        packets = list(reader)
    assert len(packets) == 20 + 2 * 10, "each rewrite adds the packet once more"
    first = packets[0]
    assert (first["IP"].src, first["TCP"].dport, first["TCP"].flags) == ("192.168.56.1", 30285, "S")
    assert first.wirelen == 60 and b"packet 1: delivered to pid 4242 nginx in pod-a" in first.comments[0]
    if shutil.which("tshark"):
        fields = ["-T", "fields", "-e", "frame.interface_name", "-e", "ip.src", "-e", "tcp.dstport"]
        chosen = ["-Y", 'frame.comment contains "rule=INPUT 1"']
        done = subprocess.run(["tshark", "-r", str(target), *chosen, *fields], capture_output=True, text=True)
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        assert rows == [["node/eth0", "192.168.56.1", "8080"]] * 9, done.stderr


def test_an_interface_has_packets_of_both_families(tmp_path: Path) -> None:
    from scapy.layers.inet import IP
    from scapy.layers.inet6 import IPv6
    from scapy.utils import RawPcapNgReader

    four, six = sample_packets.node_port(), sample_packets.node_port()
    six = replace(six, endpoints=Endpoints("fd00:56::1", 40812, "fd00:56::10", 30285), hops=six.hops[:1])
    target = tmp_path / "out.pcapng"
    made = Pcapng(target, ABOUT)
    for each in (six, four):
        made.packet(each)
    made.close(RunSummary())
    with RawPcapNgReader(str(target)) as reader:
        (first, of_first), (second, of_second), *_ = list(reader)
    assert of_first.linktype == of_second.linktype == _pcapng_blocks.LINKTYPE_RAW, "the first bits show the IP version"
    assert (IPv6(first).dst, IP(second).dst) == ("fd00:56::10", "192.168.56.10")


def test_the_comments_of_a_packet() -> None:
    shown = as_shown(sample_packets.node_port())
    assert len(shown) == 3 and [s.ends.dport for s in shown] == [30285, 8080, 8080]
    assert shown[0].comment.startswith("packet ") and "DNAT" in shown[0].comment and "DNAT" in shown[1].comment
    assert shown[0].time < shown[1].time


@with_tshark
def test_tshark_links_the_copies(tmp_path: Path) -> None:
    packets = [sample_packets.node_port(), sample_packets.node_port_reply()]
    path = written(tmp_path / "a.pcapng", *packets)
    fields = ["-T", "fields", "-e", "frame.time_epoch", "-e", "frame.packet_id", "-e", "frame.interface_name"]
    rows = tshark(path, tmp_path, "-Y", "frame.packet_id == 1", *fields)
    times = [f"{shown.time // 10**9}.{shown.time % 10**9:09d}" for shown in as_shown(packets[0])]
    interfaces = ["node/eth0", "node/rewritten", "node/rewritten"]
    assert rows == [[time, "1", interface] for time, interface in zip(times, interfaces, strict=True)]


@with_tshark
def test_tshark_shows_the_names_of_addresses(tmp_path: Path) -> None:
    four = replace(sample_packets.node_port(), src_owner=POD, dst_owner=SERVICE)
    six = replace(four, endpoints=Endpoints("fd00:56::1", 1, "fd00:56::10", 2), hops=four.hops[:1])
    path = written(tmp_path / "a.pcapng", four, six)
    words = ["-2", "-Nn", "-T", "fields", "-e", "_ws.col.Source", "-e", "_ws.col.Destination"]
    rows = tshark(path, tmp_path, *words)
    assert rows[0] == rows[-1] == ["web-a.shop.pod", "cart.shop.svc"]


@with_tshark
def test_the_profile_of_wireshark(tmp_path: Path) -> None:
    """Its filters are correct, and colour a packet that was dropped, one that was rewritten and one that arrived."""
    shutil.copytree(PROFILE, tmp_path / ".config/wireshark/profiles/k8snet-trace")
    packets = [sample_packets.node_port(), sample_packets.rejected(), sample_packets.full_queue(), sample_packets.ping()]
    path = written(tmp_path / "a.pcapng", *packets)
    words = ["--color", "-C", "k8snet-trace", "-T", "fields", "-e", "frame.packet_id", "-e", "frame.coloring_rule.name"]
    rows = tshark(path, tmp_path, *words)
    nat, colours = "rewritten by NAT", ["SYN answered", "dropped or rejected", "incomplete", "arrived"]
    assert rows == [["1", colours[0]], ["1", nat], ["1", nat], ["3", colours[1]], ["4", colours[2]], ["6", colours[3]]]
    columns = tshark(path, tmp_path, "-C", "k8snet-trace")
    assert all("node/eth0" in line or "node" in line for (line,) in columns) and "packet 1: SYN answered" in columns[0][0]


@with_tshark
def test_capinfos(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pcapng", replace(sample_packets.node_port(), netns=Netns("pod \u202e\x1b")))
    done = subprocess.run(["capinfos", str(path)], capture_output=True, text=True, check=True)
    found = dict(line.split(":", 1) for line in done.stdout.splitlines() if ":" in line)
    assert found["Number of packets"].strip() == "3" and found["File timestamp precision"].strip() == "nanoseconds (9)"
    assert found["Capture oper-sys"].strip() == "Linux 6.12.0" and "Capture comment" in found
    assert "Name = pod \\u202e\\x1b/eth0" in done.stdout
