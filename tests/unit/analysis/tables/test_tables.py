# SPDX-License-Identifier: Apache-2.0
"""The tables: their rows, their names, and the data dictionary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import reserved_words, sample_packets, syns
from tracer.analysis import dictionary
from tracer.analysis.connection_totals import ConnectionTotals
from tracer.analysis.table_schema import NODE, ColumnType
from tracer.analysis.tables import names, tables
from tracer.analysis.tables.losses import DatedLoss
from tracer.model.connection import ConnectionKey
from tracer.model.counter_mismatch import CounterMismatch
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import TableHop
from tracer.model.kube import UNKNOWN, Owner
from tracer.model.loss import Loss
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome, Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace
from tracer.model.timeline import Timeline

PAGE = Path(__file__).resolve().parents[4] / "docs/sql.md"
COLUMNS = [(name, column) for name, table in tables().items() for column in (NODE, *table.columns)]
RULE = Rule("ip", "filter", "KUBE-FIREWALL", 1, "-m mark --mark 0x8000 -j DROP", "kubernetes firewall", "DROP")


def rows(name: str, *read: object) -> list[dict[str, Any]]:
    table = tables()[name]
    return [dict(zip([c.name for c in table.columns], row, strict=True)) for each in read for row in table.rows(each)]


def of_every_table() -> Iterator[tuple[str, object]]:
    packets = [*sample_packets.every(), *sample_packets.ipvs(), dropped_by(RULE)]
    for name in ("packets", "hops", "rule_hits", "drops"):
        yield from ((name, packet) for packet in packets)
    yield from (("syns", v) for v in syns.verdicts(syns.syn(*syns.at_listener(True)), syns.synack(), syns.last_ack()))
    totals = ConnectionTotals(Timeline(ConnectionKey.of(packets[0]), 1, 1, packets[0].endpoints, number=1))
    totals.add(packets[0])
    yield "connections", totals
    yield "findings", Finding("x", (1,), "It is so.", (FindingEvidence("rule", "text", "observed"),), "look", "mend")
    yield "counters", CounterMismatch(HOST, "ListenDrops", 3, 1)
    yield "losses", DatedLoss(Loss("table", 1, 17, "the ring buffer was full", 10, 20), 1000)


def dropped_by(rule: Rule | None, owner: Owner | None = None) -> Packet:
    """A packet that a rule drops, or a policy. owner: of the rule."""
    chain = rule.chain if rule else "INPUT"
    hit = RuleHit((RuleLocation("INPUT", 2), RuleLocation(chain, rule.number if rule else 0)), rule, "DROP", Evidence.OBSERVED)
    hop = TableHop(5, HOST, Hook.INPUT, table="filter", verdict=Verdict.DROP, rule_trace=RuleTrace((hit,)), owner=owner)
    return replace(sample_packets.node_port(), hops=(hop,), outcome=Outcome.DROPPED, verdict="DROPPED in filter/INPUT")


@pytest.mark.parametrize(("name", "read"), list(of_every_table()), ids=lambda value: value if isinstance(value, str) else "")
def test_values_have_the_type_of_their_column(name: str, read: object) -> None:
    kinds = {ColumnType.BIGINT: int, ColumnType.TIMESTAMP: int, ColumnType.BOOLEAN: bool, ColumnType.VARCHAR: str}
    table = tables()[name]
    assert isinstance(read, table.reads)
    for row in table.rows(read):
        for column, value in zip(table.columns, row, strict=True):
            assert value is None or type(value) is kinds[column.type], (column.name, value)
            assert value != "", f"{column.name}: what is not known is NULL"


def test_every_table_has_a_sample() -> None:
    assert {name for name, read in of_every_table() if rows(name, read)} == set(names())


def test_the_data_dictionary_is_that_of_the_tables() -> None:
    """In both directions: a column that is missing, and one that no table has, make the page differ."""
    page = PAGE.read_text(encoding="utf-8")
    assert dictionary.filled(page) == page, "run: python -m tracer.analysis.dictionary docs/sql.md"
    found = re.findall(r"^### (\w+)$|^\| `(\w+)` \| (\w+) \| (\w*) \| .+ \|$", page, re.M)
    listed, table = set(), ""
    for heading, column, kind, unit in found:
        table = heading or table
        listed |= {(table, column, kind, unit)} if column else set()
    assert listed == {(name, c.name, c.type.value, c.unit) for name, c in COLUMNS}


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no marks"):
        dictionary.filled("# SQL")


def test_no_name_is_a_reserved_word() -> None:
    found = {*names(), *(column.name for _, column in COLUMNS)}
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in found)
    assert found & (reserved_words.SPARK | reserved_words.SPARK_STRICT | reserved_words.TRINO) == set()
    duckdb = pytest.importorskip("duckdb")
    sql = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'unreserved'"
    keywords = {word for (word,) in duckdb.connect().execute(sql).fetchall()}
    assert len(keywords) > 100 and found & keywords == set()


def test_a_column_of_nanoseconds_says_so() -> None:
    for name, column in COLUMNS:
        assert column.name.endswith("_ns") == (column.unit == "ns"), (name, column.name)
        assert column.name.endswith("_at") == (column.type is ColumnType.TIMESTAMP), (name, column.name)
        assert column.name.startswith(("is_", "has_")) == (column.type is ColumnType.BOOLEAN), (name, column.name)


@pytest.mark.parametrize(
    "owner",
    [
        Owner("Node"),
        Owner("Node", name="node-1", detail="NodePort 30285 of default/a and hostPort 30285 of default/b"),
        Owner("external"),
        Owner("program", program="kube-proxy", detail="KUBE-FORWARD"),
        Owner("administrator"),
        Owner("unknown", detail="in podCIDR of node-2"),
        UNKNOWN,
        None,
    ],
    ids=lambda owner: owner.kind if owner else "none",
)
def test_only_an_object_is_a_service_or_a_workload(owner: Owner | None) -> None:
    """ "this node", "external" and "the administrator" are texts for a reader, no names of objects."""
    packet = replace(dropped_by(RULE, owner), src_owner=owner, dst_owner=owner)
    for name in ("packets", "drops"):
        (row,) = rows(name, packet)
        objects = ("service", "service_port", "service_evidence", "namespace", "workload", "workload_namespace")
        assert [row[c] for c in (*objects, "client_workload", "client_namespace")] == [None] * 8


def test_an_unknown_owner_is_null() -> None:
    (row,) = rows(
        "packets", replace(sample_packets.node_port(), src_owner=UNKNOWN, dst_owner=Owner("unknown", detail="in podCIDR of n"))
    )
    assert (row["src_owner"], row["src_owner_kind"]) == (None, None)
    assert (row["dst_owner"], row["dst_owner_kind"]) == ("unknown, in podCIDR of n", None)


def test_a_dropped_packet_has_its_rule() -> None:
    owner = Owner("Service", "shop", "cart", "http")
    packet = dropped_by(RULE, owner)
    (drop,), (seen,), (hit,) = rows("drops", packet), rows("packets", packet), rows("rule_hits", packet)
    assert (drop["decided_by"], drop["decided_name"], drop["rule_path"]) == (
        "rule", "ip filter KUBE-FIREWALL 1", "INPUT 2 > KUBE-FIREWALL 1",
    )  # fmt: skip
    assert (drop["nf_family"], drop["nf_table"], drop["nf_chain"], drop["rule_number"]) == ("ip", "filter", "KUBE-FIREWALL", 1)
    assert (drop["reason"], drop["reason_evidence"], drop["kernel_function"]) == ("NETFILTER_DROP", "derived", None)
    assert (seen["decided_by"], seen["decided_evidence"]) == ("ip filter KUBE-FIREWALL 1", "observed")
    assert (seen["service"], seen["namespace"], seen["service_port"], seen["service_evidence"]) == (
        "cart",
        "shop",
        "http",
        "observed",
    )
    assert (hit["rule"], hit["is_deciding"], hit["owner"], hit["is_policy"]) == (seen["decided_by"], True, owner.text, False)


def test_a_rule_does_not_answer_for_a_malformed_packet() -> None:
    """hotdrop: a match dropped the packet, whatever the target of the rule is."""
    packet = dropped_by(RULE)
    hit = RuleHit((RuleLocation("KUBE-FIREWALL", 1),), RULE, "DROP", Evidence.OBSERVED, hotdrop="its header is too short")
    packet = sample_packets.with_hop(packet, 0, rule_trace=RuleTrace((hit,)))
    assert [row["decided_by"] for row in rows("drops", packet)] == ["hotdrop"]
    assert [row["hotdrop"] for row in rows("rule_hits", packet)] == ["its header is too short"]


def test_a_policy_has_no_rule() -> None:
    (drop,) = rows("drops", dropped_by(None))
    assert (drop["decided_by"], drop["decided_name"]) == ("policy", "ip filter INPUT policy")
    assert (drop["rule_text"], drop["rule_number"], drop["rule_comment"], drop["nf_chain"]) == (None, None, None, "INPUT")


def test_a_rule_that_is_not_known_is_not_named() -> None:
    packet = dropped_by(RULE)
    packet = sample_packets.with_hop(packet, 0, rule_trace=RuleTrace(undecided="the rules have not been read"))
    (drop,), (seen,) = rows("drops", packet), rows("packets", packet)
    assert (drop["decided_by"], drop["decided_name"], drop["rule_text"], drop["rule_evidence"]) == (
        "table",
        "filter/INPUT",
        None,
        None,
    )
    assert seen["decided_by"] == "filter/INPUT" and rows("hops", packet)[0]["undecided"] == "the rules have not been read"


def test_the_reason_of_a_full_queue_comes_from_the_listener() -> None:
    (drop,) = rows("drops", sample_packets.full_queue())
    assert (drop["reason"], drop["reason_evidence"], drop["decided_by"]) == ("accept queue full", "observed", "listener")
    assert (drop["after_ns"], drop["is_complete"]) == (5000, False)


def test_a_packet_that_was_not_dropped_has_no_row() -> None:
    assert rows("drops", sample_packets.node_port(), sample_packets.ping()) == []


def test_ports_of_a_protocol_without_ports_are_null() -> None:
    (row,) = rows("packets", sample_packets.ping())
    assert (row["sport"], row["dport"], row["seq"], row["orig_src"], row["is_reply"]) == (None,) * 5


def test_times_are_in_microseconds_and_exact_in_nanoseconds() -> None:
    (row,) = rows("packets", sample_packets.node_port())
    assert (row["seen_at"], row["seen_ns"]) == (sample_packets.EPOCH // 1000, sample_packets.EPOCH)
    (lost,) = rows("losses", DatedLoss(Loss("table", -1, 17, "so"), 1000))
    assert (lost["since_at"], lost["until_ns"], lost["cpu"], lost["lost"]) == (None, None, None, 17)
    (dated,) = rows("losses", DatedLoss(Loss("table", 0, 1, "so", 5000, 9000), 1_000_000))
    assert (dated["since_ns"], dated["until_at"], dated["cpu"]) == (1_005_000, 1009, 0)


def test_a_syn_with_its_answer() -> None:
    (row,) = rows("syns", *syns.verdicts(syns.syn(*syns.at_listener(True)), syns.synack(at=5 * syns.MS), syns.last_ack()))
    assert (row["answer"], row["after_ns"], row["is_accepted"], row["listener"]) == (
        "SYN ACK",
        5 * syns.MS,
        True,
        "nginx (pid 4242)",
    )
    assert (row["dst"], row["dport"], row["reached_dst"], row["reached_dport"]) == ("192.168.56.10", 30285, "10.244.0.11", 8080)
    (alone,) = rows("syns", *syns.verdicts(syns.syn()))
    assert (alone["answer"], alone["after_ns"], alone["listener"]) == (None, None, None)
