/* SPDX-License-Identifier: Apache-2.0
   Elements. Texts become text nodes or attributes, never markup. */
"use strict";
const by = id => document.getElementById(id);
function el(tag, props = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [k, v] of Object.entries(props)) k === "class" ? made.className = v : k.startsWith("on") ? made[k] = v : made.setAttribute(k, v);
  made.append(...inside.filter(x => x !== null && x !== undefined));
  return made;
}
function svg(tag, props = {}, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(props)) made.setAttribute(k, v);
  if (text !== undefined) made.textContent = text;
  return made;
}
const color = name => `var(--${name})`;

/* The clipboard of a page from a file is refused by some browsers: then the text is selected and copied as by hand. */
async function copyText(text) {
  try { await navigator.clipboard.writeText(text); return; } catch { /* below */ }
  const box = el("textarea", {style: "position:fixed;opacity:0"});
  box.value = text;
  document.body.append(box);
  box.select();
  document.execCommand("copy");
  box.remove();
}
function copyButton(text, what) {
  const made = el("button", {class: "copy", type: "button", "aria-label": `copy ${what}`, title: `copy ${what}`}, "copy");
  made.onclick = async event => {
    event.stopPropagation();
    await copyText(text);
    made.textContent = "copied";
    setTimeout(() => { made.textContent = "copy"; }, 1500);
  };
  return made;
}
