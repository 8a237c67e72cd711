/* SPDX-License-Identifier: Apache-2.0
   Start, keys, and links to a packet (#packet=12). */
let started = false;
const linked = () => Number((location.hash.match(/^#packet=(\d+)$/) || [])[1] || 0);
drawTimeline();
listConnections();
if (byNumber.has(linked())) openPacket(linked());
started = true;
for (const id of ["by-service", "by-rule", "by-cause", "by-outcome"]) by(id).addEventListener("input", applyFilter);
by("grouped").addEventListener("input", () => listConnections());
by("clear").addEventListener("click", clearFilter);
let waiting = 0;
by("find").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(applyFilter, 120); });
addEventListener("hashchange", () => openPacket(linked()));
addEventListener("resize", () => { drawTimeline(); if (chosenConnection) openConnection(chosenConnection, chosenPacket, true); connectionRows.render(); });
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") { clearFilter(); by("list").focus(); event.preventDefault(); return; }
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const act = {"/": () => by("find").focus(), n: () => nextFailed(1), p: () => nextFailed(-1), ArrowRight: () => by("steps").focus(), ArrowLeft: () => by("list").focus()}[event.key];
  if (!act) return;
  act();
  event.preventDefault();
});
