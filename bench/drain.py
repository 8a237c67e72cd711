# SPDX-License-Identifier: Apache-2.0
"""Reading events: compares bcc's callback for each event with reading the mapped ring as one array.

Both read the same ring, filled by the real probes. Times are CPU time of this process, not wall time.

    python3 -m bench.drain FILE      decodes the events that run() saved there, on this machine; prints one line of JSON
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.throughput import SOURCE_PORT
from scenes import load
from tracer.events import cstruct, record
from tracer.kernel.bcc_library import load_bcc
from tracer.kernel.session import RING_BYTES, Kernel, Session
from tracer.model.filter import Filter
from tracer.node.namespaces import Namespaces
from tracer.node.processes import Processes
from tracer.packets.assembler import PacketAssembler
from tracer.packets.hop_builder import HopBuilder

REPEATS = 3
FIELDS = ("time", "packet", "kind", "sport", "dport")
"""Fields that the callback reads of each event; the array has all fields."""
_CTYPES = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}


def structure(dtype: np.dtype[Any]) -> type[ctypes.Structure]:
    """The ctypes structure of a record type: integers by their size, the rest as bytes."""
    fields: list[tuple[str, Any]] = []
    for name in dtype.names or ():
        part = dtype[name]
        fields.append((name, _CTYPES[part.itemsize] if part.kind == "u" else ctypes.c_char * part.itemsize))
    return type("Event", (ctypes.Structure,), {"_fields_": fields})


def fill(session: Session) -> None:
    """Sends packets until the ring is nine tenths full."""
    ring: Any = session._ring
    while ring.waiting < RING_BYTES * 9 // 10:
        load.udp_blast(0.5, sport=SOURCE_PORT).result()


def rate(session: Session, consume: Callable[[], int]) -> float:
    """Events per CPU second of consume(), which empties the ring and returns their number: median of REPEATS."""
    rates = []
    for _ in range(REPEATS):
        fill(session)
        began = time.process_time()
        count = consume()
        rates.append(count / (time.process_time() - began))
    return median(rates)


def by_callback(session: Session) -> Callable[[], int]:
    """The usual way with bcc: cast each record, take five fields."""
    libbcc: Any = load_bcc().libbcc
    pointer = ctypes.POINTER(structure(cstruct.dtype("records/event.h", "event")))
    taken: list[tuple[int, ...]] = []

    def callback(_context: Any, data: Any, _size: int) -> int:
        e: Any = ctypes.cast(data, pointer).contents
        taken.append((e.time, e.packet, e.kind, e.sport, e.dport))
        return 0

    called = libbcc._RINGBUF_CB_TYPE(callback)
    ring = libbcc.lib.bpf_new_ringbuf(session._programs.maps["events"].fd, called, None)

    def consume() -> int:
        taken.clear()
        libbcc.lib.bpf_consume_ringbuf(ring)
        return len(taken)

    return consume


def decoding(batch: npt.NDArray[Any]) -> dict[str, float]:
    """Per CPU second, from a batch of events: events decoded into named tuples, and packets assembled."""
    began = time.process_time()
    events = sum(1 for _ in record.events(batch))
    tuples = time.process_time() - began
    assembler = PacketAssembler(HopBuilder(Namespaces(), Processes(), {}, hex))
    began = time.process_time()
    assembler.feed(batch)
    packets = len(assembler.flush())
    seconds = time.process_time() - began
    return {"events": events / tuples, "packets": packets / seconds, "events_in_journeys": events / seconds}


def run(save: Path) -> dict[str, Any]:
    """Events per CPU second, all in one session. Needs throughput.flow() around it. save: file for a batch, for the host."""
    batches: list[npt.NDArray[Any]] = []

    def by_array() -> int:
        batches[:] = [session.events()]
        return len(batches[0])

    with Session(Kernel.running(), Filter()) as session:
        array = rate(session, by_array)
        callback = rate(session, by_callback(session))
    batch = batches[0]
    np.save(save, batch)
    found = {"array": array, "callback": callback, "ratio": array / callback, "fields": len(FIELDS)}
    return found | decoding(batch)


if __name__ == "__main__":
    print(json.dumps(decoding(np.load(sys.argv[1]))))
