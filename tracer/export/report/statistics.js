/* SPDX-License-Identifier: Apache-2.0
   The tables of the command `stats`. */
for (const t of data.tables) {
  if (!t.rows.length) continue;
  const numbers = t.columns.map((_, at) => t.rows.every(r => typeof r[at] === "number")), lengths = new Set(t.durations);
  const most = t.bar < 0 ? 1 : Math.max(1e-9, ...t.rows.map(r => r[t.bar]));
  const show = (v, at) => lengths.has(at) ? duration(v, 2) : typeof v === "number" ? v.toLocaleString("en", {maximumFractionDigits: 2}) : String(v);
  by("tables").append(el("div", {class: "card"}, el("b", {}, t.title), el("div", {class: "wide"}, el("table", {}, el("tr", {}, ...t.columns.map((c, at) => el("th", {class: numbers[at] ? "n" : ""}, c)), t.bar < 0 ? null : el("th", {style: "width:260px;min-width:120px"})),
    ...t.rows.map(r => el("tr", {}, ...r.map((v, at) => el("td", {class: numbers[at] ? "n" : ""}, show(v, at))), t.bar < 0 ? null : el("td", {}, el("div", {class: "meter", style: `width:${Math.max(0, r[t.bar] / most * 100)}%`}))))))));
}
const lost = data.lost.map(([probe, why, n]) => `${integer(n)} of ${probe} (${why})`), cannot = data.facts.map(f => f.join(": "));
by("foot").textContent = [`Made by k8snet-trace ${data.version} from ${data.about.path}; all times are UTC.`, lost.length ? `Lost: ${lost.join(", ")}.` : "", cannot.length ? `Not shown on this node: ${cannot.join("; ")}.` : ""].join(" ");
