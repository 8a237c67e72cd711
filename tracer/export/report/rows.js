/* SPDX-License-Identifier: Apache-2.0
   A list of which only the rows in sight exist, so that its length costs nothing. Arrow keys choose a row. */
const BEYOND = 6;
class Rows {
  /* box: the element that scrolls; height: of a row, px; draw(item, row) fills a row; choose(item) is called for a new choice. */
  constructor(box, height, draw, choose, act = () => {}) {
    Object.assign(this, {box, height, draw, choose, act, items: [], chosen: -1, drawn: new Map()});
    this.pad = el("div");
    box.classList.add("rows");
    box.replaceChildren(this.pad);
    box.addEventListener("scroll", () => this.render());
    box.addEventListener("keydown", event => this.key(event));
  }
  /* New items; same: the choice and the place stay. */
  set(items, chosen = -1, same = false) {
    Object.assign(this, {items, chosen});
    this.pad.style.height = `${items.length * this.height()}px`;
    if (!same) this.box.scrollTop = 0;
    this.clear();
    if (chosen >= 0) this.show();
    this.render();
  }
  clear() { this.drawn.clear(); this.pad.replaceChildren(); }
  show() {
    const top = this.chosen * this.height(), seen = this.box.clientHeight || 400;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    if (top + this.height() > this.box.scrollTop + seen) this.box.scrollTop = top + this.height() - seen;
  }
  render() {
    const height = this.height(), seen = this.box.clientHeight || 400;
    const from = Math.max(0, Math.floor(this.box.scrollTop / height) - BEYOND), to = Math.min(this.items.length, Math.ceil((this.box.scrollTop + seen) / height) + BEYOND);
    for (const [at, row] of this.drawn) if (at < from || at >= to) { row.remove(); this.drawn.delete(at); }
    for (let at = from; at < to; at++) {
      let row = this.drawn.get(at);
      if (!row) {
        row = el("div", {class: "row", role: "option", id: `${this.box.id}-${at}`, style: `top:${at * height}px;height:${height}px`, onclick: () => this.pick(at)});
        this.draw(this.items[at], row, at);
        this.drawn.set(at, row);
        this.pad.append(row);
      }
      row.setAttribute("aria-selected", at === this.chosen);
    }
    this.box.setAttribute("aria-activedescendant", this.chosen < 0 ? "" : `${this.box.id}-${this.chosen}`);
  }
  pick(at) {
    if (!this.items.length) return;
    this.chosen = Math.max(0, Math.min(this.items.length - 1, at));
    this.show();
    this.render();
    this.choose(this.items[this.chosen]);
  }
  key(event) {
    const page = Math.max(1, Math.floor((this.box.clientHeight || 400) / this.height()) - 1);
    const to = {ArrowDown: this.chosen + 1, j: this.chosen + 1, ArrowUp: this.chosen - 1, k: this.chosen - 1, PageDown: this.chosen + page, PageUp: this.chosen - page, Home: 0, End: this.items.length - 1}[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (to !== undefined) this.pick(to);
    else if (event.key === "Enter" && this.chosen >= 0) this.act(this.items[this.chosen]);
    else return;
    event.preventDefault();
  }
}
