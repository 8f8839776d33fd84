// The branches of a thread: where they leave each other, and two of them side by side. The address
// names the two: branches/ONE/OTHER, where "newest" is the newest, also when that becomes another one.
import { fill, make, sentence } from "./dom.js";
import { countOf } from "./elements.js";
import { drawChanges, drawHead } from "./step-view.js";
import { oneAtATime, viewPath } from "./thread-steps.js";

const SIDES = ["A", "B"];
export const NEWEST = "newest";

export async function mount(element, context) {
  const tab = new BranchesTab(element, context);
  await tab.load();
  return tab;
}

class BranchesTab {
  context;

  constructor(element, context) {
    Object.assign(this, { context, chosen: context.path.slice(0, 2), seen: "", branches: [], head: "" });
    /** There may be new branches. */
    this.changed = oneAtATime(context.signal, () => this.load());
    this.list = make("section.card", { "aria-label": "Branches" });
    this.tree = make("section.card.branch-tree", { "aria-label": "Tree of the branches", hidden: true });
    this.sides = make("div.compared", { "aria-live": "polite" });
    element.append(make("div.branches-view", {}, this.list, this.tree), this.sides);
  }

  /** The two checkpoints that are chosen. */
  get pair() { return this.chosen.map((each) => (each === NEWEST ? this.head : each)); }

  ask(view, asked) { return this.context.api.get(viewPath(this.context.threadId, view, asked), this.context.signal); }

  moved(path) {
    this.chosen = path.slice(0, 2);
    this.show();
    return this.compare();
  }

  async load() {
    const found = await this.ask("branches");
    const seen = JSON.stringify(found);
    if (seen === this.seen) return;
    this.seen = seen;
    this.branches = [...found.branches].reverse(); // the newest first
    this.head = found.head;
    this.show();
    await Promise.all([this.drawTree(found.tree), this.compare()]);
  }

  show() {
    const { branches } = this;
    fill(this.list,
      make("h2", {}, countOf(branches.length, "branch", "branches")),
      make("p.sub", {}, branches.length > 1
        ? "Choose two to see them side by side."
        : "A branch begins where a step is run again, or the state of an older step is edited: open a step, then “State, edit, fork”."),
      branches.length > 0 && make("div.branch-list", {}, branches.map((branch) => this.row(branch))));
  }

  row({ number, tip, step, own, next }) {
    const { context, pair: chosen, head } = this;
    const choices = SIDES.map((side, at) => make("button.side", {
      type: "button", "aria-pressed": `${chosen[at] === tip}`, "aria-label": `Branch ${number} as ${side}`, onclick: () => this.choose(at, tip),
    }, side));
    return make("div.branch-row", { "data-row": true, tabindex: "-1" },
      this.branches.length > 1 && choices,
      make("span.branch-name", {}, make("b", {}, `branch ${number}`), tip === head && " (the newest)",
        make("span.sub", {}, ` up to step ${step}, ${countOf(own, "checkpoint")} of its own${next.length ? `, next: ${next.join(", ")}` : ""}`)),
      make("span.branch-links", {},
        make("a.button", { href: context.address("steps", tip, ...(tip === head ? [] : [tip])) }, "Steps"),
        make("a.button", { href: context.address("state", tip), title: "Its state; edit it, or run again from there" }, "State, edit, fork")));
  }

  choose(at, tip) {
    const chosen = this.pair;
    chosen[at] = chosen[at] === tip ? "" : tip;
    if (chosen[1 - at] === tip) chosen[1 - at] = "";
    this.chosen = chosen;
    const [one = "", other = ""] = chosen;
    if (one && other) history.replaceState(null, "", this.context.address("branches", one, other));
    this.show();
    this.compare();
  }

  async drawTree(isDrawn) {
    this.tree.hidden = !isDrawn || this.branches.length < 2;
    if (this.tree.hidden) return;
    const svg = await this.context.api.svg(viewPath(this.context.threadId, "tree"));
    const tips = new Set(this.branches.map(({ tip }) => tip));
    for (const node of svg.querySelectorAll("[data-node]")) {
      if (!tips.has(node.dataset.node)) continue;
      node.classList.add("choosable");
      node.addEventListener("click", () => this.choose(this.chosen[0] && !this.chosen[1] ? 1 : 0, node.dataset.node));
    }
    fill(this.tree, make("h2", {}, "Tree"), svg);
    this.markTree();
  }

  markTree() {
    for (const node of this.tree.querySelectorAll("[data-node]")) node.classList.toggle("ran", this.pair.includes(node.dataset.node));
  }

  async compare() {
    const pair = this.pair, [one, other] = pair;
    this.markTree();
    if (!one || !other || one === other) {
      fill(this.sides);
      return;
    }
    try {
      const found = await this.ask("compare", { one, other });
      if (this.pair[0] !== one || this.pair[1] !== other) return;
      fill(this.sides,
        make("p.sub", {}, `Both went through the same ${countOf(found.both, "step")} first.`),
        make("div.side-by-side", {}, SIDES.map((side, at) => this.drawSide(side, pair[at], found.steps[at], found.own[at]))),
        make("section.card", {}, make("h2", {}, "What must change in the state of A to have that of B"),
          found.d.length ? drawChanges(found.d) : make("p.sub", {}, "Nothing: they are the same.")));
    } catch (error) {
      if (error.name !== "AbortError") fill(this.sides, make("p.notice.bad", {}, sentence(error)));
    }
  }

  drawSide(side, tip, steps, count) {
    const { context, head } = this;
    const number = this.branches.find((branch) => branch.tip === tip)?.number;
    const line = tip === head ? [] : [tip];
    return make("section.card", {},
      make("h2", {}, `${side}: ${number ? `branch ${number}` : "checkpoint"}`),
      make("p.sub", {}, count > steps.length ? `The newest ${steps.length} of ${countOf(count, "step")} of its own` : countOf(count, "step") + " of its own"),
      steps.map((step) => drawHead(step, step.keys ?? [], { onclick: () => { location.hash = context.address("steps", step.c, ...line); } })));
  }

  close() {}
}
