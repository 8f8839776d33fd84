// The steps of a thread: a list of any length, and beside it the step that is chosen. The address
// names that, and the branch if it is not the newest: steps/CHECKPOINT/TIP.
import { attempt, button, fill, make, usageChip } from "./dom.js";
import { countOf } from "./elements.js";
import { StepDetail } from "./step-detail.js";
import { drawHead } from "./step-view.js";
import { oneAtATime, ThreadSteps } from "./thread-steps.js";
import { tree } from "./values.js";
import { VirtualList } from "./virtual.js";

const ROW = 36;

export async function mount(element, context) {
  const tab = new StepsTab(element, context);
  await tab.open(context.path);
  for (const data of context.said()) tab.say("earlier", data);
  await tab.readLogs();
  return tab;
}

class StepsTab {
  context;

  constructor(element, context) {
    Object.assign(this, { element, context, chosen: -1, data: null, follows: true, logged: 0 });
    /** There may be new steps. */
    this.changed = oneAtATime(context.signal, async () => {
      await this.refresh();
      await this.readLogs();
    });
    this.list = new VirtualList({
      height: ROW, label: "Steps", kind: "steps-list",
      draw: (place) => this.drawRow(place),
      want: (first, last) => this.data?.want(first, last),
    });
    this.count = make("span.sub", { role: "status" });
    this.field = make("input", { type: "search", placeholder: "Step, or key = value", "aria-label": "Go to step", title: "A step's number; “n = 7” finds the steps at which n became 7, “n” all that changed n", autocomplete: "off" });
    this.field.addEventListener("change", () => attempt(() => this.goTo(this.field.value)));
    this.run = make("div.steps-bar.sub", { "aria-label": "Run", role: "group" });
    this.found = make("div.steps-found", { role: "status" });
    this.notes = make("div.steps-notes");
    this.said = make("details.steps-said", { hidden: true, open: true }, make("summary.sub", {}, "Said by nodes (custom events, logs)"));
    this.detail = new StepDetail(context);
    element.append(this.notes, make("div.steps-view", {},
      make("section.card.steps-card", { "aria-label": "List of steps" },
        make("div.steps-bar", {}, this.count, this.field), this.run, this.found, this.list.element, this.said),
      this.detail.element));
  }

  get keys() {
    return {
      j: ["next step", () => this.move(1)], k: ["step before", () => this.move(-1)],
      ArrowDown: ["next step", () => this.move(1)], ArrowUp: ["step before", () => this.move(-1)],
      Home: ["first step", () => this.choose(0)], End: ["newest step", () => this.choose(this.data.rows - 1)],
    };
  }

  async open([at = "", tip = ""]) {
    const { api, threadId, signal } = this.context;
    this.data = new ThreadSteps(api, threadId, signal, { tip });
    this.data.onSteps = (first, last) => this.redraw(first, last);
    this.detail.tip = tip;
    this.detail.isEarly = () => !tip && !this.data.isWhole;
    await this.data.load();
    this.drawNotes();
    this.show();
    this.follows = !at;
    if (at) {
      await this.moved([at, tip]);
    } else {
      this.list.revealEnd();
      await this.choose(this.data.rows - 1, false);
    }
    if (!this.data.isWhole) this.changed();
  }

  async moved([at = "", tip = ""]) {
    if (tip !== this.data.tip) return this.open([at, tip]);
    if (!at) return this.choose(this.data.rows - 1, false);
    const place = await this.data.find(at);
    this.show(); // to find it may have taken to read all
    if (place < 0) return this.open([at, at]); // of another branch: the line that ends with it
    this.list.reveal(place, "center");
    await this.data.fetch(place, place);
    return this.choose(place, false);
  }

  async refresh() {
    if (!this.data || this.data.tip) return; // the line to a checkpoint stays as it is
    const at = this.data.nameOf(this.chosen), wasOpen = this.detail.at === "open", wasWhole = this.data.isWhole;
    if (!await this.data.refresh()) return;
    const isAtEnd = this.list.isAtEnd; // the reader may have moved the list meanwhile
    if (!wasWhole) this.shift(this.data.placeOf(at) - this.chosen);
    this.drawNotes();
    this.show();
    if (isAtEnd) this.list.revealEnd();
    const last = this.data.rows - 1, isGone = this.chosen < 0 || this.chosen > last;
    const target = isGone || (this.follows && isAtEnd) ? last : this.chosen;
    if (target !== this.chosen) await this.choose(target, false);
    if (wasOpen && last >= 0) await this.detail.show(this.data.nameOf(this.chosen), { again: true });
  }

  /** The places of the steps were an estimate, by so many too low. */
  shift(by) {
    if (by === 0 || this.chosen + by < 0) return;
    this.chosen += by;
    this.list.element.scrollTop += by * ROW;
  }

  /** What nodes say in the run that is under way, by the step in which they say it. */
  event({ event, data }) {
    if (!/^custom($|\|)/.test(event)) return;
    this.say(`step ${this.data.open?.n ?? ""}`, data);
  }

  /** What nodes have logged since this was read last. */
  async readLogs() {
    for (const { number, step, node, level, text } of await this.data.ask("logs", { after: this.logged })) {
      this.logged = number;
      this.say(`step ${step} · ${node} · ${level}`, text);
    }
  }

  say(where, data) {
    this.said.hidden = false;
    this.said.append(tree(where, data));
  }

  close() {
    this.list.close();
    this.detail.close();
  }

  // -- the list ----------------------------------------------------------------------------------------------

  show() {
    this.list.element.style.height = `min(${Math.max(this.data.rows, 1) * ROW}px, var(--most))`;
    this.list.show(this.data.rows);
    const { count, runs, open } = this.data;
    this.count.textContent = countOf(count, "step") + (runs.length ? ` in ${countOf(runs.length, "run")}` : "") + (open ? ", one open" : "");
  }

  drawNotes() {
    const { data, context } = this;
    fill(this.notes,
      data.remarks.map((remark) => make("p.notice.bad", {}, remark)),
      data.tip && data.tip !== data.head && make("p.notice", {}, "This is the line to an older checkpoint or to another branch. ",
        make("a", { href: context.address("steps") }, "Show the newest")));
  }

  redraw(first, last) {
    for (const place of [...this.list.rows.keys()]) if (place >= first && place <= last) this.list.redraw(place);
  }

  drawRow(place) {
    const step = this.data.at(place), isChosen = place === this.chosen;
    const row = make("div.step-row", { class: isChosen ? "on" : "", "data-place": place });
    if (!step) {
      row.append(make("span.sub", {}, "…"));
      return row;
    }
    row.append(drawHead({ ...step, r: this.data.runs.indexOf(place) + 1 }, step.keys ?? [], { "aria-current": isChosen && "step", title: step.h, onclick: () => this.choose(place) }));
    return row;
  }

  move(by) { return this.choose(Math.min(Math.max(this.chosen + by, 0), this.data.rows - 1)); }

  /** The run of a step: which one, what it took and cost, and the way to those before and after it. */
  async showRun(place) {
    const { data } = this, number = data.runOf(place), begin = (at) => this.choose(data.runs[at - 1]);
    if (!number) return void fill(this.run);
    const end = data.runs[number] ?? data.rows, of = data.ask("run", { number, tip: data.tip });
    const told = await of.catch(() => null); // a run that a fork has left meanwhile
    if (this.chosen !== place) return;
    fill(this.run,
      button("‹", () => begin(number - 1), { kind: "plain", title: "The run before", disabled: number === 1 }),
      button("›", () => begin(number + 1), { kind: "plain", title: "The next run", disabled: number === data.runs.length }),
      make("b", {}, `Run ${number}`), ` ${countOf(end - data.runs[number - 1], "step")}`, told && ` · ${told.t}`, told && usageChip(told.$));
  }

  /** Find the steps at which a key of the state became a value, or changed, the newest first. */
  async findBecame(key, text, last = undefined, before = []) {
    const { steps, next } = await this.data.ask("became", { key, text, tip: this.data.tip, last });
    const found = [...steps.reverse(), ...before];
    const more = next && button("Search older steps", () => this.findBecame(key, text, next, found), { kind: "small" });
    const link = ({ c, n, value }) => make("a", { href: this.context.address("steps", ...[c, this.data.tip].filter(Boolean)) }, `step ${n}: ${value || "gone"}`);
    fill(this.found, found.length ? found.map(link) : `${key} ${text ? `did not become ${text}` : "did not change"}.`, more);
  }

  async goTo(text) {
    const [, key, value = ""] = /^([^=]*[^=\s\d][^=]*?)\s*(?:=+\s*(.*))?$/.exec(text.trim()) ?? [];
    fill(this.found);
    if (key) return this.findBecame(key, value);
    const number = Number.parseInt(text, 10);
    if (!(number >= 0)) return;
    if (!this.data.isWhole) await this.refresh();
    const place = await this.data.findNumber(number);
    this.list.reveal(place, "center");
    await this.data.fetch(place, place);
    await this.choose(place);
  }

  /** Show a step. `tell`: say it in the address, too. */
  async choose(place, tell = true) {
    if (place < 0) {
      this.detail.clear();
      return;
    }
    const before = this.chosen;
    this.chosen = place;
    this.list.redraw(before);
    this.list.redraw(place);
    this.list.reveal(place);
    if (!this.data.at(place)) await this.data.fetch(place, place);
    const at = this.data.nameOf(place);
    if (!at || this.chosen !== place) return;
    if (tell) {
      this.follows = place === this.data.rows - 1; // the newest step, also when that is another one
      history.replaceState(null, "", this.context.address("steps", ...[at, this.data.tip].filter(Boolean)));
      this.detail.reveal();
    }
    await Promise.all([this.detail.show(at), this.showRun(place)]);
  }
}
