# SPDX-License-Identifier: Apache-2.0
"""The summary of `doctor`: what a run shows, what it lacks and what that costs, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tracer.model.check import CheckResult

PROBE = "probe "
"""First word of the subject of a probe's result."""
LOST = "; not shown: "
"""In the text of a probe that cannot be attached: between the reason and what it would show."""
TOPICS = {
    "netfilter hooks": ("hook",),
    "iptables rules": ("table4", "table6", "table4_begin", "table6_begin", "table_found", "table_replaced"),
    "nftables rules": ("chain", "nft_rule", "nft_fwd", "nft_fwd_to"),
    "NAT": ("nat", "nat_hook"),
    "IPVS": ("ipvs_schedule", "ipvs_nat4", "ipvs_nat6", "ipvs_reply", "ipvs_leave", "ipvs_in"),
    "REJECT": ("unreach4", "unreach6", "reset4", "reset6"),
    "conntrack": ("table_full", "confirm"),
    "queues (NFQUEUE)": (
        "queue_verdict", "queue_verdicts", "queue_emptied", "queue_device", "queue_unhooked", "queued", "queue_refused",
        "queue_answer",
    ),
    "sockets": ("socket", "answer_reset4", "answer_reset6", "connect", "replaced"),
    "sk_lookup": ("lookup4", "lookup6"),
    "SYNs": (
        "syn", "synack4", "synack6", "cookie4", "cookie6", "accept4", "accept6", "request", "listener", "time_wait",
    ),
    "routes and neighbours": ("no_route", "neighbour"),
    "drops": ("drop",),
    "copies": ("clone", "copy", "pcopy", "tap", "tap_ring"),
    "eBPF programs that redirect or rewrite": (
        "arrival", "hook_begin", "transmit", "outgoing", "redirect", "clone_redirect", "xdp_redirect",
    ),
}  # fmt: skip
"""What the output shows, and the probes that it needs."""
ACTIONS = {
    "lockdown": "boot without lockdown=confidentiality",
    "symbols": "in a container add CAP_SYSLOG; elsewhere set the sysctl kernel.kptr_restrict to 1",
    "BTF": "use a kernel with CONFIG_DEBUG_INFO_BTF; in a container mount /sys",
    "fentry": "use the container image, which has a newer bcc",
    "program cache": "correct its owner and rights, or name another directory in K8SNET_TRACE_CACHE",
    "module BTF": "nothing helps but a kernel from 5.11 on; docs/matrix.md says what is shown without it",
    "connect()": "nothing is wrong; filter by the pods' addresses, not by the Service's (docs/programs.md)",
    "sk_lookup": "nothing is wrong; docs/programs.md says what is seen",
    "Kubernetes API": "give --kubeconfig FILE, or --objects FILE with kubectl's output",
}
"""What to do about a result that is not "ok", by its subject, where the text does not say it."""
PROBE_ACTION = "nothing helps on this kernel; docs/matrix.md says what each one shows"


def shown_topics(results: Iterable[CheckResult]) -> list[str]:
    """What a run shows completely: topics of which each probe works or is not needed, and at least one is used."""
    by_probe = {each.subject.removeprefix(PROBE): each for each in results if each.subject.startswith(PROBE)}
    found = []
    for topic, names in TOPICS.items():
        rows = [by_probe[name] for name in names if name in by_probe]
        if rows and all(row.state == "ok" for row in rows) and not all(row.text.startswith("not needed") for row in rows):
            found.append(topic)
    return found


def troubles(results: Sequence[CheckResult]) -> Iterator[tuple[CheckResult, str]]:
    """Each result that is not "ok", and what to do about it: first those that make tracing impossible.

    Probes of one topic that lack for the same reason are one result. What is only not known without bcc is left out.
    """
    lacking = [each for each in results if each.state != "ok"]
    is_without_bcc = any(each.subject == "bcc" for each in lacking)
    grouped = list(_by_topic(each for each in lacking if not (is_without_bcc and each.subject == "fentry")))
    for each, is_probe in sorted(grouped, key=lambda found: found[0].status <= 1):
        yield each, PROBE_ACTION if is_probe and each.status <= 1 else ACTIONS.get(each.subject, "")


def _by_topic(results: Iterable[CheckResult]) -> Iterator[tuple[CheckResult, bool]]:
    """Each result, and whether it is one of probes. Probes that lack something for one reason are joined."""
    topics = {name: topic for topic, names in TOPICS.items() for name in names}
    joined: dict[tuple[str, str], tuple[CheckResult, dict[str, None]]] = {}
    for each in results:
        reason, lost, shows = each.text.partition(LOST)
        topic = topics.get(each.subject.removeprefix(PROBE)) if each.subject.startswith(PROBE) else None
        if topic is None or not lost:
            yield each, each.subject.startswith(PROBE)
        else:
            joined.setdefault((topic, reason), (each, {}))[1][shows] = None
    for (topic, reason), (first, all_shows) in joined.items():
        yield CheckResult(topic, first.state, f"{reason}{LOST}{', '.join(all_shows)}", first.status), True
