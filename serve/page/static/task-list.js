// The tasks of a step, however many: a list, by how they stand, and the task that is chosen with
// all that is known of it.
import { fill, make, sentence } from "./dom.js";
import { countStates } from "./thread-steps.js";
import { colour } from "./value-view.js";
import { VirtualList } from "./virtual.js";

const PIECE = 100;
const ROW = 30, MOST_ROWS = 14; // of a row, and so many are in sight at most
const ORDER = ["failed", "paused", "running", "waiting", "lost", "done"];

export class TaskList {
  tasks; asked; count; ask;

  /** @param ask asks the server for a view of the step */
  constructor(step, ask) {
    Object.assign(this, { ask, count: step.tasks, state: "", slowest: "", tasks: new Map(), asked: new Set(), timer: 0 });
    this.states = countStates(step);
    this.list = new VirtualList({
      height: ROW, label: "Tasks", kind: "task-rows",
      draw: (place) => this.drawRow(place),
      want: (first, last) => this.want(first, last),
    });
    this.filters = make("div.task-filters");
    this.chosen = make("div.task-chosen", { hidden: true });
    const sort = make("button.plain", { type: "button", "aria-pressed": "false", title: "The slowest first", onclick: () => this.sort(sort) }, "took");
    const titles = ["task", "", sort, "input", "result"].map((title) => make("span", {}, title));
    this.element = make("div.task-list", {}, this.filters, make("div.task-row.task-titles", {}, titles), this.list.element, this.chosen);
  }

  /** Where the list stands, to be kept when the step is drawn anew. */
  get place() { return { top: this.list.element.scrollTop, state: this.state, id: this.id }; }
  keep(place) { this.kept = place; }

  close() {
    clearTimeout(this.timer);
    this.list.close();
  }

  /** Once it stands on the page. */
  start() {
    this.choose(this.kept?.state in this.states ? this.kept.state : "");
    if (this.kept) this.list.element.scrollTop = this.kept.top;
    if (this.kept?.id) this.open(this.kept.id);
  }

  /** Show the tasks that stand so; all for "". */
  choose(state) {
    this.state = state;
    this.tasks.clear();
    this.asked.clear();
    const all = Object.keys(this.states).sort((one, other) => ORDER.indexOf(one) - ORDER.indexOf(other));
    const choices = all.length > 1 ? ["", ...all] : [];
    fill(this.filters, choices.map((each) => make("button.chip", {
      type: "button", class: each, "aria-pressed": `${each === state}`, onclick: () => this.choose(each),
    }, `${each || "all"} ${(each ? this.states[each] : this.count).toLocaleString("en")}`)));
    const shown = state ? this.states[state] : this.count;
    this.list.element.style.height = `${Math.min(shown, MOST_ROWS) * ROW}px`;
    this.list.show(shown);
  }

  /** Show the slowest first, or all in their order again. */
  sort(title) {
    this.slowest = this.slowest ? "" : "1";
    title.setAttribute("aria-pressed", `${Boolean(this.slowest)}`);
    this.choose(this.state);
  }

  want(first, last) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(first, last), this.tasks.size ? 60 : 0);
  }

  async fetch(first, last) {
    const { state, slowest } = this;
    for (let from = first - (first % PIECE); from <= last; from += PIECE) {
      if (this.asked.has(from)) continue;
      this.asked.add(from);
      try {
        const found = await this.ask("tasks", { first: from, count: PIECE, state, slowest });
        if (this.state !== state || this.slowest !== slowest) return;
        found.tasks.forEach((task, at) => this.tasks.set(found.first + at, task));
        found.tasks.forEach((_, at) => this.list.redraw(found.first + at));
      } catch (error) {
        this.asked.delete(from);
        if (error.name === "AbortError") return;
      }
    }
  }

  drawRow(place) {
    const task = this.tasks.get(place);
    if (!task) return make("div.task-row", {}, make("span.sub", {}, "…"));
    const [name, state, took, input = "", ...result] = task.row;
    return make("div.task-row", { class: `${state === "failed" ? "bad" : ""} ${task.id === this.id ? "on" : ""}` },
      make("button.plain.task-name", { type: "button", title: name, "aria-expanded": `${task.id === this.id}`, onclick: () => this.open(task.id) }, name),
      make("span", { class: state }, state), make("span.sub", {}, took),
      make("span.mono", {}, colour(input)), make("span.mono", {}, colour(result.join(" · "))));
  }

  /** Show all of a task; nothing more of the one that is shown. */
  async open(id) {
    const isShown = this.id === id && !this.chosen.hidden;
    this.id = isShown ? "" : id;
    for (const place of this.list.rows.keys()) this.list.redraw(place);
    this.chosen.hidden = isShown;
    if (isShown) return;
    try {
      const task = await this.ask("task", { id });
      if (this.id !== id) return;
      fill(this.chosen, drawWhole(task));
      if (!this.kept) this.chosen.scrollIntoView({ block: "nearest" });
    } catch (error) {
      if (error.name !== "AbortError") fill(this.chosen, make("p.notice.bad", {}, sentence(error)));
    }
  }
}

function drawWhole(task) {
  const [name, state, took] = task.row;
  const starts = task.starts.map(({ name: which, began, took: spent }) =>
    make("li", {}, `${which}: began ${new Date(began).toLocaleString()}, took ${spent}`));
  const part = (title, text, kind = "") => text && [make("h3", {}, title), make("pre", { class: kind }, kind ? text : colour(text))];
  return [
    make("p.task-title", {}, make("b", {}, name), " ", make("span", { class: state }, state), " ", make("span.sub", {}, took)),
    part("Error", task.error, "failed"),
    task.questions.map((question) => part(`Asks (${question.id})`, question.value)),
    part("Input", task.input),
    part("Result", task.result),
    task.wrote.length > 0 && make("p.sub", {}, `wrote ${task.wrote.join(", ")}`),
    starts.length > 0 && make("ol.starts", {}, starts),
    make("p.chk", {}, `task ${task.id}`),
  ];
}
