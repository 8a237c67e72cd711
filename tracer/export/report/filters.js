/* SPDX-License-Identifier: Apache-2.0
   What is searched for. A connection is shown if one of its packets has all of it. */
const filter = {text: "", service: "", rule: "", cause: "", outcome: "", slice: null};
const MOST_CHOICES = 400;
function counted(namesOf) {
  const counts = new Map();
  for (const p of packets) for (const name of namesOf(p)) counts.set(name, (counts.get(name) || 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).slice(0, MOST_CHOICES);
}
function fill(name, all, found) {
  by(`by-${name}`).append(el("option", {value: ""}, all), ...found.map(([value, n]) => el("option", {value}, `${short(value, 70)} (${integer(n)})`)));
  by(`by-${name}`).disabled = !found.length;
}
fill("service", "every Service", counted(p => new Set([...ofPath[p.path].services, ...(p.services || [])])));
fill("rule", "every rule", counted(rulesOf));
fill("cause", "every cause of a SYN", counted(p => p.cause ? [p.cause.cause] : []));
fill("outcome", "every outcome", counted(p => [p.outcome]));

function wanted(p) {
  const c = connections[p.connection];
  if (filter.outcome && p.outcome !== filter.outcome || filter.rule && !rulesOf(p).has(filter.rule) || filter.service && !hasService(p, filter.service)) return false;
  if (filter.cause && !c.causes.some(x => x.cause === filter.cause)) return false;
  if (filter.slice !== null && Math.floor(Math.max(0, p.at) / data.timeline.length) !== filter.slice) return false;
  return !filter.text || filter.text.split(/\s+/).every(word => words(p).some(text => text.includes(word)));
}
const filtering = () => filter.slice !== null || ["text", "service", "rule", "cause", "outcome"].some(name => filter[name]);
function applyFilter() {
  for (const name of ["service", "rule", "cause", "outcome"]) filter[name] = by(`by-${name}`).value;
  filter.text = by("find").value.trim().toLowerCase();
  drawTimeline();
  listConnections();
}
function clearFilter() {
  for (const name of ["service", "rule", "cause", "outcome"]) by(`by-${name}`).value = "";
  by("find").value = "";
  filter.slice = null;
  applyFilter();
}
function filterBy(name, value) {
  clearFilter();
  by(`by-${name}`).value = value;
  applyFilter();
  by("connections-title").scrollIntoView();
}
