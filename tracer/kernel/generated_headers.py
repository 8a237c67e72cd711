# SPDX-License-Identifier: Apache-2.0
"""Generated headers of the BPF text, written for the running kernel."""

from __future__ import annotations

from tracer.kernel import attach_plan, kernel_memory, struct_layouts, xt_extensions
from tracer.kernel.attach_plan import PlannedProbe
from tracer.kernel.btf import KernelTypes
from tracer.kernel.kallsyms import Symbols
from tracer.node import netns_cookie


def headers(
    types: KernelTypes,
    symbols: Symbols,
    planned: list[PlannedProbe],
    watched: list[xt_extensions.PlannedExtension],
    ring_pages: int,
    cpus: int,
    snaplen: int = 0,
) -> dict[str, str]:
    """Generates the headers for the running kernel.

    Args:
        types: The kernel's BTF.
        symbols: The kernel's symbols.
        planned: Probes that are attached.
        watched: Match and target functions of iptables that are watched.
        ring_pages: Size of the event ring, pages.
        cpus: Number of possible CPUs.
        snaplen: Bytes of each packet that are copied, 0 = none.

    Returns:
        The texts by file name: structs.h, plan.h, acts.h.
    """
    snap = f"#define SNAPLEN {snaplen}\n" if snaplen else ""
    # A record may name a namespace by its cookie only where user space can read that cookie, too.
    cookies = "#define NETNS_COOKIES\n" if netns_cookie.cookie() else ""
    return {
        "structs.h": struct_layouts.header(types) + kernel_memory.header(types),
        "plan.h": attach_plan.header(planned, ring_pages, cpus) + attach_plan.addresses(symbols.variables) + snap + cookies,
        "acts.h": xt_extensions.header(watched),
    }
