# SPDX-License-Identifier: Apache-2.0
"""The headers of the BPF text that are written for the running kernel."""

from __future__ import annotations

from tracer.kernel import acts, layouts, plan
from tracer.kernel.btf import KernelTypes
from tracer.kernel.plan import Planned
from tracer.kernel.symbols import Symbols


def headers(
    types: KernelTypes,
    symbols: Symbols,
    planned: list[Planned],
    watched: list[acts.Watched],
    ring_pages: int,
    cpus: int,
    snaplen: int = 0,
) -> dict[str, str]:
    """Their texts by name: the kernel's structs, the probes that there are, the functions of rules that are watched.

    ring_pages: of the ring of events. cpus: as many as the kernel may ever number. snaplen: of each packet so many bytes are
    copied.
    """
    snap = f"#define SNAPLEN {snaplen}\n" if snaplen else ""
    return {
        "structs.h": layouts.header(types),
        "plan.h": plan.header(planned, ring_pages, cpus) + plan.addresses(symbols.variables) + snap,
        "acts.h": acts.header(watched),
    }
