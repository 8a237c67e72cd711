# SPDX-License-Identifier: Apache-2.0
"""The headers of the BPF text that are written for the running kernel."""

from __future__ import annotations

from tracer import netns_cookie
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
    # A record may name a namespace by its cookie only where user space can read that cookie, too.
    cookies = "#define NETNS_COOKIES\n" if netns_cookie.cookie() else ""
    return {
        "structs.h": layouts.header(types),
        "plan.h": plan.header(planned, ring_pages, cpus) + plan.addresses(symbols.variables) + snap + cookies,
        "acts.h": acts.header(watched),
    }
