# SPDX-License-Identifier: Apache-2.0
"""Redaction while a capture is written: no name and no address reaches the file, and its records stay consistent."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import captures
from tests.support.builders import Trail
from tests.support.capture_bytes import everything
from tests.support.ctnetlink import FakeConntrack
from tests.unit.events.test_payload import CLIENT, ip, records
from tracer.capture.format import record_layout
from tracer.capture.format.codec import from_json, to_json
from tracer.capture.format.schema import Record
from tracer.capture.redact import records as records_module
from tracer.capture.redact.events import ADDRESSES, MAPPED
from tracer.capture.redact.records import RecordRedactor
from tracer.events.detail_row import DETAIL_DTYPE, DetailKind
from tracer.events.record import DTYPE, Kind, unpack
from tracer.kube.cni_cache import Sandbox
from tracer.model.bpf_program import AttachedProgram, ProgramPeriod
from tracer.model.kube import HostPort
from tracer.node.kube_proxy import KubeProxy
from tracer.node.procnet import BoundSocket, ConnectedSocket
from tracer.node.proxy_state import ProxyState

KEY = b"k" * 32
WORDS = (b"http-proxy", b"node-1", b"pod-a", b"nginx", b"--port 30285", b"secret")
ADDRESS = ("192.168.56.1", "192.168.56.10", "10.244.0.1", "10.244.0.11", "172.30.253.123")


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)


@pytest.mark.parametrize("explained", [True, False], ids=["-w", "record"])
def test_no_name_and_no_address_reaches_the_file(run: Any, tmp_path: Path, explained: bool) -> None:
    batches = captures.some_batches(8)
    batches[0] = (np.concatenate([records(256, ip(CLIENT)), batches[0][0]]), [])
    datagram = (1, ipaddress.ip_address("192.168.56.1").packed)
    made = captures.capture(
        tmp_path / "a.k8st", batches, explained=explained, conntrack=FakeConntrack(datagram), redacted=RecordRedactor()
    )
    content = everything(made.path)
    for word in WORDS:
        assert word not in content, word
    for address in ADDRESS:
        assert address.encode() not in content and ipaddress.ip_address(address).packed not in content, address
    plain_file = captures.capture(
        tmp_path / "b.k8st", captures.some_batches(8), explained=explained, conntrack=FakeConntrack(datagram)
    )
    assert all(word in everything(plain_file.path) for word in WORDS[:2]), "the test would find them"


def test_a_redacted_capture_replays_the_same_with_other_names(run: Any, tmp_path: Path) -> None:
    plain_file = captures.capture(tmp_path / "b.k8st")
    made = captures.capture(tmp_path / "a.k8st", redacted=RecordRedactor())
    status, out, err = run("-r", made.path, "--no-rules")
    before = run("-r", plain_file.path, "--no-rules")
    assert status == 0 and "could not be read" not in err, err

    def form(text: str) -> list[str]:
        """Lines without names and addresses, and without the width of the columns."""
        text = re.sub(r"\d+\.\d+\.\d+\.\d+", "A", text)
        text = re.sub(r"in \d\.\d s", "in T", text)
        text = re.sub(r"name-[0-9a-f]{6}|http-proxy|default|nginx|pod-a|node-1", "N", text)
        return [" ".join(line.split()) for line in text.splitlines()]

    different = [(a, b) for a, b in zip(form(before[1]), form(out), strict=True) if a != b]
    assert different == [] and "Service name-" in out and "DNAT" in out


def test_pseudonyms_are_stable_and_networks_stay_networks() -> None:
    redacted = RecordRedactor(KEY)
    assert redacted.address("10.244.0.0/16").endswith("/16") and ipaddress.ip_network(redacted.address("10.244.0.0/16"))
    inside = ipaddress.ip_address(redacted.address("10.244.3.7"))
    assert inside in ipaddress.ip_network(redacted.address("10.244.0.0/16"))
    packed = b"\0" * 10 + b"\xff\xff" + ipaddress.ip_address("10.244.3.7").packed
    assert redacted.packed_address(packed)[12:] == inside.packed
    assert redacted.packed_address(bytes(16)) == bytes(16), "the unspecified address stays unspecified"
    assert redacted.namespace("node") == "node" and redacted.namespace("netns 402") == "netns 402" != redacted.namespace("shop")


def test_every_address_of_an_event_and_no_other_byte_changes() -> None:
    trail = Trail(CLIENT, orig=CLIENT, reply=("10.244.0.11", 8080, "10.244.0.1", 40812), in_name="eth0").hook("PREROUTING")
    batch = trail.add("HOOK", flags="SAME").batch
    slots = captures.slots(batch)
    changed, same = unpack(RecordRedactor(KEY).slots(slots)), unpack(slots)
    for name in DTYPE.names or ():
        assert (changed[name][0] == same[name][0]) != (name in ADDRESSES), name
    assert changed[1] == same[1] and (unpack(slots) == same).all()


@pytest.mark.parametrize("address", ["10.96.0.10", "2001:db8::9"])
@pytest.mark.parametrize("what", [DetailKind.DETAIL_CONNECT, DetailKind.DETAIL_LOOKUP])
def test_the_address_that_a_socket_asked_for_or_has_is_redacted(what: DetailKind, address: str) -> None:
    packed = ipaddress.ip_address(address).packed
    packed = packed if len(packed) == 16 else MAPPED + packed
    detail = np.zeros(1, DETAIL_DTYPE)
    detail["kind"], detail["what"], detail["spare"] = Kind.EVENT_CLUE, what, 443
    detail["values"] = np.frombuffer(packed, "<u4")
    row = np.zeros(1, DTYPE)
    row.view(np.uint8)[: DETAIL_DTYPE.itemsize] = detail.view(np.uint8)
    row["flags"] = 128
    (found,) = RecordRedactor(KEY).slots(captures.slots(row))[:, 8:].copy().view(DETAIL_DTYPE).ravel()
    expected = ipaddress.ip_address(RecordRedactor(KEY).address(address)).packed
    assert found["values"].tobytes() == (expected if len(expected) == 16 else MAPPED + expected) != packed
    assert found["spare"] == 443


def test_the_name_of_a_process_that_answers_is_removed() -> None:
    detail = np.zeros(1, DETAIL_DTYPE)
    detail["kind"], detail["what"], detail["option_bytes"] = Kind.EVENT_CLUE, DetailKind.DETAIL_QUEUE_ANSWER, 16
    detail["values"], detail["options"][0, :4] = (1, 41, 219, 0), list(b"knp1")
    row = np.zeros(1, DTYPE)
    row.view(np.uint8)[: DETAIL_DTYPE.itemsize] = detail.view(np.uint8)
    row["flags"] = 128
    (found,) = RecordRedactor(KEY).slots(captures.slots(row))[:, 8:].copy().view(DETAIL_DTYPE).ravel()
    assert found["values"].tolist() == [1, 41, 219, 0] and not found["options"].any()


@pytest.mark.parametrize("address", ["10.0.0.9", "2001:db8::9"])
def test_the_address_of_a_neighbor_is_redacted(address: str) -> None:
    detail = np.zeros(1, DETAIL_DTYPE)
    detail["kind"], detail["what"], detail["packet"] = Kind.EVENT_CLUE, DetailKind.DETAIL_NEIGHBOUR, 256
    packed = ipaddress.ip_address(address).packed
    detail["values"] = np.frombuffer(packed.ljust(16, b"\0"), "<u4")
    row = np.zeros(1, DTYPE)
    row.view(np.uint8)[: DETAIL_DTYPE.itemsize] = detail.view(np.uint8)
    row["flags"] = 128
    slots = captures.slots(row)
    (found,) = RecordRedactor(KEY).slots(slots)[:, 8:].copy().view(DETAIL_DTYPE).ravel()
    expected = ipaddress.ip_address(RecordRedactor(KEY).address(address)).packed
    assert found["values"].tobytes() == expected.ljust(16, b"\0") != packed.ljust(16, b"\0")
    assert found["packet"] == 256 and found["what"] == DetailKind.DETAIL_NEIGHBOUR


def test_records_of_an_unknown_kind_are_emptied() -> None:
    raw = captures.slots(records(256, ip(CLIENT)))
    strange = raw.copy()
    strange[0, 8 + record_layout.field_offset(DTYPE, "kind")] = 99
    discarded = raw.copy()
    discarded[0, 3] = 0x40
    for slots in (raw, strange, discarded):
        changed = RecordRedactor(KEY).slots(slots)
        assert changed.shape == slots.shape
        assert not changed[:3, 8:].any() and record_layout.count(changed) == record_layout.count(slots)


SANDBOX = Sandbox("f" * 64, "cbr0", "shop", "cart-1", ("10.244.0.11",), (HostPort(3306, 3306, "tcp", "192.168.56.10"),))
ANSWERS: list[tuple[Any, Any]] = [
    (("process", 48213), (4242, "nginx")),
    (("netns", 200), "pod-a"),
    (("space names",), ["node", "pod-a"]),
    (("space", "pod-a", "bound"), (BoundSocket("10.244.0.11", 8080, 1),)),
    (("node", "kube-proxy"), KubeProxy(7, (("node-1", "--hostname-override in /home/nginx"),))),
    (("node", "proxy state"), ProxyState((7,), (8,), 9)),
    (("node", "addresses"), {"192.168.56.10": "eth0"}),
    (("node", "flannel"), ("10.244.0.0/24",)),
    (("node", "flannel"), None),
    (("node", ("way out", "10.244.0.11")), "cni0"),
    (("node", ("bound", "tcp")), (BoundSocket("192.168.56.10", 22, 5),)),
    (("node", ("connected", "tcp", 30306)), (ConnectedSocket("192.168.56.10", 30306, "10.244.0.11", 80, 5),)),
]


@pytest.mark.parametrize(("question", "answer"), ANSWERS, ids=lambda v: str(v)[:20])
def test_answers_are_redacted(question: Any, answer: Any) -> None:
    row = RecordRedactor(KEY).row((3, Record.ANSWER.value, "key", [to_json(question), 2, to_json(answer)]))
    assert row
    turn, kind, key, body = row
    text = f"{key} {body}"
    assert (turn, kind, body[1]) == (3, "answer", 2) and type(from_json(body[2])) is type(answer)
    assert not any(word.decode() in text for word in WORDS) and not any(a in text for a in ADDRESS), text


@pytest.mark.parametrize(
    "row",
    [
        (1, "note", "", "The API at api.example.com does not answer."),
        (1, "conntrack", "", [[1, "AAAA"]]),
        (1, "reading", "", {}),
        (1, "nft", "", []),
        (1, "ruleset", "", {}),
        (1, "change", "", [[1, "Service shop/cart"]]),
        (1, "answer", "", [to_json(("conntrack events", "why not")), 1, ""]),
        (1, "answer", "", [to_json(("node", "what comes later")), 1, "secret"]),
        (1, "what comes later", "", ["secret"]),
    ],
    ids=lambda row: f"{row[1]} {str(row[3])[:40]}",
)
def test_records_without_a_redaction_are_left_out(row: Any) -> None:
    assert RecordRedactor(KEY).row(row) is None


def test_objects_keep_their_form() -> None:
    service = {
        "kind": "Service", "metadata": {"namespace": "shop", "name": "cart"},
        "spec": {"type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "externalTrafficPolicy": "Local",
                 "ports": [{"name": "http", "port": 80, "targetPort": "web", "protocol": "TCP"}]},
        "status": {"loadBalancer": {"ingress": [{"hostname": "cart.example.com"}, {"ip": "203.0.113.9"}]}},
    }  # fmt: skip
    redacted = RecordRedactor(KEY)
    row = redacted.row((0, Record.OBJECTS.value, "Service shop/cart", ["apply", "Service", [service]]))
    assert row
    key, (what, kind, (found,)) = row[2], row[3]
    shop, cart = redacted.name("shop"), redacted.name("cart")
    assert (key, what, kind) == (f"Service {shop}/{cart}", "apply", "Service")
    assert found["metadata"] == {"namespace": shop, "name": cart}
    assert found["spec"]["ports"] == service["spec"]["ports"] and found["spec"]["type"] == "NodePort"  # type: ignore[index]
    assert found["spec"]["clusterIPs"] == [redacted.address("10.96.0.1")] != ["10.96.0.1"]
    assert "example" not in str(found) and "203.0.113.9" not in str(found)
    named = redacted.row((0, Record.OBJECTS.value, "node-1", ["named", "node-1", []]))
    assert named and named[2:] == (redacted.name("node-1"), ["named", redacted.name("node-1"), []])


def test_a_program_keeps_no_path_and_no_process() -> None:
    program = AttachedProgram("cgroup", 7, "sd_fw", pin="/sys/fs/bpf/x", holder="pod-a (pid 1)", cgroup="/kubepods/pod-a")
    question = ("programs", 0, 70, "cgroup egress")
    row = RecordRedactor(KEY).row(
        (3, Record.ANSWER.value, "key", [to_json(question), 2, to_json((ProgramPeriod(1, 0, (program,)),))])
    )
    assert row and from_json(row[3][2]) == (ProgramPeriod(1, 0, (AttachedProgram("cgroup", 7, "sd_fw"),)),)


def test_a_sandbox_keeps_no_name() -> None:
    row = RecordRedactor(KEY).row((0, Record.SANDBOXES.value, "", [1, to_json([SANDBOX])]))
    assert row and not any(word in str(row) for word in ("shop", "cart", "10.244", "192.168", "ffff"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-w", "x.k8st", "--redact"], "needs --no-rules"),
        (["record", "x.k8st", "--redact"], "needs --no-rules"),
        (["record", "x.k8st", "--redact", "--no-rules", "--snaplen", "96"], "cannot be combined with --snaplen"),
        (["--redact", "--no-rules"], "need -w FILE"),
        (["-r", "x.k8st", "--redact"], "-r replays a finished run"),
    ],
)
def test_impossible_options_are_refused_with_one_sentence(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*args)
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1 and not list(tmp_path.iterdir())


def test_pseudonyms_of_addresses_are_bounded_and_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "ADDRESSES_KEPT", 10)
    redactor = RecordRedactor(KEY)
    raw = [ipaddress.IPv6Address(f"fd00::{n:x}").packed for n in range(1, 100)]
    first = [redactor.packed_address(each) for each in raw]
    assert (len(redactor._packed), redactor._packed.evicted) == (10, 89)
    assert [redactor.packed_address(each) for each in raw] == first and len(set(first)) == len(raw)
