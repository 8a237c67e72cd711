/* SPDX-License-Identifier: Apache-2.0
   One packet: its hooks in each namespace, and the table of what decided. */
function hopRow(h, time) {
  const what = h.nat ? h.nat.kind : h.socket ? "socket" : h.handshake ? h.handshake.stage : h.drop ? "drop" : `${h.table || h.what} ${h.chain || ""}`.trim();
  const text = h.nat ? `${ends(h.nat.before)}  becomes  ${ends(h.nat.after)}`
    : h.socket ? [h.socket.state, h.socket.command && `${h.socket.command} (pid ${h.socket.pid})`].filter(Boolean).join(", ") || "process not found"
    : h.handshake ? `accept queue ${h.handshake.accept_queue}/${h.handshake.accept_limit}, SYN queue ${h.handshake.syn_queue}`
    : h.drop ? [h.drop.reason, h.drop.function && `in ${h.drop.function}`].filter(Boolean).join(" ") : `${h.verdict || ""}${h.reject ? " with " + h.reject : ""}`;
  const kind = h.verdict === "DROP" || h.verdict === "REJECT" || h.drop ? "t-bad" : h.nat ? "t-blue" : "", past = h.from_conntrack ? "from conntrack, decided by " : "";
  const cell = el("td", {}, el("div", {class: kind}, text));
  if (h.owner) cell.append(el("div", {}, h.owner.text));
  if (h.chain_path) cell.append(el("div", {class: "mono"}, past + h.chain_path));
  if (h.rule) cell.append(el("div", {class: "mono rule"}, h.rule.text, copyButton(h.rule.text, "rule"), el("button", {class: "copy", type: "button", onclick: () => filterBy("rule", ruleName(h))}, "packets with this rule")));
  if (h.hotdrop) cell.append(el("div", {class: "t-bad"}, h.hotdrop));
  if (h.undecided) cell.append(el("div", {class: "t-doubt"}, (h.from_conntrack ? "from conntrack, " : "") + h.undecided));
  return el("tr", {}, el("td", {class: "n quiet"}, after(time)), el("td", {}, h.netns), el("td", {}, h.hook || ""), el("td", {class: kind}, what + (h.clone ? " (copy)" : "") + (h.evidence === "derived" ? " (derived)" : "")), cell);
}
function showPacket(p) {
  chosenPacket = p;
  if (started) history.replaceState(null, "", `#packet=${p.number}`);
  const line = `packet ${p.number} · ${clock(p.at, 9)} UTC · ${p.proto.toUpperCase()} ${ends(p)} ${p.tcp_flags || ""} · ${integer(p.length)} B`;
  const head = el("div", {}, el("div", {class: "mono"}, line, copyButton(`${line}\n${p.verdict}`, "packet")));
  if (p.src_owner || p.dst_owner) head.append(el("div", {class: "quiet"}, `${p.src_owner || "unknown"} → ${p.dst_owner || "unknown"}`));
  head.append(el("p", {class: `t-${shade(p.outcome)}`, style: "font-weight:600;font-size:15px;margin:6px 0 12px;overflow-wrap:anywhere"}, `${p.verdict}${p.complete ? "" : " (incomplete: some of its events were lost)"}${p.unexplained ? " (not explained by the run)" : ""}`));
  if (p.cause) head.append(el("p", {class: p.cause.good ? "t-good" : "t-bad"}, `SYN: ${p.cause.text}`));
  const table = el("table", {id: "hops"});
  const decisive = h => h.nat || h.socket || h.drop || h.handshake || h.owner || h.undecided || !["ACCEPT", "", undefined].includes(h.verdict);
  const kept = p.hops.map((h, at) => [h, p.times[at]]), found = kept.filter(([h]) => decisive(h));
  table.append(...(found.length ? found : kept).map(([h, time]) => hopRow(h, time)));
  by("way").replaceChildren(head, el("div", {class: "wide"}, ...namespacesOf(p).map(hookDiagram)), el("div", {class: "wide"}, table));
}
