/* SPDX-License-Identifier: Apache-2.0
   The data of the page (tracer/export/html.py, _report_packets.py), and what is looked up in it. */
const data = JSON.parse(by("data").textContent);
const {hops, paths, lanes, connections, packets} = data.traffic;
const byNumber = new Map(packets.map(p => [p.number, p]));
connections.forEach((c, at) => { c.number = at; c.causes = []; });
for (const p of packets) p.hops = paths[p.path].map(at => hops[at]);
for (const cause of data.traffic.causes) {
  const p = byNumber.get(cause.packet);
  p.cause = cause;
  connections[p.connection].causes.push(cause);
}
const of = c => c.packets.map(at => packets[at]);
const failed = p => BAD.has(p.outcome);
const ruleName = hop => hop.rule && `${hop.table || "nat"} ${hop.rule.chain} ${hop.rule.number}`;
const serviceName = owner => owner && owner.kind === "Service" && owner.name ? `${owner.namespace ? owner.namespace + "/" : ""}${owner.name}${owner.port ? ":" + owner.port : ""}` : "";

/* What is equal for all packets of a path is looked up once. */
const ofPath = paths.map(path => {
  const met = path.map(at => hops[at]);
  return {rules: new Set(met.map(ruleName).filter(Boolean)), services: new Set(met.map(h => serviceName(h.owner)).filter(Boolean)), words: ""};
});
const rulesOf = p => ofPath[p.path].rules;
const hasService = (p, name) => ofPath[p.path].services.has(name) || (p.services || []).includes(name);
function words(p) {
  const path = ofPath[p.path];
  path.words ||= JSON.stringify(p.hops).toLowerCase();
  p.words ||= [p.number, p.proto, ends(p), p.tcp_flags, p.verdict, p.outcome, p.src_owner, p.dst_owner, p.cause && `${p.cause.cause} ${p.cause.text}`].join(" ").toLowerCase();
  return [p.words, path.words];
}

/* The state of a connection: that of its worst packet, and the last cause of its SYNs. */
for (const c of connections) {
  const all = of(c), worst = all.find(failed) || all.find(p => shade(p.outcome) === "doubt") || all.find(p => !p.complete) || all[all.length - 1];
  Object.assign(c, {first: all[0], worst, failed: all.filter(failed).length, cause: c.causes[c.causes.length - 1]});
  c.trouble = c.failed > 0 || !!c.cause && !c.cause.good;
  c.to = (all.find(p => address(p.dst, p.dport) === address(c.dst, c.dport)) || {}).dst_owner;
  c.from = (all.find(p => address(p.src, p.sport) === address(c.src, c.sport)) || {}).src_owner;
  c.kind = [c.proto, c.src, c.dst, c.dport, c.to, worst.outcome, c.cause && c.cause.cause, [...rulesOf(worst)].join()].join("\n");
}
