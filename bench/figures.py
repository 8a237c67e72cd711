# SPDX-License-Identifier: Apache-2.0
"""The figures with a goal: bench/results.json, and the table made from it in docs/performance.md.

    python3 -m bench.figures        writes the table of docs/performance.md anew from bench/results.json

results.json has one number for each key of FIGURES; null = not measured, with the reason under "about", beside the machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results.json"
PAGE = ROOT / "docs/performance.md"
BEGIN = "<!-- This table is made from bench/results.json by `make bench` (bench/figures.py). -->"
END = "<!-- End of the table. -->"

Results = Mapping[str, Any]
Figures = dict[str, Any]


class NotMeasured(Exception):
    """A figure that the results do not have. Its text is the reason."""


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        key: Its key in results.json.
        measures: What is measured, with its unit.
        value: Computes it from the results of a run. Raises NotMeasured.
        goal: The goal, None = the figure is only compared with.
        at_least: The goal is the least value, else the greatest.
        beside: Key of a figure of the same run that the value must not be below, or "".
        ratio_to: Key of a figure of the same run; the table shows the ratio to it.
    """

    key: str
    measures: str
    value: Callable[[Results], float]
    goal: float | None = None
    at_least: bool = True
    beside: str = ""
    ratio_to: str = ""


def part(results: Results, name: str) -> Any:
    """The results of a part of the benchmark. Raises NotMeasured when the part failed or did not run."""
    if name in results:
        return results[name]
    error = results.get("failed", {}).get(name, "").strip()
    raise NotMeasured(f"{name}: {error.splitlines()[-1]}" if error else f"{name}: the part did not run")


def explain_part(results: Results) -> dict[str, Any]:
    """The results of the replays by scene; there is one at least. Raises NotMeasured."""
    found: dict[str, Any] = part(results, "explain")
    if not found:
        raise NotMeasured("explain: no replay of a scene succeeded")
    return found


def explained(form: str, scene: str = "") -> Callable[[Results], float]:
    """Packets per CPU second in this output format. scene: "" = the slower scene."""

    def value(results: Results) -> float:
        found = explain_part(results)
        scenes = (scene,) if scene else tuple(found)
        if not all(form in found.get(name, {}) for name in scenes):
            raise NotMeasured("this output format does not exist yet")
        return float(min(found[name][form]["rate"] for name in scenes))

    return value


def first_of_kind(results: Results) -> float:
    """Share of packets that were explained in full; the largest of all scenes and output formats."""
    found = explain_part(results)
    return float(max(step["first_of_kind"] for forms in found.values() for step in forms.values()))


def share(variant: str) -> Callable[[Results], float]:
    """The variant's forwarding rate, as a share of the untraced rate."""

    def value(results: Results) -> float:
        for found in part(results, "throughput")["variants"]:
            if found["name"] == variant and found["ratio"] is not None:
                return float(found["ratio"])
            if found["name"] == variant:
                raise NotMeasured(found["error"] or "no round was measured")
        raise NotMeasured("this variant did not run")

    return value


def native_start(way: str) -> Callable[[Results], float]:
    """CPU seconds of a native start. way: "native" = it compiles, "native, warm" = with kept programs."""

    def value(results: Results) -> float:
        found = part(results, "starts").get(way)
        if not found:
            raise NotMeasured("no Python here has bcc, or the machine did not copy its kernel")
        return float(found["total"])

    return value


def live(name: str, *keys: str) -> Callable[[Results], float]:
    """A value of bench/live.py. name: "alone" or "services"."""

    def value(results: Results) -> float:
        found = part(results, "live")
        for key in (name, *keys):
            found = found[key]
        if found is None:
            raise NotMeasured("no rate was kept: at the lowest one packets were missing")
        return float(found)

    return value


_EXPLAIN = "packets explained per CPU second, replay of a NodePort scene with rules and owners, native"
_SHARE = "forwarding rate as a share of the untraced rate, lab"
_EXPLAIN_GOALS = {"json": 20_000.0, "oneline": 20_000.0, "text": 5_000.0}
_SCENES = {"": "the slower scene", ".legacy": "rules in iptables-legacy", ".nftables": "rules in iptables-nft"}

FIGURES = (
    *(
        Figure(
            f"explain.packets_per_cpu_second.{form}{suffix}", f"{_EXPLAIN}: {words}", explained(form, suffix[1:]),
            _EXPLAIN_GOALS[form],
        )
        for form in _EXPLAIN_GOALS
        for suffix, words in _SCENES.items()
    ),
    Figure(
        "explain.first_of_kind_ratio", "share of packets that are explained in full, because none of their kind was before",
        first_of_kind, 0.02, at_least=False,
    ),
    Figure(
        "start.cpu_seconds.cold", "CPU seconds to import, read BTF and symbols, plan and compile, native; the first start",
        native_start("native"), 2.0, at_least=False,
    ),
    Figure(
        "start.cpu_seconds.warm", "the same, with kept programs", native_start("native, warm"), 0.7, at_least=False,
    ),
    Figure(
        "start.ready_seconds.warm", "seconds until all probes are on, a start after three others, lab",
        live("alone", "start", "seconds"), 5.0, at_least=False,
    ),
    Figure(
        "forward.unrelated", f"{_SHARE}: tracer filtered to another port", share("k8snet-trace, other port"), 0.92,
        beside="forward.tcpdump_filter",
    ),
    Figure(
        "forward.tcpdump_filter", f"{_SHARE}: tcpdump filtered to another port", share("tcpdump, other port"),
    ),
    Figure(
        "forward.recording", f"{_SHARE}: tracer records every packet", share("k8snet-trace, every packet"), 0.75,
        ratio_to="forward.tcpdump_write",
    ),
    Figure(
        "forward.tcpdump_write", f"{_SHARE}: tcpdump writes every packet", share("tcpdump, every packet"),
    ),
    Figure(
        "live.kept_whole_at_pps",
        "packets a second that one CPU beside the load explains whole, live, one line a packet; computed in the lab: complete"
        " packets per CPU second of the tracer (there 10^9 instructions) at the highest rate without a missing one",
        live("alone", "kept"), 5_000.0,
    ),
    Figure(
        "memory.live_mb", "resident memory after the bursts and a minute of packets, MB, lab",
        live("alone", "memory", "now"), 100.0, at_least=False,
    ),
    Figure(
        "memory.live_mb.services_5000", "the same with 5,000 Services and without the bursts",
        live("services", "memory", "now"), 180.0, at_least=False,
    ),
)  # fmt: skip


def figures(results: Results) -> Figures:
    """The content of results.json from the results of a run."""
    values: Figures = {}
    reasons: dict[str, str] = {}
    for figure in FIGURES:
        try:
            values[figure.key] = figure.value(results)
        except NotMeasured as e:
            values[figure.key], reasons[figure.key] = None, str(e)
    machine = results["machine"]
    about = {
        "lab": f"Linux {machine['kernel']}, {machine['cpus']} CPU; clock: {results['clock']}",
        "native": results.get("native", ""),
        "rounds": results["rounds"],
        "not_measured": reasons,
    }
    return values | {"about": about}


def shown(value: float) -> str:
    """The value with three digits at least: these measurements are not more precise."""
    return (
        f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
    )


def is_met(figure: Figure, values: Figures) -> bool | None:
    """Whether the goal is met; None = there is no goal, or the figure or the one beside it was not measured."""
    value = values[figure.key]
    other = values[figure.beside] if figure.beside else 0.0
    if value is None or other is None or figure.goal is None:
        return None
    return bool((value >= figure.goal and value >= other) if figure.at_least else value <= figure.goal)


def row(figure: Figure, values: Figures) -> list[str]:
    """One row of the table: key, value, goal, met or not."""
    value = values[figure.key]
    goal = "-" if figure.goal is None else f"{'>=' if figure.at_least else '<='} {figure.goal:,g}"
    if figure.beside:
        goal += f" and >= {figure.beside}"
    if value is None:
        return [figure.key, "-", goal, f"not measured: {values['about']['not_measured'][figure.key]}"]
    other = values.get(figure.ratio_to)
    ratio = f" ({value / other:.2f} of {figure.ratio_to})" if other else ""
    return [figure.key, shown(value) + ratio, goal, {True: "met", False: "not met", None: "-"}[is_met(figure, values)]]


HEAD = ("figure", "value", "goal", "")


def rows(values: Figures) -> list[list[str]]:
    return [row(figure, values) for figure in FIGURES]


def page_table(values: Figures) -> str:
    """The table of docs/performance.md, with its markers."""
    about = values["about"]
    lines = [BEGIN, "", "| figure | measures | value | goal | |", "|---|---|---|---|---|"]
    for figure, (key, *cells) in zip(FIGURES, rows(values), strict=True):
        lines.append(" | ".join([f"| `{key}`", figure.measures, *cells]) + " |")
    lines += ["", f"Lab: {about['lab']}; {about['rounds']} round(s). Native: {about['native']}.", "", END]
    return "\n".join(lines)


def with_table(page: str, values: Figures) -> str:
    """The page with its table made anew. Raises ValueError for a page without the markers."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError("the page has no markers of the table")
    return before + page_table(values) + after


def write(results: Results) -> Figures:
    """Writes results.json and the table of the page. Returns the figures."""
    values = figures(results)
    RESULTS.write_text(json.dumps(values, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), values))
    return values


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), json.loads(RESULTS.read_text())))
