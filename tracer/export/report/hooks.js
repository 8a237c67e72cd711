/* SPDX-License-Identifier: Apache-2.0
   The hooks of netfilter in one namespace, as a drawing. */
const PLACES = {in: [40, 46], PREROUTING: [180, 46], routing: [330, 46], FORWARD: [480, 46], POSTROUTING: [650, 46], out: [800, 46], INPUT: [330, 130], process: [480, 130], OUTPUT: [650, 130]};
const WIDE = {PREROUTING: 122, POSTROUTING: 126, FORWARD: 104, INPUT: 104, OUTPUT: 104, process: 128, routing: 76, in: 74, out: 74};
const EDGES = [["in", "PREROUTING"], ["PREROUTING", "routing"], ["routing", "FORWARD"], ["FORWARD", "POSTROUTING"], ["POSTROUTING", "out"], ["routing", "INPUT"], ["INPUT", "process"], ["process", "OUTPUT"], ["OUTPUT", "POSTROUTING"]];
/* The parts of a packet's path, one for each visit to a namespace. Copies are left out. */
function namespacesOf(p) {
  const found = [];
  for (const hop of p.hops) {
    if (hop.clone) continue;
    if (!found.length || found[found.length - 1].netns !== hop.netns) found.push({netns: hop.netns, hops: []});
    found[found.length - 1].hops.push(hop);
  }
  return found;
}
/* Where a packet was dropped: netfilter drops at the last hook, other functions after it. */
function dropPlace(drop, last, arrived) {
  if (drop.reason === "NETFILTER_DROP" || drop.function === "nf_hook_slow") return last || "process";
  return arrived ? "process" : {PREROUTING: "routing", POSTROUTING: "out"}[last] || last || "process";
}
/* The hooks of one namespace: those that the packet passed, and what was decided there. */
function hookDiagram(of) {
  const seen = new Set(of.hops.map(h => h.hook).filter(Boolean)), chips = {};
  const socket = of.hops.find(h => h.socket), stopped = of.hops.find(h => ["DROP", "REJECT"].includes(h.verdict) || h.drop);
  const came = of.hops.find(h => h.in_ifname), left = [...of.hops].reverse().find(h => h.out_ifname);
  const on = new Set(seen);
  if (socket) on.add("process");
  if (seen.has("OUTPUT")) on.add("process");
  if (came && !seen.has("OUTPUT")) on.add("in");
  if (left && seen.has("POSTROUTING") && !stopped) on.add("out");
  if ((seen.has("PREROUTING") || on.has("in")) && (seen.has("INPUT") || seen.has("FORWARD") || seen.has("POSTROUTING") || socket)) on.add("routing");
  if (on.has("routing") && seen.has("POSTROUTING") && !seen.has("INPUT") && !socket) on.add("FORWARD");
  for (const h of of.hops) {
    const place = h.hook || (h.socket || h.handshake ? "process" : h.drop ? dropPlace(h.drop, [...seen].pop(), socket || seen.has("INPUT")) : "");
    const what = h.nat ? h.nat.kind : h.drop ? h.drop.reason || "drop" : h.handshake ? (h.handshake.accepted === false ? "SYN refused" : h.handshake.accepted ? "SYN answered" : "") : ["", "ACCEPT", undefined].includes(h.verdict) ? "" : `${h.table || ""} ${h.verdict}`.trim();
    if (what && place && !(chips[place] || []).some(c => c.text === what)) (chips[place] ||= []).push({text: what, bad: h.verdict === "DROP" || h.verdict === "REJECT" || !!h.drop || (h.handshake && h.handshake.accepted === false), good: !!(h.handshake && h.handshake.accepted), nat: !!h.nat});
  }
  const box = svg("svg", {viewBox: "0 0 860 178", width: "100%", class: "lane", role: "img", "aria-label": `hooks of ${of.netns || "a namespace"}`});
  box.append(svg("rect", {x: 1, y: 1, width: 858, height: 176, rx: 10, fill: "none", stroke: "var(--line)", "stroke-dasharray": "4 4"}), svg("text", {x: 12, y: 168, "font-size": 12.5, "font-weight": 600}, of.netns || "?"));
  for (const [a, b] of EDGES) {
    const lit = on.has(a) && on.has(b) && !(a === "routing" && b === "INPUT" && !seen.has("INPUT") && !socket) && !(a === "OUTPUT" && !seen.has("OUTPUT"))
      && !(a === "INPUT" && !socket) && !(a === "process" && b === "OUTPUT" && !seen.has("OUTPUT"));
    const [x1, y1] = PLACES[a], [x2, y2] = PLACES[b], flat = y1 === y2;
    const line = flat ? {x1: x1 + WIDE[a] / 2, y1, x2: x2 - WIDE[b] / 2 - 2, y2} : {x1, y1: y1 + (y2 > y1 ? 15 : -15), x2, y2: y2 + (y2 > y1 ? -17 : 17)};
    box.append(svg("line", {...line, stroke: lit ? color("blue") : color("line"), "stroke-width": lit ? 3 : 1.5, "marker-end": `url(#arrow-${lit ? "blue" : "line"})`}));
  }
  for (const [name, [x, y]] of Object.entries(PLACES)) {
    const lit = on.has(name), w = WIDE[name], list = chips[name] || [], bad = list.some(c => c.bad);
    const label = name === "in" ? (came ? came.in_ifname : "in") : name === "out" ? (left ? left.out_ifname : "out") : name === "process" && socket ? (socket.socket.command || "socket") : name;
    box.append(svg("rect", {x: x - w / 2, y: y - 15, width: w, height: 30, rx: name === "in" || name === "out" ? 15 : 7, fill: bad ? color("bad") : lit ? color("blue") : color("card"), "fill-opacity": bad ? .92 : lit ? .13 : 1, stroke: bad ? color("bad") : lit ? color("blue") : color("line"), "stroke-width": lit ? 2 : 1}));
    box.append(svg("text", {x, y: y + 4, "text-anchor": "middle", "font-size": 12, "font-weight": lit ? 600 : 400, style: `fill:${bad ? "#fff" : lit ? "var(--ink)" : "var(--quiet)"}`}, label.length > 17 ? label.slice(0, 16) + "…" : label));
    list.slice(0, 2).forEach((c, at) => box.append(svg("text", {x, y: y + 28 + at * 12, "text-anchor": "middle", "font-size": 10.5, "font-weight": 600, style: `paint-order:stroke;stroke:var(--card);stroke-width:4px;fill:${c.bad ? "var(--bad)" : c.good ? "var(--good)" : c.nat ? "var(--blue)" : "var(--doubt)"}`}, c.text.length > 24 ? c.text.slice(0, 23) + "…" : c.text)));
  }
  return box;
}
