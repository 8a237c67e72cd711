# SPDX-License-Identifier: Apache-2.0
"""The JSON format agrees with its schema, and the schema agrees with its documentation."""

from __future__ import annotations

import copy
import io
import json
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from tests.support import sample_packets as samples
from tracer import __version__, render
from tracer.model.bpf_program import AttachedProgram
from tracer.model.check import CheckResult
from tracer.model.endpoints import Endpoints
from tracer.model.hop import Handshake, Socket
from tracer.model.kube import Owner
from tracer.model.packet import Flow, Packet
from tracer.model.summary import RunSummary
from tracer.render.json import JsonOutput
from tracer.render.parts.json_packet import rfc3339

SCHEMA = json.loads(resources.files(render).joinpath("schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)
DOCUMENT = (Path(__file__).resolve().parents[3] / "docs/json.md").read_text(encoding="utf-8")
EXAMPLES = [json.loads(line) for line in DOCUMENT.splitlines() if line.startswith('{"type"')]
FACTS = [CheckResult("kernel", "ok", "Linux 6.1"), CheckResult("bcc", "missing", "install it", 5)]


def line(packet: Packet) -> dict[str, Any]:
    """The object that is written for a packet, validated with the schema."""
    out = io.StringIO()
    JsonOutput(out, io.StringIO()).packet(packet)
    text = out.getvalue()
    assert text.endswith("}\n") and text.count("\n") == 1
    found: dict[str, Any] = json.loads(text)
    VALIDATOR.validate(found)
    return found


def keys(value: Any) -> set[str]:
    """All keys at any depth."""
    if isinstance(value, dict):
        return set(value) | {k for v in value.values() for k in keys(v)}
    return {k for v in value for k in keys(v)} if isinstance(value, list) else set()


def test_the_schema_is_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_a_node_port_request() -> None:
    found = line(samples.node_port())
    assert found["time"] == "2026-01-31T14:03:22.118204511Z"
    assert (found["family"], found["proto"], found["ifname"], found["tcp_flags"]) == ("ipv4", "tcp", "eth0", "SYN")
    assert "ip_id" in found
    assert found["flow"]["reply"] == {"src": "10.244.0.11", "sport": 8080, "dst": "10.244.0.1", "dport": 23711}
    assert found["flow"]["reply_direction"] is False
    assert [h["time_ns"] for h in found["hops"]][:4] == [0, 11_000, 14_000, 15_000]
    nat = found["hops"][2]["nat"]
    assert nat["kind"] == "DNAT" and nat["after"]["dst"] == "10.244.0.11" and nat["before"]["dport"] == 30285
    assert found["hops"][1]["mark"] == 0x4000
    assert found["hops"][9]["socket"] == {"state": "LISTEN", "inode": 48213, "pid": 4242, "command": "nginx"}
    assert found["syn"]["accepted"] is True
    assert "drop" not in found and found["complete"] is True


def test_fields_that_do_not_apply_are_absent() -> None:
    found = line(samples.ping())
    assert found["hops"] == []
    absent = {"sport", "dport", "tcp_flags", "seq", "flow", "drop", "syn"}
    assert not absent & set(found)
    for packet in samples.every():
        assert "null" not in json.dumps(line(packet))


def test_a_drop_without_a_reason_and_an_unknown_answer() -> None:
    unknown_answer = samples.hop(9, "handshake", handshake=Handshake("request", None, 0, 0, 0))
    found = line(samples.with_hops(samples.full_queue(), unknown_answer, samples.hop(9, "socket", socket=Socket(0, "", 0, ""))))
    assert found["drop"] == {"function": "tcp_conn_request"}
    assert found["hops"][-2]["handshake"] == {"stage": "request", "accept_queue": 0, "accept_limit": 0, "syn_queue": 0}
    assert found["hops"][-1]["socket"] == {}
    assert found["complete"] is False


def test_an_icmp_error_carries_the_ports_of_its_connection_only() -> None:
    packet = replace(samples.ping(), flow=Flow(samples.REQUESTED, samples.REQUESTED.reversed, "RELATED", False, 0))
    found = line(packet)
    assert found["flow"]["orig"]["dport"] == 30285 and "dport" not in found


def test_rejections_copies_and_derived_hops() -> None:
    chain = line(samples.rejected())["hops"][0]
    assert (chain["table"], chain["chain"]) == ("ip6 kube-proxy", "filter-output")
    assert (chain["verdict"], chain["reject"]) == ("REJECT", "icmp6-port-unreachable")
    assert line(samples.no_socket())["hops"][1]["clone"] is True
    assert [h["evidence"] for h in line(samples.node_port_reply())["hops"]][:2] == ["observed", "derived"]


def test_a_whole_run() -> None:
    out, err = io.StringIO(), io.StringIO()
    form = render.find("json")(out, err)
    form.begin(FACTS, "--port 30285", "6.1.0")
    form.packet(samples.ping())
    form.lost(SimpleNamespace(probe="hook", cpu=-1, count=3, why="the ring buffer was full"))
    form.lost(SimpleNamespace(probe="hook", cpu=0, count=2, why="the ring buffer was full"))
    form.note("a note")
    form.summary(RunSummary(1, 0, 7, 5, {"delivered": 1}, 1.23456, unexplained=3, unaddressed=2, joined=4))
    found = [json.loads(text) for text in out.getvalue().splitlines()]
    for each in found:
        VALIDATOR.validate(each)
    assert [each["type"] for each in found] == ["run", "packet", "lost", "lost", "summary"]
    assert (found[-1]["findings"], found[-1]["unexplained"], found[-1]["unaddressed"]) == ([], 3, 2)
    assert found[-1]["joined"] == 4
    assert (found[0]["version"], found[0]["kernel"]) == (__version__, "6.1.0")
    assert found[0]["facts"][1] == {"subject": "bcc", "state": "missing", "text": "install it"}
    assert found[2] == {"type": "lost", "probe": "hook", "cpu": -1, "count": 3, "why": "the ring buffer was full"}
    assert found[4]["lost_by_probe"] == {"hook": 5} and found[4]["seconds"] == 1.235
    assert err.getvalue() == "a note\n"


def test_doctor() -> None:
    out = io.StringIO()
    JsonOutput(out, io.StringIO()).doctor(FACTS, 5)
    found = json.loads(out.getvalue())
    VALIDATOR.validate(found)
    assert found["type"] == "doctor" and found["status"] == 5 and len(found["facts"]) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda o: o.update(surprise=1),
        lambda o: o.update(ifname=None),
        lambda o: o.pop("verdict"),
        lambda o: o.pop("sport"),
        lambda o: o.update(time="2026-01-31 14:03:22"),
        lambda o: o["hops"][0].update(evidence="guessed"),
        lambda o: o["hops"][2]["nat"].pop("after"),
    ],
)
def test_the_schema_refuses_fields_outside_the_contract(spoil: Any) -> None:
    found = copy.deepcopy(line(samples.node_port()))
    spoil(found)
    with pytest.raises(ValidationError):
        VALIDATOR.validate(found)


def test_the_schema_accepts_a_rule_and_its_owner() -> None:
    found = line(samples.rejected())
    rule = {"chain": "KUBE-SVC-A", "number": 3, "text": "-A KUBE-SVC-A -j REJECT"}
    owner = {"kind": "Service", "namespace": "default", "name": "web", "port": "http", "text": "Service default/web:http"}
    found["hops"][0] |= {"chain_path": "OUTPUT 1 > KUBE-SVC-A 3", "rule": rule, "owner": owner}
    VALIDATOR.validate(found)


def test_owners_of_hops_and_ends() -> None:
    found = samples.node_port()
    owner = Owner("Service", "default", "http-proxy", "http", "kube-proxy", "NodePort 30285", evidence="comment")
    found = replace(samples.with_hop(found, 2, owner=owner), dst_owner=owner)
    written = line(found)
    VALIDATOR.validate(written)
    assert written["hops"][2]["owner"] == written["ends"]["dst"] == {
        "kind": "Service", "namespace": "default", "name": "http-proxy", "port": "http", "program": "kube-proxy",
        "detail": "NodePort 30285", "evidence": "comment", "text": "Service default/http-proxy:http, NodePort 30285",
    }  # fmt: skip
    assert "src" not in written["ends"]


def test_ipvs() -> None:
    chosen, known, none = (line(packet)["hops"][1] for packet in samples.ipvs())
    assert chosen["what"] == "ipvs" and chosen["nat"]["after"]["dst"] == "10.244.0.11"
    assert chosen["ipvs"] == {
        "virtual": "192.168.56.10", "virtual_port": 30285, "protocol": "tcp", "scheduler": "rr", "persistent": True,
        "real": "10.244.0.11", "real_port": 8080, "chosen": "now", "evidence": "observed",
    }  # fmt: skip
    assert (known["ipvs"]["chosen"], known["ipvs"]["evidence"]) == ("earlier", "derived")
    assert (none["verdict"], none["reject"]) == ("REJECT", "icmp-port-unreachable")
    assert set(none["ipvs"]) == {"virtual", "virtual_port", "protocol", "scheduler"} and "nat" not in none


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e["type"])
def test_the_documented_examples_are_valid(example: dict[str, Any]) -> None:
    VALIDATOR.validate(example)


def test_every_kind_of_line_has_an_example_and_every_key_is_documented() -> None:
    kinds = {ref["$ref"].rpartition("/")[2] for ref in SCHEMA["oneOf"]}
    assert kinds == {e["type"] for e in EXAMPLES}
    named = set(re.findall(r"`(\w+)`", DOCUMENT))
    keys_of_schema = {key for kind in SCHEMA["$defs"].values() for key in kind.get("properties", ())} - {"type"}
    assert keys_of_schema <= named, keys_of_schema - named


def test_times_keep_their_nanoseconds() -> None:
    assert rfc3339(1_769_868_202_000_000_001) == "2026-01-31T14:03:22.000000001Z"
    assert rfc3339(0) == "1970-01-01T00:00:00.000000000Z"


def test_names_from_outside_stay_on_one_line() -> None:
    hop = samples.hop(0, "socket", socket=Socket(1, "LISTEN", 7, 'a"\n\x1b'))
    found = line(replace(samples.node_port(), hops=(hop,), endpoints=Endpoints("::1", 1, "::2", 2)))
    assert found["hops"][0]["socket"]["command"] == 'a"\n\x1b' and found["family"] == "ipv6"
    assert "command" in keys(found)


def test_the_program_that_dropped_a_packet() -> None:
    program = AttachedProgram("tc", 42, "cil_x", "ab", "Cilium", "pin", "/sys/fs/bpf/x")
    found = line(samples.dropped_by_program(program))["drop"]["program"]
    assert found == {
        "point": "tc ingress", "ifname": "eth0", "evidence": "derived", "kind": "tc", "id": 42, "name": "cil_x", "tag": "ab",
        "loader": "Cilium", "loader_evidence": "pin", "pin": "/sys/fs/bpf/x",
    }  # fmt: skip
    found = line(samples.dropped_by_program(program, AttachedProgram("tcx", 43, holder="x (pid 1)")))["drop"]["program"]
    assert (found["evidence"], found["doubt"]) == ("candidate", "which of them is not known") and "id" not in found
    assert [each["id"] for each in found["candidates"]] == [42, 43]
    found = line(samples.dropped_by_program())["drop"]["program"]
    assert (found["evidence"], found["candidates"]) == ("unknown", [])


def test_a_program_that_rewrote_and_redirected_a_packet() -> None:
    program = AttachedProgram("tc", 42, "cil_x", loader="Cilium", loader_evidence="pin")
    rewrite, redirect = line(samples.changed_by_program(program))["hops"]
    known = {
        "point": "tc ingress", "ifname": "eth0", "evidence": "derived", "kind": "tc", "id": 42, "name": "cil_x",
        "loader": "Cilium", "loader_evidence": "pin",
    }  # fmt: skip
    assert rewrite["program"] == known and rewrite["nat"]["kind"] == "rewritten"
    assert redirect["redirect"] == {"helper": "bpf_redirect", "to": "eth1", "ingress": True, "program": known}
    _, redirect = line(samples.changed_by_program(program, is_observed=True))["hops"]
    assert redirect["redirect"]["program"]["evidence"] == "observed"
    _, redirect = line(samples.changed_by_program())["hops"]
    assert redirect["redirect"]["program"]["evidence"] == "unknown"
