"""Wires a command together: kernel, journeys, output. Imported only when one runs, so that --help is quick."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tracer import cli, doctor, render
from tracer.facts import Fact
from tracer.findings import Findings
from tracer.findings.context import Context
from tracer.following import Following
from tracer.hops import Hops
from tracer.journeys import Journeys
from tracer.kernel.plan import Refused
from tracer.kernel.session import Kernel, Session, require_root
from tracer.kube import doctor as kube_doctor
from tracer.kube.live import Kube, Source
from tracer.kube.wanted import Words
from tracer.names import Namespaces, Processes, tracking
from tracer.rules import live
from tracer.rules.hits import Hits
from tracer.run import Limits, Run, Stop, start, status, write_ready
from tracer.syns.spaces import Spaces
from tracer.syns.watch import Syns
from tracer.timelines.changes import Changes
from tracer.timelines.connections import Connections

if TYPE_CHECKING:
    from tracer.explain.command import Live
    from tracer.explain.question import Question


def trace(
    cmd: Sequence[str],
    form: str,
    verbose: bool,
    attach: str,
    count: int,
    duration: float,
    ready_file: str | None,
    no_rules: bool = False,
    follow: bool = False,
    **options: Any,
) -> int:
    """One tracing run; returns the exit status. Raises TraceError before anything is attached if it cannot be done."""
    kube = _kube(options)
    require_root()
    output = render.find(form)(verbose=verbose)
    kernel = Kernel.running()
    full = doctor.gather() if verbose or form == "json" else []
    with ExitStack() as stack:
        stack.enter_context(kube)
        session = stack.enter_context(Session(kernel, kube.filter(), verbose, only=attach, rules=not no_rules))
        spaces = Namespaces()
        rules = Hits() if no_rules else rules_of(session, spaces, stack)
        stop, command = Stop(), None
        try:
            hops = Hops(spaces, Processes(), kernel.drop_reasons(), kernel.symbols.containing)
            journeys = Journeys(hops, time.time_ns() - time.monotonic_ns(), tracking(), rules=rules)
            limits = Limits(count, duration, kube.current.drops_only)
            offset = time.time_ns() - time.monotonic_ns()
            findings, changes = Findings(Context(kube.known)), Changes()
            rules.replaced = changes.rules
            kube.known.store.on_change(changes.objects)
            connections = Connections(offset) if follow else None
            following = stack.enter_context(
                Following(Syns(Spaces(spaces), offset), connections, changes, findings, limits.drops_only)
            )
            run = Run(session, journeys, output, limits, kube, findings, following)
            output.begin(full or missed(session.refused), _said(sys.argv[1:]), kernel.release)
            if ready_file:
                write_ready(ready_file, os.getpid())
            following.start(output)
            command = start(cmd) if cmd else None
            run.follow(stop, command)
            output.summary(run.totals)
        except BrokenPipeError:
            _hang_up()
            return 0
        finally:
            stop.restore()
            if command and command.poll() is None:
                command.terminate()
                command.wait()
    return status(run.totals, bool(cmd))


def _kube(options: dict[str, Any]) -> Kube:
    """Takes the options that speak of Kubernetes out of the others, which make the filter."""
    source = Source(options.pop("objects") or "", options.pop("kubeconfig") or "", options.pop("no_kube"))
    words = Words(*(options.pop(name) for name in ("services", "pods", "node_ports", "host_ports")))
    return Kube(source, words, cli.wanted(**options))


def rules_of(session: Session, namespaces: Namespaces, stack: ExitStack) -> Hits:
    """What explains hits by rules, until the stack unwinds."""
    nft = next((row.probe for row in session.planned if row.probe.name == "nft_rule"), None)
    hits, why = stack.enter_context(live.watching(namespaces, session.acts, nft is not None))
    if nft and why:
        session.refused.append(Refused(nft, why))
    return hits


def missed(refused: Sequence[Refused]) -> list[Fact]:
    """What this run cannot tell. A module that is not loaded has nothing to tell, so it is not worth a line."""
    return [Fact(r.probe.name, "degraded", f"no {r.probe.tells}: {r.why}") for r in refused if "is not loaded" not in r.why]


def _said(arguments: Sequence[str]) -> str:
    """The options as they were typed, without the command after `--` and the file for whoever waits."""
    words = iter(arguments)
    kept = []
    for word in words:
        if word == "--":
            break
        if word == "--ready-file":
            next(words, None)
        elif not word.startswith("--ready-file="):
            kept.append(word)
    return " ".join(kept)


def tell(form: str, kubeconfig: str | None = None) -> int:
    """The doctor's command; returns its exit status."""
    facts = doctor.gather() + list(kube_doctor.gather(kubeconfig))
    code = doctor.exit_status(facts)
    try:
        render.find(form)().doctor(facts, code)
    except BrokenPipeError:
        _hang_up()
    return code


def audit(form: str, objects: str | None, kubeconfig: str | None, no_kube: bool) -> int:
    """The audit's command; returns its exit status. Raises TraceError."""
    from tracer.audit import command

    try:
        return command.run(form, Source(objects or "", kubeconfig or "", no_kube))
    except BrokenPipeError:
        _hang_up()
        return 0


def explain(question: Question, form: str, verbose: bool, source: Source, live: Live | None) -> int:
    """The command that tells the way of a packet; returns its exit status. Raises TraceError."""
    from tracer.explain import command

    try:
        return command.run(question, form, verbose, source, live)
    except BrokenPipeError:
        _hang_up()
        return 0


def _hang_up() -> None:
    """Whoever read the output has gone: nothing is left to say, and Python must not try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
