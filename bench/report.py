# SPDX-License-Identifier: Apache-2.0
"""The results as tables; the last one has the figures with a goal (bench/figures.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench import figures


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines with aligned columns: the first column to the left, the others to the right."""
    all_rows = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in all_rows) for i in range(len(head))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in all_rows
    ]


def _tool_report(variant: dict[str, Any]) -> str:
    """What a tool reported about its runs: events and losses, or the counts of its last run."""
    last = (variant["reported"] or [{}])[-1]
    if "lost" in last:
        written, lost = sum(t["events"] for t in variant["reported"]), sum(t["lost"] for t in variant["reported"])
        seconds = sum(b["seconds"] for b in variant["blasts"])
        return f"{written / seconds:,.0f} events/s, {lost:,} lost" + (f" ({lost / written:.2%})" if written and lost else "")
    return ", ".join(f"{value:,} {name}" for name, value in last.items())


HEAD = ("", "of untraced", "spread", "rounds", "tool's CPU", "beside", "hooked", "it reports")


def throughput(found: dict[str, Any], machine: dict[str, Any]) -> list[str]:
    """of untraced: all work on the machine's CPUs. hooked: functions with an ftrace attachment."""
    base = found["untraced"]
    lines = [
        f"untraced: {base['median']:,.0f} packets/s (median of {base['blasts']};"
        f" {base['lowest']:,.0f} to {base['highest']:,.0f}: the variation of the machine)",
        "",
    ]
    rows = []
    for v in found["variants"]:
        if not v["ratios"]:
            rows.append([v["name"], *"------", v["error"]])
            continue
        cpu = sum(b["cpu"] for b in v["blasts"]) / len(v["blasts"])
        spread = f"{min(v['ratios']):.2f}-{max(v['ratios']):.2f}"
        beside = f"{v['ratio'] / (1 - cpu):.2f}" if machine["cpus"] == 1 else "-"
        row = [v["name"], f"{v['ratio']:.2f}", spread, len(v["ratios"]), f"{cpu:.0%}", beside, v["hooked"], _tool_report(v)]
        rows.append([str(cell) for cell in row])
    lines += table(HEAD, rows)
    if machine["cpus"] == 1:
        lines += ["  beside: with the tool's own process on another CPU, computed: of untraced / (1 - tool's CPU)"]
    lines += ["", "what ran:"] + [f"  {v['name']}: {v['command']}" for v in found["variants"]]
    return lines


def beside(found: list[dict[str, Any]]) -> list[str]:
    """For one second of packets at each rate: the share of complete packets, and the time from last packet to last line."""
    measured = [tool for tool in found if "error" not in tool]
    rates = [row["rate"] for row in measured[0]["rows"]] if measured else []
    head = ["", "start, s", "CPU s", "hooked", "lines per packet", *(f"{rate:,.0f}/s" for rate in rates)]
    rows = []
    for tool in measured:
        start = [f"{tool['start']['seconds']:.1f}", f"{tool['start']['cpu']:.1f}", str(tool["hooked"]), f"{tool['lines']:.1f}"]
        shares = [f"{row['whole'] / row['sent']:.0%}, {row['after']:.1f} s" for row in tool["rows"]]
        rows.append([tool["name"], *start, *shares])
    return [*table(head, rows), "", *(f"  {tool['name']}: {tool.get('error') or tool['command']}" for tool in found)]


def costs(found: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for filter_, rows in found.items():
        total = sum(r["ns_per_packet"] for r in rows)
        shown = [
            [r["program"], f"{r['per_packet']:.2f}", f"{r['ns']:,.0f}", f"{r['ns_per_packet']:,.0f}",
             f"{r['ns_per_packet'] / total:.0%}"]
            for r in rows if r["per_packet"] >= 0.005
        ]  # fmt: skip
        lines += table([f"filter: {filter_}", "runs per packet", "ns per run", "ns per packet", "share"], shown)
        lines += [f"  all programs: {total:,.0f} ns per packet", ""]
    return lines


def drain(found: dict[str, Any]) -> list[str]:
    rows = [
        [f"bcc callback, {found['fields']} fields of each event", f"{found['callback']:,.0f}"],
        ["one array, all fields", f"{found['array']:,.0f}"],
        ["events decoded into named tuples", f"{found['events']:,.0f}"],
        ["events assembled into packets", f"{found['events_in_journeys']:,.0f}"],
        ["the same, in packets", f"{found['packets']:,.0f}"],
    ]
    if found.get("native"):
        native = found["native"]
        rows += [
            ["natively: events decoded into named tuples", f"{native['events']:,.0f}"],
            ["natively: events assembled into packets", f"{native['events_in_journeys']:,.0f}"],
            ["natively: the same, in packets", f"{native['packets']:,.0f}"],
        ]
    return table(["", "per CPU second"], rows)


def startup(found: dict[str, Any]) -> list[str]:
    ways = [way for way in found if found[way]]
    steps = list(dict.fromkeys(step for way in ways for step in found[way]))
    rows = [[step, *(f"{found[way][step]:.2f}" if step in found[way] else "-" for way in ways)] for step in steps]
    return table(["CPU seconds", *ways], rows)


def explain(found: dict[str, Any]) -> list[str]:
    rows = [
        [f"{scene}, {form}", f"{step['packets']:,}", f"{step['cpu']:.2f}", f"{step['rate']:,.0f}"]
        for scene, forms in found.items()
        for form, step in forms.items()
    ]
    return table(["", "packets", "CPU s", "packets per CPU second"], rows)


def live(found: dict[str, Any]) -> list[str]:
    lines = []
    for name, run in found.items():
        start, memory = run["start"], run["memory"]
        lines.append(f"{name}: ready after {start['seconds']:.1f} s, {start['cpu']:.1f} CPU s")
        for each in (*run["rows"], run["minute"]):
            lines.append("  {rate:,.0f}/s: {whole:,} of {sent:,} complete, {cpu:.2f} CPU s, {after:.1f} s late".format(**each))
        lines.append(
            f"  memory, MB: {run['at_start']['now']:.0f} when ready, {memory['now']:.0f} after a minute (anonymous"
            f" {memory['anonymous']:.0f}, mapped files {memory['mapped']:.0f}), {memory['most']:.0f} at most"
        )
    return lines


def text(results: dict[str, Any]) -> str:
    """The whole report."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [f"kernel {machine['kernel']}, CPUs: {machine['cpus']}; {versions}", f"clock: {results['clock']}"]
    if "throughput" in results:
        lines += ["", "== throughput", *throughput(results["throughput"], machine)]
    for part, title in (("variants", "throughput, other tools and options"), ("nftables", "throughput, rules in iptables-nft")):
        if part in results:
            lines += ["", f"== {title}", *throughput(results[part], machine)]
    titles: dict[str, Callable[[Any], list[str]]]
    titles = {"explain": explain, "live": live, "beside": beside, "costs": costs, "drain": drain, "starts": startup}
    for title, show in titles.items():
        if title in results:
            lines += ["", f"== {title}", *show(results[title])]
    for part, error in results["failed"].items():
        lines += ["", f"== {part} FAILED", error]
    parts = ", ".join(f"{part} {seconds:.0f}" for part, seconds in results["part_seconds"].items())
    lines += ["", f"took {results['wall_seconds']:.0f} s; seconds of the machine's clock: {parts}", ""]
    lines += table(figures.HEAD, figures.rows(figures.figures(results)))
    return "\n".join(lines)
