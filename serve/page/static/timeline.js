// When the steps of a thread ran: a part of a long one at a time. A column leads to its step.
import { fill, make } from "./dom.js";
import { countOf } from "./elements.js";
import { fadeOthers } from "./picture.js";
import { oneAtATime, ThreadSteps, viewPath } from "./thread-steps.js";

const MOST_ZOOM = 16;
const ACROSS = matchMedia("(max-width: 640px)").matches ? 20 : 60; // steps that are shown at once

export async function mount(element, context) {
  const tab = new TimelineTab(element, context);
  await tab.open();
  return tab;
}

class TimelineTab {
  context;

  constructor(element, context) {
    Object.assign(this, { context, first: 0, isNewest: true, node: null, zoom: 1 });
    /** There may be new steps. */
    this.changed = oneAtATime(context.signal, () => this.refresh());
    const press = (label, title, action) => make("button", { type: "button", title, "aria-label": title, onclick: action }, label);
    this.older = press("‹ Older", "Older steps", () => this.move(this.first - ACROSS));
    this.newer = press("Newer ›", "Newer steps", () => this.move(this.first + ACROSS));
    this.slider = make("input", { type: "range", min: "0", step: "1", "aria-label": "First step that is shown" });
    this.slider.addEventListener("change", () => this.move(+this.slider.value));
    this.where = make("span.sub", { role: "status" });
    const zoom = ["−", "+"].map((sign) => press(sign, sign === "+" ? "Zoom in" : "Zoom out", () => this.zoomBy(sign === "+" ? 2 : 0.5)));
    this.bar = make("div.timeline-bar", {}, this.older, this.slider, this.newer, this.where, make("span.push"), zoom);
    this.picture = make("div.time-picture", { tabindex: "0", role: "group", "aria-label": "Timeline" });
    this.picture.addEventListener("click", (event) => this.follow(event));
    this.picture.addEventListener("scroll", () => this.holdNames());
    this.picture.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.zoomBy(event.deltaY < 0 ? 2 : 0.5);
    }, { passive: false });
    element.append(make("section.card", {}, this.bar, this.picture));
  }

  get keys() {
    return {
      "[": ["older steps", () => this.move(this.first - ACROSS)], "]": ["newer steps", () => this.move(this.first + ACROSS)],
      "+": ["zoom in", () => this.zoomBy(2)], "-": ["zoom out", () => this.zoomBy(0.5)],
      Home: ["oldest steps", () => this.move(0)], End: ["newest steps", () => this.move(this.last)],
    };
  }

  /** The first step of the newest part. */
  get last() { return Math.max(this.data.count - ACROSS, 0); }

  async open() {
    const { api, threadId, signal } = this.context;
    this.data = new ThreadSteps(api, threadId, signal);
    await this.data.load();
    this.first = this.last;
    await this.show();
    if (!this.data.isWhole) this.changed();
  }

  async refresh() {
    if (!await this.data?.refresh()) return;
    if (this.isNewest) this.first = this.last;
    await this.show();
  }

  async move(first) {
    this.first = Math.min(Math.max(first, 0), this.last);
    this.isNewest = this.first === this.last;
    await this.show();
  }

  /** Draw wider or narrower; what is in the middle stays there. */
  async zoomBy(factor) {
    const zoom = Math.min(Math.max(this.zoom * factor, 1), MOST_ZOOM), { picture } = this, half = picture.clientWidth / 2;
    if (zoom === this.zoom) return;
    const middle = (picture.scrollLeft + half) / picture.scrollWidth;
    this.zoom = zoom;
    await this.show();
    picture.scrollLeft = middle * picture.scrollWidth - half;
  }

  /** The names of the rows stay at the left. */
  holdNames() {
    for (const row of this.picture.querySelectorAll("svg .row")) row.style.transform = `translateX(${this.picture.scrollLeft}px)`;
  }

  async show() {
    const { data, context, first } = this, last = Math.min(first + ACROSS, data.count);
    const isLong = data.count > ACROSS;
    for (const part of [this.older, this.newer, this.slider]) part.hidden = !isLong;
    this.slider.max = this.last;
    this.slider.value = first;
    this.older.disabled = first === 0;
    this.newer.disabled = first === this.last;
    this.where.textContent = isLong
      ? `${(first + 1).toLocaleString("en")} to ${last.toLocaleString("en")} of ${countOf(data.count, "step")}` : countOf(data.rows, "step");
    // Of a thread that the server has not read yet the newest part is asked for, wherever that begins.
    const part = data.isWhole ? { tip: data.head, first } : { newest: "1" };
    const asked = { ...part, count: ACROSS, width: this.picture.clientWidth * this.zoom || undefined };
    const svg = await context.api.svg(viewPath(context.threadId, "timeline", asked));
    if (this.first !== first) return;
    for (const row of svg.querySelectorAll(".row")) row.parentNode.append(row); // names above bars
    fill(this.picture, svg);
    this.holdNames();
  }

  /** Go to the step of the column that was clicked; fade the other rows where it was a name. */
  async follow(event) {
    const column = event.target.closest("[data-step]"), row = event.target.closest(".row[data-node]");
    if (column) {
      const place = Math.min(this.first + +column.dataset.step, this.data.rows - 1);
      if (!this.data.at(place)) await this.data.fetch(place, place);
      const at = this.data.nameOf(place);
      if (at) location.hash = this.context.address("steps", at);
    } else if (row) {
      this.node = this.node === row.dataset.node ? null : row.dataset.node;
      fadeOthers(this.picture.querySelectorAll("[data-node]"), this.node, () => false);
    }
  }

  close() {}
}
