# SPDX-License-Identifier: Apache-2.0
"""The commands that read captures, behind the command line. Imported only when one runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tracer import render
from tracer.capture.replay import runner
from tracer.capture.replay.display_filter import DisplayFilter
from tracer.capture.replay.file_series import opened
from tracer.capture.replay.runner import ReplayRequest
from tracer.errors import BadOption
from tracer.kube.selectors import Selectors
from tracer.model.filter import Filter, parse_host
from tracer.pipeline.shutdown import reading


def asked(options: dict[str, Any]) -> ReplayRequest:
    """What the options of a trace ask of a capture. Raises BadOption."""
    words = Selectors(*(tuple(options.get(name) or ()) for name in ("services", "pods", "node_ports", "host_ports")))
    ports, hosts = tuple(options.get("ports") or ()), tuple(parse_host(h) for h in options.get("hosts") or ())
    if words and (ports or hosts):
        raise BadOption("--service, --pod, --node-port and --host-port cannot be combined with --port or --host.")
    Filter(ports=ports, hosts=hosts)
    names = options.get("iface") or "", options.get("netns") or ""
    wanted = DisplayFilter(ports, hosts, options.get("proto") or "", options.get("family") or 0, *names)
    return ReplayRequest(
        wanted,
        words,
        options.get("drops_only", False),
        options.get("count", 0),
        options.get("no_rules", False),
        options.get("follow", False),
    )


def read(paths: Sequence[str], given: dict[str, Any]) -> int:
    """`-r FILE`, once or more: prints what the run printed, or would have with these options. Returns the exit status."""
    form, verbose, wanted = given["form"], given["verbose"], asked(given)
    with reading(paths) as stop, opened(paths) as capture:
        output = render.find(form)(verbose=verbose)
        few = runner.facts(capture, False)
        full = runner.facts(capture, True) if verbose or form == "json" else few
        output.begin(full, str(runner.options(capture).get("said", "")), runner.release(capture))
        with runner.bar(capture, f"reading {capture.path}", not sys.stdout.isatty()) as progress:
            totals = runner.replay(capture, output, wanted, stop, progress)
        if capture.ended() is None:
            output.note(runner.CUT_SHORT)
        output.summary(totals)
        runner.check_complete(capture)
    return 0
