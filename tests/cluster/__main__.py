# SPDX-License-Identifier: Apache-2.0
"""`make cluster`: traces the packets between real kernels with `kubectl k8snet-trace`, and compares them with the wire's log.

    python -m tests.cluster a=6.12 b=6.1 [--tcp 20] [--udp 60] [--lossy] [--no-failures] [--findings] [--only-views]
        [--seed 1]

Ends with `nodes=… packets=… joined=… wrong=… ambiguous=… lost=… found=… perhaps=…`; the status is 1 after any difference.
lost: frames that the wire dropped; found, perhaps: packets that the plugin called lost for certain, and perhaps.

With --findings only the scenes of tests/cluster/finding_scenes.py are made. It ends with `nodes=… expected=… found=… wrong=…
perhaps=… differences=…`; the status is 1 if a finding is missing or wrong, or a scene was not as it should be.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from lab.cluster import Cluster
from lab.wire import Fate, Faults
from tests.cluster import failures, finding_truth, join_truth, loss_truth, recorded_joins, views, wire_truth
from tests.cluster.bed import PluginRun, TestBed, is_of_services, members
from tests.cluster.finding_scenes import FindingScenes
from tests.cluster.finding_truth import ExpectedFinding
from tests.cluster.join_truth import JoinCount
from tests.cluster.loss_truth import LossCount
from tracer.commands.cluster import JOIN_SECONDS

OUTPUT = Path("build/cluster")
"""Directory of the machines' console output, the plugin's lines and the wire's log."""
SHOWN_DIFFERENCES = 20
"""Most differences that are printed."""
QUIET_SECONDS = 12 * JOIN_SECONDS
"""Time without a line after which none comes any more, s: emulated nodes explain slowly, and the host may be busy."""
SETTLE_SECONDS = 300.0
"""Longest wait for the last line, s."""
LOSSY = Faults(dropped=0.04, doubled=0.02, held=0.04)


def settle(run: PluginRun) -> None:
    """Waits until all agents have explained what they saw: emulated machines need minutes for it."""
    until, lines = time.monotonic() + SETTLE_SECONDS, -1
    while lines != len(run.lines) and time.monotonic() < until:
        lines = len(run.lines)
        time.sleep(QUIET_SECONDS)


def traced(bed: TestBed, tcp: int, udp: int, faults: Faults) -> tuple[JoinCount, list[str], int, LossCount]:
    """Traces traffic on a wire with these faults. Returns joins, differences, lost frames, and what was called lost."""
    captures = OUTPUT / "captures"
    shutil.rmtree(captures, ignore_errors=True)
    run = failures.started(bed, "-w", str(captures))
    bed.cluster.wire.clear()
    bed.cluster.wire.set_faults(faults)
    counts = bed.traffic(tcp, udp)
    bed.cluster.wire.set_faults(Faults())
    settle(run)
    log = bed.cluster.wire.log()
    done = run.stop()
    lines = run.objects()
    (OUTPUT / "plugin.jsonl").write_bytes(b"".join(run.lines))
    (OUTPUT / "wire.txt").write_text("".join(f"{frame}\n" for frame in log))
    for node, kinds in counts.items():
        print(f"{node}: " + ", ".join(f"{kind} {each['answered']} of {each['sent']} answered" for kind, each in kinds.items()))
    print(done.errors.decode(errors="replace").rstrip())
    truth, seen = wire_truth.of_log(log), wire_truth.of_views(join_truth.all_views(lines))
    found = join_truth.count(lines)
    differences = wire_truth.differences(truth.sent, seen.sent, "sent")
    differences += wire_truth.differences(truth.come, seen.come, "came")
    differences += join_truth.compare(found, log)
    recorded, called, problems = recorded_joins.compare(sorted(captures.glob("*.k8st")), found, log)
    print(
        f"captures: packets={recorded.packets} joined={sum(recorded.joined.values())} wrong={len(recorded.wrong)}"
        f" found={called.certain} perhaps={called.likely}"
    )
    losses = loss_truth.compare(lines, log)
    found.wrong += losses.wrong
    # No other fault was made, so no other finding about several nodes may be certain.
    found.wrong += finding_truth.compare(lines, (), [ExpectedFinding(loss_truth.NAME, ())]).wrong
    lost = sum(frame.fate is Fate.DROPPED for frame in log)
    if events := sum(line["count"] for line in lines if line["type"] == "lost"):
        print(f"the nodes lost {events} events, so packets are incomplete: only wrong joins and findings count")
        differences = []
    found.wrong += recorded.wrong
    differences += problems
    if done.status:
        differences.append(f"the plugin's exit status is {done.status}")
    if not found.joined:
        differences.append("no packet was joined")
    return found, found.wrong + differences, lost, losses


def found_in_scenes(kernels: dict[str, str]) -> int:
    """Makes the scenes of findings about several nodes. Returns the exit status."""
    with Cluster(members(kernels, OUTPUT), is_of_services) as cluster, TestBed(cluster) as bed:
        bed.build()
        scenes = FindingScenes(bed, settle)
        count = scenes.run(OUTPUT)
    differences = [*count.wrong, *count.missing, *scenes.problems]
    for line in differences[:SHOWN_DIFFERENCES]:
        print(line)
    print(f"nodes={len(kernels)} {count.line} differences={len(differences)}")
    return 1 if differences else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", nargs="+", metavar="LETTER=KERNEL")
    parser.add_argument("--tcp", type=int, default=20, help="requests for each kind of address")
    parser.add_argument("--udp", type=int, default=60, help="datagrams for each kind of address")
    parser.add_argument("--lossy", action="store_true", help="the wire loses, doubles and reorders packets")
    parser.add_argument("--no-failures", action="store_true", help="only traffic: no broken streams, no `top` and `ui`")
    parser.add_argument("--findings", action="store_true", help="only the scenes of findings about several nodes")
    parser.add_argument("--only-views", action="store_true", help="only `top` and `ui` over the stream of the nodes")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    kernels = dict(word.split("=", 1) for word in given.nodes)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    if given.findings:
        return found_in_scenes(kernels)
    faults = Faults(LOSSY.dropped, LOSSY.doubled, LOSSY.held, given.seed) if given.lossy else Faults()
    with Cluster(members(kernels, OUTPUT), is_of_services) as cluster, TestBed(cluster) as bed:
        bed.build()
        clean = bed.probes()
        if given.only_views:
            outcomes = views.check(bed, clean)
            for outcome in outcomes:
                print(outcome.line)
            return 1 if any(outcome.problem for outcome in outcomes) else 0
        found, differences, lost, losses = traced(bed, given.tcp, given.udp, faults)
        left = bed.wait_for_no_probes(clean)
        differences += [f"left on {node}: {text!r}" for node, text in left.items()]
        outcomes = []
        if not given.no_failures:
            outcomes += views.check(bed, clean)
            outcomes += [failures.run_case(bed, name, case, clean) for name, case in failures.CASES]
            outcomes.append(failures.no_credit(bed, clean))
        for outcome in outcomes:
            print(outcome.line)
    for line in differences[:SHOWN_DIFFERENCES]:
        print(line)
    print(
        f"nodes={len(kernels)} packets={found.packets} joined={sum(found.joined.values())} wrong={len(found.wrong)}"
        f" ambiguous={found.ambiguous} lost={lost} found={losses.certain} perhaps={losses.likely}"
        f" differences={len(differences)}"
    )
    return 1 if differences or any(outcome.problem for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
