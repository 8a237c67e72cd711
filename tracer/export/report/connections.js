/* SPDX-License-Identifier: Apache-2.0
   The list of connections. Connections that differ in the client's port alone stand in one row, which can be opened. */
let shown = [];
const openGroups = new Set();
function connectionRow(item, row) {
  const c = item.connection;
  if (item.member) row.classList.add("member");
  const p = c.worst, cause = c.cause && !(c.cause.good && c.failed) ? c.cause : null, why = cause ? cause.text : p.verdict, kind = cause ? (cause.good ? "good" : "bad") : shade(p.outcome);
  row.append(el("span", {class: "mono"}, `${c.proto} ${item.size > 1 ? `${c.src} → ${address(c.dst, c.dport)}` : ends(c)}`),
    item.size > 1 ? el("button", {class: "times", type: "button", tabindex: -1, "aria-expanded": openGroups.has(c.kind), title: "open or close this group", onclick: event => { event.stopPropagation(); toggleGroup(item); }}, `×${integer(item.size)}`)
      : el("span", {class: "quiet small"}, many(c.packets.length, "packet")));
  row.append(el("span", {class: "v quiet"}, [clock(c.first.at), c.to || c.from].filter(Boolean).join(" · ")), el("span", {class: `v t-${kind}`, title: why}, why + (p.complete ? "" : " (incomplete)")));
}
const connectionRows = new Rows(by("list"), () => 76, connectionRow, item => openConnection(item.connection), item => item.size > 1 ? toggleGroup(item) : by("steps").focus());

function grouped(found) {
  const groups = new Map();
  for (const c of found) groups.get(c.kind)?.push(c) ?? groups.set(c.kind, [c]);
  return [...groups.values()].flatMap(all => [{connection: all[0], size: all.length},
    ...(all.length > 1 && openGroups.has(all[0].kind) ? all.map(connection => ({connection, size: 1, member: true})) : [])]);
}
function listConnections(same = false) {
  const hits = new Set();
  for (const p of packets) if (wanted(p)) hits.add(p.connection);
  shown = connections.filter(c => hits.has(c.number));
  by("count").textContent = `${many(shown.length, "connection")}${filtering() ? ` of ${integer(connections.length)}` : ""}; ${integer(packets.length)} of ${many(data.totals.packets, "packet")} are on this page`;
  const items = by("grouped").checked ? grouped(shown) : shown.map(connection => ({connection, size: 1}));
  const at = items.findIndex(i => i.connection === chosenConnection);
  connectionRows.set(items, at, same);
  if (at < 0 && items.length) connectionRows.pick(Math.max(0, items.findIndex(i => i.connection.trouble)));
  else if (!items.length) showNothing();
  else openConnection(chosenConnection, chosenPacket);
}
function toggleGroup(item) {
  openGroups.delete(item.connection.kind) || openGroups.add(item.connection.kind);
  listConnections(true);
}
/* The next connection of the list, or the previous one, of which a packet or a SYN did not get where it should. */
function nextFailed(step) {
  for (let at = connectionRows.chosen + step; at >= 0 && at < connectionRows.items.length; at += step)
    if (connectionRows.items[at].connection.trouble && !connectionRows.items[at].member) return connectionRows.pick(at);
}
