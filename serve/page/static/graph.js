// The graph of a thread with marks: how each node stands, as the newest steps tell, while a run goes
// on as well. A node that is chosen shows its steps.
import { fill, make } from "./dom.js";
import { countOf } from "./elements.js";
import { fadeOthers, isWithin, makeChoosable } from "./picture.js";
import { drawHead } from "./step-view.js";
import { oneAtATime, ThreadSteps, viewPath } from "./thread-steps.js";

const URGENT = ["failed", "paused", "running", "done", "waiting", "lost"]; // which of several states a node shows
const LONGEST = 12; // characters of a badge
const MOST = 60; // steps that are read at first, and of a node are listed

export async function mount(element, context) {
  const tab = new GraphTab(element, context);
  await tab.open();
  return tab;
}

class GraphTab {
  context; ended;

  constructor(element, context) {
    Object.assign(this, { context, node: null, ended: new Map(), sawStart: false, frame: 0, keys: {
      Escape: ["all nodes", () => this.choose(null)],
    } });
    /** There may be new steps, or the thread stands otherwise now. */
    this.changed = oneAtATime(context.signal, async () => {
      if (!this.homes) return;
      const { head } = this.data, before = this.countOpen();
      await this.data.refresh();
      if (this.data.head !== head) this.startStep(before);
      this.show();
    });
    this.picture = make("section.card.graph-picture", { "aria-label": "Graph" });
    this.side = make("section.card.graph-side", { "aria-label": "Steps of the node" });
    element.append(make("div.graph-view", {}, this.picture, this.side));
  }

  async open() {
    const { api, threadId, signal } = this.context;
    this.data = new ThreadSteps(api, threadId, signal, { nested: true, piece: MOST, newest: true });
    const [svg, nodes] = await Promise.all([
      api.svg(viewPath(threadId, "graph")), api.get(viewPath(threadId, "nodes"), signal), this.data.load(),
    ]);
    this.homes = nodes.homes;
    fill(this.picture, svg);
    this.parts = [...svg.querySelectorAll("[data-node]")];
    makeChoosable(svg, (id) => this.choose(this.node === id ? null : id));
    this.show();
  }

  /** A run tells of each task that has ended before that is stored: count them. */
  event({ event, data }, run) {
    const [mode, ...inside] = event.split("|");
    const counted = [run.kwargs?.stream_mode ?? []].flat().includes("updates") ? "updates" : "tasks";
    if (mode !== counted || !data) return;
    const names = mode === "updates" ? Object.keys(data) : ["result" in data && data.name].filter(Boolean);
    for (const name of names) {
      const path = [...inside.map((part) => part.split(":")[0]), name].join(":");
      const id = this.homes?.[path] ?? path;
      this.ended.set(id, (this.ended.get(id) ?? 0) + 1);
    }
    this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.show(); });
  }

  /** Another step is open now: what was counted for the one before does not count for this. */
  startStep(before) {
    for (const [id, count] of this.ended) {
      if (!before.has(id)) continue; // its tasks are of the step that has begun
      const left = this.sawStart ? count - before.get(id) : 0;
      if (left > 0) this.ended.set(id, left);
      else this.ended.delete(id);
    }
    this.sawStart = true;
  }

  /** How many tasks each node has in the open step. */
  countOpen() {
    const found = new Map();
    for (const [id, states] of Object.entries(this.data.open?.u ?? {})) {
      const home = this.homes[id] ?? id;
      found.set(home, Object.values(states).reduce((sum, count) => sum + count, found.get(home) ?? 0));
    }
    return found;
  }

  show() {
    if (!this.parts) return;
    const marks = this.readMarks();
    for (const part of this.parts) mark(part, marks.get(part.dataset.node));
    this.showSide();
  }

  /** The steps that were read, the oldest first; the open one is the last. */
  get steps() {
    const known = [...this.data.steps.entries()].sort(([one], [other]) => one - other).map(([, step]) => step);
    return this.data.open ? [...known, this.data.open] : known;
  }

  /** How each node stood when it ran last, and how many tasks it had in the steps that were read. */
  readMarks() {
    const marks = new Map();
    for (const step of this.steps) {
      const counts = new Map();
      for (const [id, states] of Object.entries(step.u ?? {})) {
        const home = this.homes[id] ?? id, sum = counts.get(home) ?? {};
        for (const [state, count] of Object.entries(states)) {
          sum[state] = (sum[state] ?? 0) + count;
        }
        counts.set(home, sum);
      }
      for (const [id, states] of counts) {
        const before = marks.get(id)?.total ?? 0;
        const total = Object.values(states).reduce((sum, count) => sum + count, before);
        marks.set(id, { states, total, state: URGENT.find((state) => states[state]) });
      }
    }
    for (const [id, count] of this.countOpen()) this.addEnded(marks.get(id), id, count);
    for (const one of marks.values()) one.text = describe(one);
    return marks;
  }

  /** Count the tasks of a node of the open step that have ended, if all ends were seen. */
  addEnded(found, id, count) {
    if (!found?.states.running) return;
    const { states } = found, ended = Math.min(this.ended.get(id) ?? 0, count);
    found.isCounted = this.sawStart;
    if (!this.sawStart || ended <= count - states.running) return;
    states.done = (states.done ?? 0) + states.running - (count - ended);
    states.running = count - ended;
    found.state = URGENT.find((state) => states[state]);
  }

  choose(id) {
    this.node = id;
    fadeOthers(this.parts, id, () => true);
    this.showSide();
  }

  showSide() {
    const { node, data, context } = this;
    const isOf = (step) => node === null || (step.w ?? []).some((id) => isWithin(id, node) || this.homes[id] === node);
    const found = this.steps.filter(isOf).reverse();
    const seen = Math.min(data.steps.size, data.count);
    const where = seen < data.count ? `the newest ${countOf(seen, "step")} of ${data.count.toLocaleString("en")}` : countOf(data.count, "step");
    fill(this.side,
      make("h2", {}, node === null ? "Newest steps" : node.replaceAll(":", " \u203a ")),
      make("p.sub", {}, node === null ? `The marks cover ${where}. Choose a node to see its steps.` : `${countOf(found.length, "step")} among ${where}. `,
        node !== null && make("button.plain", { type: "button", onclick: () => this.choose(null) }, "Show all")),
      make("div.side-steps", {}, found.slice(0, MOST).map((step) =>
        drawHead(step, step.keys ?? [], { "data-row": true, onclick: () => { location.hash = context.address("steps", step.c ?? "open"); } }))));
  }

  close() { cancelAnimationFrame(this.frame); }
}

/** What the badge of a node says. */
function describe({ states, total, state, isCounted }) {
  const here = Object.values(states).reduce((sum, count) => sum + count, 0);
  if (here > 1 && (state === "failed" || state === "paused")) {
    const some = states[state].toLocaleString("en"), whole = `${some} of ${here.toLocaleString("en")} ${state}`;
    return whole.length <= LONGEST ? whole : `${some} ${state}`;
  }
  if (here > 1 && state === "running" && isCounted) return `${(states.done ?? 0).toLocaleString("en")}/${here.toLocaleString("en")}`;
  if (here > 1 && state === "running") return `×${here.toLocaleString("en")}`;
  return total > 1 ? `×${total.toLocaleString("en")}` : "";
}

/** Show how a node stands; nothing if it has not run. */
function mark(part, found) {
  for (const state of URGENT) part.classList.toggle(`is-${state}`, found?.state === state);
  let badge = part.querySelector(":scope > .badge");
  if (!found?.text) {
    badge?.remove();
    return;
  }
  if (badge?.textContent === found.text) return;
  badge?.remove();
  const box = part.querySelector(".shape").getBBox();
  const text = shape("text", { "font-size": 11, "text-anchor": "middle", "dominant-baseline": "central" });
  text.textContent = found.text;
  badge = shape("g", { class: "badge" });
  // Beside the arrow that comes in, never on its tip; as the drawings of visualize/svg.py have it.
  const wide = Math.max(16, found.text.length * 6.4 + 12), right = box.x + box.width, middle = box.x + box.width / 2;
  const x = Math.min(right - wide + 26, Math.max(middle + 10, right - wide + 8));
  const y = x > middle + 3 ? box.y : box.y + box.height;
  const back = shape("rect", { x, y: y - 8, width: wide, height: 16, rx: 8 });
  text.setAttribute("x", x + wide / 2);
  text.setAttribute("y", y + 0.5);
  badge.append(back, text);
  part.append(badge);
}

function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
