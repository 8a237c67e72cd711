# SPDX-License-Identifier: Apache-2.0
"""What a store of many nodes costs: bytes a packet and a connection, rows a second in, seconds of saved queries.

    python -m bench.fleet_store --rows 100000000 --engines duckdb,spark

Prints one line of JSON for each measurement. Packets are those of the recorded nodes in tests/data/real with other times, ports
and numbers; the rows for the queries are made: 50% SYNs, 25% connections, 25% drops, of 1,000 Services, 10,000 pods, 10 nodes.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracer.analysis import queries
from tracer.analysis.collector import PacketCollector
from tracer.capture.replay import runner
from tracer.capture.replay.file_series import opened
from tracer.capture.replay.runner import ReplayRequest
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.model.timeline import Timeline
from tracer.pipeline.shutdown import StopRequest
from tracer.store import engines
from tracer.store.bucket import Bucket
from tracer.store.partition import HOUR_US, Partition
from tracer.store.segment import StoredRow
from tracer.store.selected_files import StoreSelection, select
from tracer.store.store_rows import StoreRows
from tracer.store.store_writer import StoreWriter
from tracer.store.stored_tables import ORIGIN, arrow_schema, columns
from tracer.util.frozen import evolve

REAL = Path(__file__).resolve().parents[1] / "tests/data/real"
BEGAN_US = 1_795_651_200_000_000
FILE_ROWS = 1_000_000
NODES, SERVICES, PODS = 10, 1_000, 10_000
SHARES = {"syns": 0.5, "connections": 0.25, "drops": 0.25}
ASKED = ("top-drops", "rules-that-drop", "drops-over-time", "slow-syns", "syn-causes", "endpoints", "services")


def report(**values: Any) -> None:
    print(json.dumps(values), flush=True)


@dataclass
class Recorded:
    """Results of the recorded nodes."""

    packets: list[Packet] = field(default_factory=list)
    syns: list[HandshakeVerdict] = field(default_factory=list)
    connections: list[StoredRow] = field(default_factory=list)


def recorded() -> Recorded:
    """The packets, verdicts and rows of connections of the recorded nodes."""
    found = Recorded()
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("B", "H", "I", "J"):
            path = Path(scratch) / f"{name}.k8st"
            path.write_bytes(lzma.decompress((REAL / f"{name}.k8st.xz").read_bytes()))
            with opened([str(path)]) as capture:
                rows, request = StoreRows(), ReplayRequest(is_by_packet=True, numbers_connections=True)

                def take(packet: Packet, rows: StoreRows = rows) -> None:
                    found.packets.append(packet)
                    for _ in rows.packet(packet, is_whole=False):
                        pass

                def close(timeline: Timeline, rows: StoreRows = rows) -> None:
                    found.connections.extend(rows.connection(timeline))

                runner.replay(capture, PacketCollector(take, found.syns.append, close), request, StopRequest())
    return found


def measure_syns(syns: list[HandshakeVerdict], count: int) -> None:
    """CPU time of a SYN's row, from its verdict to the bucket."""
    with tempfile.TemporaryDirectory() as scratch:
        bucket = Bucket(f"file://{scratch}/store")
        writer = StoreWriter(bucket, Path(scratch) / "spool", "node", is_timed=False, has_thread=False)
        rows, began = StoreRows(), time.process_time()
        for number in range(count):
            writer.add(rows.syn(syns[number % len(syns)]))
            if number % 200 == 199:
                writer.commit()
        writer.close(0)
        report(measured="syns", rows=count, cpu_ms_per_row=round((time.process_time() - began) / count * 1000, 3))


def measure_connections(connections: list[StoredRow], count: int) -> None:
    """Bytes of a connection's row, with other times, ports and lengths."""
    names = [column.name for column in columns("connections")[len(ORIGIN) :]]
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as scratch:
        bucket = Bucket(f"file://{scratch}/store")
        writer = StoreWriter(bucket, Path(scratch) / "spool", "node", is_timed=False, has_thread=False)
        for number in range(count):
            start, lasts = BEGAN_US * 1000 + number * 10_000_000 + chance.randrange(10_000_000), chance.randrange(10**6, 10**9)
            changed = {
                "connection": number, "started_ns": start, "started_at": start // 1000, "ended_ns": start + lasts,
                "ended_at": (start + lasts) // 1000, "duration_ns": lasts, "sport": chance.randrange(1024, 65536),
                "length": chance.randrange(100, 10**6),
            }  # fmt: skip
            values = zip(names, connections[number % len(connections)].values, strict=True)
            row = StoredRow("connections", (start + lasts) // 1000, tuple(changed.get(name, value) for name, value in values))
            writer.add([row])
        writer.close(0)
        size = sum(each.size for each in bucket.objects(""))
        report(measured="connections", rows=count, bytes_per_row=round(size / count, 1))


def measure_writing(originals: list[Packet], count: int) -> None:
    """Bytes a packet and rows a second, from packets to the bucket, in one thread."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as scratch:
        bucket = Bucket(f"file://{scratch}/store")
        writer = StoreWriter(bucket, Path(scratch) / "spool", "node", is_timed=False, has_thread=False)
        rows, began, spooled = StoreRows(), time.process_time(), 0.0
        for number in range(count):
            one = originals[number % len(originals)]
            ends = evolve(one.endpoints, sport=chance.randrange(1024, 65536))
            at = BEGAN_US * 1000 + number * 1_000_000 + chance.randrange(1_000_000)
            packet = evolve(
                one, number=number, time=at, endpoints=ends, seq=chance.getrandbits(32), ident=chance.getrandbits(16)
            )
            writer.add(rows.packet(packet))
            if number % 200 == 199:
                writer.commit()
        spooled = time.process_time() - began
        writer.close(0)
        seconds = time.process_time() - began
        sizes: dict[str, int] = {}
        for each in bucket.objects(""):
            table = each.path.partition("/")[0]
            sizes[table] = sizes.get(table, 0) + each.size
        total = sum(writer.accepted.values())
        report(
            measured="writing", packets=count, rows=total, cpu_seconds=round(seconds, 1),
            cpu_seconds_to_spool=round(spooled, 1),
            rows_per_cpu_second=round(total / seconds), packets_per_cpu_second=round(count / seconds),
            bytes_per_packet=round(sum(sizes.values()) / count, 1),
            bytes_per_packet_by_table={name: round(size / count, 1) for name, size in sorted(sizes.items())},
        )  # fmt: skip


def made_rows(table: str, count: int, chance: np.random.Generator, first: int) -> pa.Table:
    """Rows of a table. Columns that no query reads and that are mostly empty are NULL."""
    service = chance.zipf(1.3, count) % SERVICES
    at = BEGAN_US + np.sort(chance.integers(0, HOUR_US, count))
    pods = chance.integers(0, PODS, count)

    def texts(values: Any, prefix: str) -> pa.Array:
        names, places = np.unique(values, return_inverse=True)
        return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array([f"{prefix}{n}" for n in names])).cast(
            "string"
        )

    def chosen(names: list[str | None], weights: list[float]) -> pa.Array:
        places = pa.array(chance.choice(len(names), count, p=weights), pa.int32())
        return pa.DictionaryArray.from_arrays(places, pa.array(names)).cast("string")

    values: dict[str, Any] = {
        "run": pa.array(["20261126T000000-1-00000000"] * count),
        "event_at": pa.array(at, pa.timestamp("us")), "seen_at": pa.array(at, pa.timestamp("us")), "seen_ns": at * 1000,
        "connection": np.arange(first, first + count), "packet": np.arange(first, first + count),
        "namespace": texts(service % 50, "team-"), "service": texts(service, "service-"),
        "service_port": texts(service % 3, "port-"),
        "workload": texts(pods, "pod-"), "src": texts(chance.integers(0, 5000, count), "10.244.1."),
        "sport": chance.integers(1024, 65536, count), "dst": texts(service, "10.96.0."), "dport": 80 + service % 20,
        "protocol": chosen(["TCP", "UDP"], [0.9, 0.1]), "netns": chosen(["node", "pod-a"], [0.8, 0.2]),
        "length": chance.integers(60, 1500, count),
    }  # fmt: skip
    if table == "syns":
        values |= {
            "syn": np.arange(first, first + count), "after_ns": chance.integers(20_000, 3_000_000_000, count),
            "answer": chosen(["SYN ACK", None], [0.95, 0.05]), "is_accepted": chance.random(count) < 0.95,
            "cause": chosen(["accepted", "dropped by rule", "accept queue full"], [0.95, 0.03, 0.02]),
            "cause_evidence": chosen(["observed", "derived"], [0.9, 0.1]),
        }  # fmt: skip
    elif table == "connections":
        values |= {
            "endpoint_address": texts(pods, "10.244.2."), "endpoint_port": 8080 + pods % 10,
            "packets": chance.integers(1, 100, count), "reply_packets": chance.integers(0, 50, count),
            "dropped": (chance.random(count) < 0.02).astype(np.int64), "retransmitted": chance.integers(0, 2, count),
            "state": chosen(["closed", "open", "reset", "refused"], [0.8, 0.15, 0.03, 0.02]),
        }  # fmt: skip
    else:
        rules = chance.integers(0, 300, count)
        values |= {
            "reason": chosen(["NETFILTER_DROP", "accept queue full", "NO_SOCKET", None], [0.7, 0.1, 0.1, 0.1]),
            "kernel_function": chosen(["nf_hook_slow", "tcp_v4_rcv"], [0.7, 0.3]),
            "decided_by": chosen(["rule", "listener", "kernel"], [0.7, 0.1, 0.2]),
            "decided_name": texts(rules, "ip filter FORWARD "),
            "rule_text": texts(rules, "-m comment --comment x -j DROP -d 10.0.0."),
            "owner": texts(service, "Service team/service-"),
        }  # fmt: skip
    schema = arrow_schema(pa, table)
    columns = [
        pa.array(values[field.name]).cast(field.type) if field.name in values else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def make_store(directory: Path, rows: int) -> dict[str, float]:
    """A store with so many rows. Returns the bytes of a row, by table."""
    chance, sizes = np.random.default_rng(1), {}
    for table, share in SHARES.items():
        size = 0
        for number in range(max(1, round(rows * share / FILE_ROWS))):
            place = Partition(table, BEGAN_US // HOUR_US, f"node-{number % NODES}")
            path = directory / place.directory / f"made-{number:06d}.v1.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(
                made_rows(table, FILE_ROWS, chance, number * FILE_ROWS), path, compression="zstd", compression_level=3
            )
            size += path.stat().st_size
        sizes[table] = round(size / (max(1, round(rows * share / FILE_ROWS)) * FILE_ROWS), 1)
    return sizes


def measure_queries(rows: int, asked_engines: list[str], directory: Path) -> None:
    began = time.monotonic()
    sizes = make_store(directory, rows)
    report(measured="made", rows=rows, seconds=round(time.monotonic() - began, 1), bytes_per_row=sizes)
    bucket, selection = Bucket(f"file://{directory}"), StoreSelection()
    files = select(bucket, selection)
    for engine in asked_engines:
        with tempfile.TemporaryDirectory() as scratch, engines.find(engine)(
            bucket, files, selection, Path(scratch), StopRequest()
        ) as ask:  # fmt: skip
            for name in ASKED:
                began = time.monotonic()
                ask(queries.sql_of(name))
                report(measured="query", engine=engine, rows=rows, query=name, seconds=round(time.monotonic() - began, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packets", type=int, default=20_000, help="packets that are written; 0 = none")
    parser.add_argument("--rows", type=int, default=100_000_000, help="rows that are queried; 0 = none")
    parser.add_argument("--engines", default="duckdb", help="duckdb,spark,clickhouse")
    given = parser.parse_args()
    if given.packets:
        results = recorded()
        measure_writing(results.packets, given.packets)
        measure_syns(results.syns, given.packets)
        measure_connections(results.connections, given.packets)
    if given.rows:
        with tempfile.TemporaryDirectory(prefix="fleet-bench-") as scratch:
            measure_queries(given.rows, given.engines.split(","), Path(scratch))


if __name__ == "__main__":
    main()
