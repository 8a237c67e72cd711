/* SPDX-License-Identifier: Apache-2.0
   The ladder of a connection: a lane a namespace, an arrow a packet from the first lane that it was seen in to the last. */
let chosenConnection = null, chosenPacket = null;
const openRuns = new Set();
const narrow = () => innerWidth <= 700;
for (const name of ["good", "bad", "doubt", "blue", "line"]) {
  const marker = svg("marker", {id: `arrow-${name}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto-start-reverse"});
  marker.append(svg("path", {d: "M0 0L8 4L0 8z", fill: color(name)}));
  by("arrows").append(marker);
}
/* The parts of a packet's way in which it keeps one direction: [first lane, ..., last lane]. */
function parts(way) {
  const found = [];
  for (let at = 1; at < way.length; at++) {
    const last = found[found.length - 1];
    if (last && Math.sign(last[1] - last[0]) === Math.sign(way[at] - way[at - 1])) last.push(way[at]);
    else found.push([way[at - 1], way[at]]);
  }
  return found;
}
function arrow(p, count) {
  const box = svg("svg", {height: 44, role: "img", "aria-label": `${p.tcp_flags || ""} ${p.verdict}`}), kind = p.complete ? shade(p.outcome) : failed(p) ? "bad" : "doubt";
  const x = lane => `${(lane + .5) / count * 100}%`, line = {stroke: color(kind), "stroke-width": 2, ...(p.complete ? {} : {"stroke-dasharray": "5 4"})};
  for (let lane = 0; lane < count; lane++) box.append(svg("line", {x1: x(lane), x2: x(lane), y1: 0, y2: "100%", stroke: color("line")}));
  const runs = parts(p.lanes), height = at => runs.length > 1 ? 24 + at * 14 / runs.length : 28, stop = failed(p);
  runs.forEach((run, at) => {
    const y = height(at), last = at === runs.length - 1;
    if (at) box.append(svg("line", {x1: x(run[0]), x2: x(run[0]), y1: height(at - 1), y2: y, ...line}));
    box.append(svg("line", {x1: x(run[0]), x2: x(run[run.length - 1]), y1: y, y2: y, ...line, ...(last && !stop ? {"marker-end": `url(#arrow-${kind})`} : {})}));
    for (const lane of run.slice(at ? 1 : 0, -1)) box.append(svg("circle", {cx: x(lane), cy: y, r: 3, fill: color(kind)}));
  });
  const end = svg("svg", {x: x(p.lanes[p.lanes.length - 1]), y: runs.length ? height(runs.length - 1) : 28, overflow: "visible"});
  if (!runs.length && !stop) end.append(svg("path", {d: "M0 -5h26v10h-21", fill: "none", ...line, "marker-end": `url(#arrow-${kind})`}));
  if (stop) end.append(svg("circle", {r: 7.5, fill: color("bad")}), svg("path", {d: "M-3.2 -3.2l6.4 6.4M-3.2 3.2l6.4 -6.4", stroke: "#fff", "stroke-width": 2}));
  const middle = runs.length ? (runs[0][0] + runs[0][runs[0].length - 1]) / 2 : p.lanes[0];
  box.append(svg("text", {x: x(middle), y: 15, "text-anchor": "middle", "font-size": 11.5, class: "halo"}, `${p.tcp_flags || p.proto.toUpperCase()} ${integer(p.length)} B`), end);
  return box;
}
function stepRow(item, row) {
  const p = item.packet, c = connections[p.connection], nats = [...new Set(p.hops.filter(h => h.nat && !h.clone).map(h => h.nat.kind))];
  if (filtering() && !item.all.some(wanted)) row.classList.add("other");
  const when = el("div", {class: "when", title: `packet ${p.number}, ${clock(p.at, 9)} UTC`}, el("div", {class: "quiet"}, p === c.first ? clock(p.at) : after(p.at - c.first.at)));
  if (item.all.length > 1) when.append(el("button", {class: "times", type: "button", tabindex: -1, title: "open or close these equal packets", onclick: event => { event.stopPropagation(); toggleRun(item); }}, `×${integer(item.all.length)}`));
  const about = nats.join(", "), end = p.cause ? p.cause.text : p.verdict, kind = p.cause ? (p.cause.good ? "good" : "bad") : p.complete ? shade(p.outcome) : "doubt";
  row.append(when, arrow(p, c.lanes.length), el("div", {class: "end", title: [p.verdict, end, about].join("\n")}, el("span", {class: `t-${kind}`}, end + (p.complete ? "" : " (incomplete)")),
    about ? el("span", {class: "quiet"}, ` · ${about}`) : null));
}
const steps = new Rows(by("steps"), () => narrow() ? 68 : 58, stepRow, item => showPacket(item.packet), item => item.all.length > 1 ? toggleRun(item) : by("way").scrollIntoView({block: "nearest"}));

/* Packets that follow one another, and went the same way with the same flags and the same end. */
function runsOf(c) {
  const found = [], alike = p => [p.path, p.tcp_flags, p.outcome, p.verdict, p.length, p.lanes.join(), p.src, p.sport].join("\n");
  for (const p of of(c)) {
    const last = found[found.length - 1];
    if (by("grouped").checked && last && alike(last.packet) === alike(p) && !p.cause) last.all.push(p);
    else found.push({packet: p, all: [p]});
  }
  return found.flatMap(run => openRuns.has(run.packet) ? run.all.map((packet, at) => ({packet, all: at ? [packet] : run.all})) : [run]);
}
function toggleRun(item) {
  openRuns.delete(item.packet) || openRuns.add(item.packet);
  openConnection(chosenConnection, item.packet, true);
}
function openConnection(c, p = null, same = false) {
  chosenConnection = c;
  const title = `${c.proto} ${ends(c)}`, owners = [c.from, c.to].some(Boolean) ? `${c.from || "unknown"} → ${c.to || "unknown"}` : "";
  by("ladder-head").replaceChildren(el("b", {class: "mono"}, title), copyButton(title, "connection"), el("div", {class: "quiet"}, [owners, many(c.packets.length, "packet"), c.failed ? `${integer(c.failed)} did not arrive` : ""].filter(Boolean).join(" · ")));
  by("lanes-width").style.minWidth = `${c.lanes.length * 92 + (narrow() ? 78 : 280)}px`;
  by("lane-names").replaceChildren(el("div"), el("div", {}, ...c.lanes.map(at => el("span", {class: lanes[at][1] ? "beyond" : ""}, lanes[at][1] ? `beyond ${lanes[at][1]}` : lanes[at][0] || "not known"))), el("div"));
  const items = runsOf(c), wantedOne = p || (filtering() && of(c).find(wanted)) || c.worst;
  const at = items.findIndex(i => i.packet === wantedOne);
  steps.set(items, at < 0 ? items.findIndex(i => i.all.includes(wantedOne)) : at, same);
  showPacket(wantedOne);
}
function showNothing() {
  chosenConnection = chosenPacket = null;
  by("ladder-head").replaceChildren(el("span", {class: "quiet"}, packets.length ? "No packet has all of this." : "No packets."));
  by("lane-names").replaceChildren();
  steps.set([]);
  by("way").replaceChildren();
}
/* Opens the ladder of a packet and chooses the packet; filters that hide it are cleared. */
function openPacket(number) {
  const p = byNumber.get(number);
  if (!p) return;
  const c = connections[p.connection];
  if (!wanted(p)) clearFilter();
  if (by("grouped").checked && connectionRows.items.every(i => i.connection !== c)) openGroups.add(c.kind);
  [chosenConnection, chosenPacket] = [c, p];
  listConnections(true);
  by("connections-title").scrollIntoView();
}
