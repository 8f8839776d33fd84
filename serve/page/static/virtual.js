// A list of any length of which only the rows in sight are elements. All rows are equally high.
import { make } from "./dom.js";

const AROUND = 8; // rows that are drawn above and below what is in sight

export class VirtualList {
  rows; height; want; draw;

  /**
   * @param height of a row, in pixels
   * @param draw makes the element of a row, by its place
   * @param want called with the first and last place in sight, when they change
   */
  constructor({ height, draw, want = (_first, _last) => {}, label, kind = "" }) {
    Object.assign(this, { height, draw, want, count: 0, rows: new Map(), frame: 0 });
    this.space = make("div.virtual-space", { role: "list", "aria-label": label });
    this.element = make("div.virtual", { class: kind }, this.space);
    this.element.addEventListener("scroll", () => this.soon(), { passive: true });
    this.sizes = new ResizeObserver(() => this.soon());
    this.sizes.observe(this.element);
  }

  close() {
    this.sizes.disconnect();
    cancelAnimationFrame(this.frame);
  }

  /** Whether the last row is in sight. */
  get isAtEnd() {
    const { scrollTop, clientHeight, scrollHeight } = this.element;
    return scrollTop + clientHeight >= scrollHeight - this.height;
  }

  /** So many rows from now on; those that are drawn are drawn anew. */
  show(count) {
    this.count = count;
    this.space.style.height = `${count * this.height}px`;
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    this.paint();
  }

  /** Draw a row anew. */
  redraw(place) {
    const old = this.rows.get(place);
    if (!old) return;
    const isFocused = old.contains(document.activeElement);
    const row = this.place(place);
    old.replaceWith(row);
    if (isFocused) (row.querySelector("button") ?? row).focus({ preventScroll: true });
  }

  /** Bring a row into sight. `where`: "nearest" or "center". */
  reveal(place, where = "nearest") {
    const { element, height } = this, top = place * height, room = element.clientHeight;
    if (where === "center") element.scrollTop = top - room / 2;
    else if (top < element.scrollTop) element.scrollTop = top;
    else if (top + height > element.scrollTop + room) element.scrollTop = top + height - room;
    this.paint();
  }

  revealEnd() {
    this.element.scrollTop = this.count * this.height;
    this.paint();
  }

  soon() {
    this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.paint(); });
  }

  paint() {
    const { element, height, count, rows } = this;
    if (!element.clientHeight) return;
    const first = Math.max(Math.floor(element.scrollTop / height) - AROUND, 0);
    const last = Math.min(Math.ceil((element.scrollTop + element.clientHeight) / height) + AROUND, count) - 1;
    for (const [place, row] of rows) {
      if (place < first || place > last) {
        row.remove();
        rows.delete(place);
      }
    }
    const fresh = [];
    for (let place = first; place <= last; place += 1) if (!rows.has(place)) fresh.push(this.place(place));
    this.space.append(...fresh);
    if (first <= last) this.want(first, last);
  }

  place(place) {
    const row = this.draw(place);
    row.classList.add("virtual-row");
    row.setAttribute("role", "listitem");
    row.setAttribute("aria-setsize", this.count);
    row.setAttribute("aria-posinset", place + 1);
    row.style.top = `${place * this.height}px`;
    row.style.height = `${this.height}px`;
    this.rows.set(place, row);
    return row;
  }
}
