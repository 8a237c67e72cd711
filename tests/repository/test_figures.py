# SPDX-License-Identifier: Apache-2.0
"""The figures of `make bench`: each has a key, a goal, and a line in docs/performance.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "vagrant"))

from bench import figures, inside, live, run, tools
from bench import throughput as forwarding
from bench.figures import FIGURES, PAGE, RESULTS
from scenes.topology import CLIENT4

KEYS = {figure.key for figure in FIGURES}


def results(**parts: Any) -> dict[str, Any]:
    machine = {"machine": {"kernel": "6.12.1", "cpus": 1}, "clock": "instructions", "rounds": 1, "native": "a CPU"}
    return {**machine, "failed": {}, **parts}


def throughput(**shares: float | None) -> dict[str, Any]:
    names = {"ours": "k8snet-trace, other port", "tcpdump": "tcpdump, other port"}
    variants = [{"name": names[name], "ratio": value, "error": ""} for name, value in shares.items()]
    return {"variants": variants}


def line(key: str, values: figures.Figures) -> list[str]:
    return next(cells for cells in figures.rows(values) if cells[0] == key)


def test_the_page_has_the_table_of_the_results() -> None:
    values, page = json.loads(RESULTS.read_text()), PAGE.read_text()
    assert set(values) == KEYS | {"about"}
    assert figures.with_table(page, values) == page
    assert all(page.count(f"| `{key}` |") == 1 for key in KEYS)


def test_a_figure_without_a_value_has_a_reason() -> None:
    values = json.loads(RESULTS.read_text())
    assert {key for key in KEYS if values[key] is None} == set(values["about"]["not_measured"])
    assert all(values["about"]["not_measured"].values())


def test_a_part_that_failed_gives_no_figure() -> None:
    values = figures.figures(results(failed={"throughput": "Traceback ...\nToolFailed: tcpdump ended\n"}))
    assert all(values[key] is None for key in KEYS)
    assert line("forward.unrelated", values)[1:] == [
        "-", ">= 0.92 and >= forward.tcpdump_filter", "not measured: throughput: ToolFailed: tcpdump ended"
    ]  # fmt: skip
    assert line("memory.live_mb", values)[3] == "not measured: live: the part did not run"


@pytest.mark.parametrize(
    ("ours", "tcpdump", "verdict"),
    [(0.95, 0.94, "met"), (0.95, 0.96, "not met"), (0.9, 0.8, "not met"), (0.95, None, "-")],
)
def test_the_unrelated_port_is_compared_with_tcpdump(ours: float, tcpdump: float | None, verdict: str) -> None:
    values = figures.figures(results(throughput=throughput(ours=ours, tcpdump=tcpdump)))
    assert line("forward.unrelated", values)[3] == verdict


def test_the_slower_scene_counts() -> None:
    rates = {"legacy": 6123.4, "nftables": 4999.4}
    scenes = {scene: {"text": {"rate": rate, "first_of_kind": 0.01}} for scene, rate in rates.items()}
    values = figures.figures(results(explain=scenes))
    key = "explain.packets_per_cpu_second.text"
    assert [values[key], values[f"{key}.legacy"], values[f"{key}.nftables"]] == [4999.4, 6123.4, 4999.4]
    assert line(key, values)[1:] == ["4,999", ">= 5,000", "not met"] and line(f"{key}.legacy", values)[3] == "met"
    assert values["explain.packets_per_cpu_second.oneline"] is None
    assert values["about"]["not_measured"]["explain.packets_per_cpu_second.oneline"] == "this output format does not exist yet"


def test_no_replay_gives_no_figure() -> None:
    values = figures.figures(results(explain={}))
    for key in (key for key in KEYS if key.startswith("explain.")):
        assert line(key, values)[3] == "not measured: explain: no replay of a scene succeeded"


def test_the_scene_with_most_kinds_of_packets_counts() -> None:
    shares = {"legacy": 0.01, "nftables": 0.03}
    scenes = {scene: {"text": {"rate": 1.0, "first_of_kind": share}} for scene, share in shares.items()}
    values = figures.figures(results(explain=scenes))
    assert line("explain.first_of_kind_ratio", values)[1:] == ["0.030", "<= 0.02", "not met"]


def test_a_goal_for_the_greatest_value() -> None:
    alone = {"memory": {"now": 99.6}, "kept": None, "start": {"seconds": 4.0}}
    values = figures.figures(results(live={"alone": alone, "services": {"memory": {"now": 180.6}}}))
    assert line("memory.live_mb", values)[1:] == ["99.6", "<= 100", "met"]
    assert line("memory.live_mb.services_5000", values)[1:] == ["181", "<= 180", "not met"]
    assert line("start.ready_seconds.warm", values)[3] == "met"
    assert line("live.kept_whole_at_pps", values)[3].startswith("not measured: no rate was kept")


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="no markers"):
        figures.with_table("nothing", figures.figures(results()))


def test_the_kept_rate_is_that_of_the_fastest_complete_burst() -> None:
    rows = [
        {"rate": 250.0, "sent": 250, "whole": 250, "cpu": 0.5},
        {"rate": 500.0, "sent": 498, "whole": 498, "cpu": 0.83},
        {"rate": 1000.0, "sent": 1000, "whole": 999, "cpu": 1.0},
    ]
    assert live.kept_rate(rows) == pytest.approx(600)
    assert live.kept_rate(rows[2:]) is None and live.kept_rate([{"sent": 0, "whole": 0, "cpu": 0.1}]) is None


def test_a_line_of_a_complete_packet_is_counted() -> None:
    def packet(sport: int, outcome: str) -> str:
        rest = f"UDP  client: eth0  DNAT 10.244.0.13:5353  KUBE-SEP-X 2  Service a/b, NodePort 30053  {outcome}\n"
        return f"19:28:31.605  {CLIENT4}:{sport} -> 192.168.56.10:30053  {rest}"

    delivered, lost = "delivered to pid 208 a in pod-c", "no verdict (incomplete: some of its events were lost)"
    text = packet(42000, delivered) * 3 + packet(42000, lost) + packet(4200, delivered) + packet(42001, delivered)
    finding = "-  finding x of 19:28:31  a sentence\n"
    assert (
        live.complete_lines(text + finding + f"-  {CLIENT4}:42000 -> 192.168.56.10:80  cause of a SYN  dropped\n", 42000) == 3
    )
    assert live.complete_lines(text, 4200) == 1 and live.complete_lines("", 42000) == 0


def test_a_part_that_the_machine_did_not_reach_has_failed() -> None:
    found = run.with_missing({"parts": ["live", "costs", "beside"], "live": {}, "failed": {"costs": "ToolFailed: x"}}, 124)
    assert found["failed"] == {"costs": "ToolFailed: x", "beside": "the machine ended before this part did (status 124)"}


def test_both_machines_have_all_parts() -> None:
    goals, others = run.GROUPS
    assert sorted((*goals, *others)) == sorted(inside.all_parts(Path(), 1, 1.0))
    assert run.directory(["live", "kernel"]) != run.directory(["costs"])


def test_each_variant_is_measured_once() -> None:
    variants = forwarding.all_variants(tools.Tracer)  # which starts none
    for variant in variants:
        assert variant.name.startswith(forwarding.GOALS) != variant.name.startswith(forwarding.OTHERS), variant.name
    named = {figure.key for figure in FIGURES if figure.key.startswith("forward.")}
    assert len(named) == sum(v.name.startswith(forwarding.GOALS) for v in variants)


@pytest.mark.parametrize("at_once", [True, False])
def test_two_machines_give_one_result(monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    """The machine of the parts with goals describes the results, if it wrote any."""
    machine = {"machine": {"kernel": "6.12.1", "cpus": 1}, "rounds": 1, "failed": {}}

    def in_machine(lab: Path, rounds: int, seconds: float, only: str, parts: list[str]) -> dict[str, Any]:
        if parts == ["beside"]:
            return run.with_missing({"parts": parts, "failed": {}}, 124)
        return {**machine, "parts": parts, "part_seconds": {parts[0]: 2.5}, parts[0]: {"of": parts[0]}}

    monkeypatch.setattr(run, "in_machine", in_machine)
    found = run.in_machines(Path(), 1, 1.0, "", [["live"], ["costs"], ["beside"]], at_once)
    assert (
        found["parts"] == ["live", "costs", "beside"] and found["live"] == {"of": "live"} and found["costs"] == {"of": "costs"}
    )
    assert found["failed"] == {"beside": "the machine ended before this part did (status 124)"}
    assert found["part_seconds"] == {"live": 2.5, "costs": 2.5} and found["rounds"] == 1
    with pytest.raises(SystemExit, match="left no results"):
        run.in_machines(Path(), 1, 1.0, "", [["beside"]], at_once)
