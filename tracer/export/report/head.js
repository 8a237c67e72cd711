/* SPDX-License-Identifier: Apache-2.0
   The head of the page: totals, causes of SYNs, kernel counters, findings, timeline. */
by("about").textContent = `${data.about.host || "a node"} · Linux ${data.about.kernel} · ${data.about.options || "every packet"}`;
by("when").textContent = packets.length ? `${clock(0, 9).slice(0, 19)} UTC · ${duration(data.totals.seconds * 1e9)}` : "no packets";
const tile = (value, text, kind) => by("tiles").append(el("div", {class: `card tile ${kind || ""}`}, el("b", {}, integer(value)), el("span", {}, text)));
tile(data.totals.packets, "packets");
for (const [outcome, n] of Object.entries(data.totals.outcomes).sort((a, b) => b[1] - a[1])) tile(n, outcome, shade(outcome));
if (data.totals.incomplete) tile(data.totals.incomplete, "incomplete", "doubt");
if (data.totals.unexplained) tile(data.totals.unexplained, "not explained by the run", "doubt");
tile(data.totals.lost, "events lost", data.totals.lost ? "bad" : "");
tile(data.findings.filter(f => f.certain).length, "findings", data.findings.length ? "bad" : "good");

/* Causes and counters, at the head: most reports are read for these. */
data.causes.sort((a, b) => a.good - b.good || b.count - a.count);
if (data.causes.length) by("causes").append(el("h2", {}, "Why SYNs ended as they did"), el("div", {class: "card"}, el("table", {},
  el("tr", {}, el("th", {class: "n"}, "SYNs"), el("th", {}, "cause"), el("th")),
  ...data.causes.map(c => el("tr", {}, el("td", {class: "n"}, integer(c.count)), el("td", {class: c.good ? "t-good" : "t-bad"}, c.cause),
    el("td", {}, el("button", {class: "link", type: "button", onclick: () => filterBy("cause", c.cause)}, "show")))))));
if (data.counters.length) by("counters").append(el("h2", {}, "Kernel counters, and what these packets explain of them"), el("div", {class: "card"}, el("table", {},
  el("tr", {}, ...["counter", "namespace"].map(t => el("th", {}, t)), ...["counted", "explained"].map(t => el("th", {class: "n"}, t))),
  ...data.counters.map(c => el("tr", {}, el("td", {class: "mono"}, c.counter), el("td", {}, c.netns), el("td", {class: "n"}, integer(c.counted)),
    el("td", {class: `n t-${c.counted === c.explained ? "good" : "doubt"}`}, integer(c.explained)))))));

/* Commands stand between backticks. */
const commands = text => text.split("`").flatMap((part, at) => at % 2 ? [el("code", {}, part), copyButton(part, "command")] : [part]);
function findingCard(f) {
  const rows = [];
  f.proofs.forEach((p, at) => rows.push(el("dt", {}, at ? "" : "because"), el("dd", {}, `${p.text} `, el("span", {class: "quiet"}, `(${p.what}, ${p.evidence})`))));
  rows.push(el("dt", {}, "check"), el("dd", {}, ...commands(f.check)), el("dt", {}, "cure"), el("dd", {}, ...commands(f.cure)));
  const links = f.packets.map(n => byNumber.has(n) ? el("button", {class: "link", type: "button", "data-packet": n, onclick: () => openPacket(n)}, `${n}`) : `${n} (not on this page) `);
  if (links.length) rows.push(el("dt", {}, "packets"), el("dd", {}, ...links, f.count > links.length ? ` … of ${many(f.count, "packet")}` : null));
  return el("div", {class: `card finding ${f.certain ? "" : "perhaps"}`},
    el("span", {class: "quiet"}, `${f.certain ? "" : "perhaps: "}${f.name} · ${f.count ? many(f.count, "packet") : "found without packets"}`), el("p", {}, f.text), el("dl", {}, ...rows));
}
if (data.findings.length) by("findings").append(el("h2", {}, "Findings"), ...data.findings.map(findingCard));

const outcomes = Object.keys(data.timeline.slices.reduce((a, s) => Object.assign(a, s), {})).sort();
const PALETTE = {forwarded: "#3d9a6b", delivered: "#2c7fb8", sent: "#7bb661", answered: "#41ab8d", dropped: "#c9302c", rejected: "#e36b2c", refused: "#a83279"};
const paint = o => PALETTE[o] || "#9aa3af";
function drawTimeline() {
  const box = by("time"), width = box.clientWidth || 1200, slices = data.timeline.slices, step = (width - 50) / Math.max(20, slices.length);
  const most = Math.max(1, ...slices.map(s => Object.values(s).reduce((a, b) => a + b, 0)));
  box.replaceChildren(svg("text", {x: 0, y: 20, "font-size": 11, fill: "var(--quiet)"}, integer(most)), svg("line", {x1: 40, x2: width, y1: 110, y2: 110, stroke: "var(--line)"}));
  slices.forEach((s, at) => {
    let y = 110;
    const group = svg("g", {style: "cursor:pointer", opacity: filter.slice === null || filter.slice === at ? 1 : .35});
    for (const o of outcomes) if (s[o]) {
      const h = s[o] / most * 96;
      y -= h;
      group.append(svg("rect", {x: 40 + at * step, y, width: Math.max(1, step - 1), height: h, fill: paint(o)}));
    }
    group.append(svg("rect", {x: 40 + at * step, y: 10, width: step, height: 100, fill: "transparent"}), svg("title", {}, Object.entries(s).map(([o, n]) => `${integer(n)} ${o}`).join(", ")));
    group.onclick = () => { filter.slice = filter.slice === at ? null : at; applyFilter(); };
    box.append(group);
  });
  const end = slices.length * data.timeline.length;
  box.append(svg("text", {x: 40, y: 126, "font-size": 11}, "0 s"), svg("text", {x: Math.max(120, Math.min(width - 4, 40 + slices.length * step)), y: 126, "font-size": 11, "text-anchor": "end"}, duration(end)));
}
by("legend").append(...outcomes.map(o => el("span", {}, el("i", {style: `background:${paint(o)}`}), o)));
