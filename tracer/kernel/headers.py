"""The headers of the BPF text that are written for the running kernel."""

from __future__ import annotations

from tracer.kernel import acts, layouts, plan
from tracer.kernel.btf import KernelTypes
from tracer.kernel.plan import Planned
from tracer.kernel.symbols import Symbols


def headers(
    types: KernelTypes, symbols: Symbols, planned: list[Planned], watched: list[acts.Watched], ring_pages: int, cpus: int
) -> dict[str, str]:
    """Their texts by name: the kernel's structs, the probes that there are, the functions of rules that are watched.

    ring_pages: of the ring of events. cpus: as many as the kernel may ever number.
    """
    return {
        "structs.h": layouts.header(types),
        "plan.h": plan.header(planned, ring_pages, cpus) + plan.addresses(symbols.variables),
        "acts.h": acts.header(watched),
    }
