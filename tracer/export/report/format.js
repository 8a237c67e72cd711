/* SPDX-License-Identifier: Apache-2.0
   Figures as a person reads them. Durations come in ns. */
const GOOD = new Set(["forwarded", "delivered", "sent", "answered"]), BAD = new Set(["dropped", "rejected", "refused"]);
const shade = outcome => GOOD.has(outcome) ? "good" : BAD.has(outcome) ? "bad" : "doubt";
const integer = n => n.toLocaleString("en");
const many = (n, noun) => `${integer(n)} ${noun}${n === 1 ? "" : "s"}`;
/* digits: significant ones; what was counted in buckets is right to a tenth, so it gets two. */
function duration(ns, digits = 3) {
  const size = Math.abs(ns);
  if (size >= 59.95e9) return `${Math.floor(ns / 60e9)} min ${Math.round(ns % 60e9 / 1e9)} s`;
  const [unit, name] = size < 1e3 ? [1, "ns"] : size < 999.5e3 ? [1e3, "µs"] : size < 999.5e6 ? [1e6, "ms"] : [1e9, "s"];
  const value = ns / unit, whole = Math.max(1, Math.floor(Math.log10(Math.abs(value) || 1)) + 1);
  return `${unit === 1 || whole >= digits ? Math.round(value) : value.toFixed(digits - whole)} ${name}`;
}
const after = ns => `${ns < 0 ? "−" : "+"}${duration(Math.abs(ns))}`;
const address = (ip, port) => port ? (ip.includes(":") ? `[${ip}]:${port}` : `${ip}:${port}`) : ip;
const ends = x => `${address(x.src, x.sport)} → ${address(x.dst, x.dport)}`;
const short = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;
/* at: ns after the first packet. Milliseconds for a glance, all digits for a title. */
function clock(at, digits = 3) {
  const ns = BigInt(data.began) + BigInt(at), second = new Date(Number(ns / 1000000000n) * 1000).toISOString();
  return `${digits > 3 ? second.slice(0, 10) + " " : ""}${second.slice(11, 19)}.${String(ns % 1000000000n).padStart(9, "0").slice(0, digits)}`;
}
