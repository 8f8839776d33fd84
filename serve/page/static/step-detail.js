// One step: what it changed, its tasks, the state after it, and where to go from here.
import { fill, make, sentence, usageChip } from "./dom.js";
import { countOf } from "./elements.js";
import { drawChanges, drawFacts, drawWriters, isOpen } from "./step-view.js";
import { TaskList } from "./task-list.js";
import { viewPath } from "./thread-steps.js";
import { colour, drawState, drawValue } from "./value-view.js";

export class StepDetail {
  isEarly; api; threadId; signal; address; tip;

  constructor({ api, threadId, signal, address }) {
    Object.assign(this, { api, threadId, signal, address, isEarly: () => false, at: "", tip: "", seen: "", tasks: null });
    this.element = make("section.card.step-detail", { "aria-label": "Step", tabindex: "-1" });
  }

  /** `isEarly`: the server may not have read the whole thread yet, and need not for this step. */
  ask(view, asked) {
    const newest = this.isEarly() ? "1" : "";
    return this.api.get(viewPath(this.threadId, view, { at: this.at, newest, ...asked }), this.signal);
  }

  clear() {
    this.close();
    Object.assign(this, { at: "", seen: "" });
    fill(this.element, make("p.empty", {}, "No step has been made yet."));
  }

  close() {
    this.tasks?.close();
    this.tasks = null;
  }

  /** On a small screen the step stands below the list: bring it into sight. */
  reveal() {
    const { top } = this.element.getBoundingClientRect();
    if (top > innerHeight * 0.8) this.element.scrollIntoView({ block: "start" });
  }

  /** Show the step that made a checkpoint, or "open". `again`: the same step has gone on. */
  async show(at, { again = false } = {}) {
    if (at === this.at && !again) return;
    this.at = at;
    let step;
    try {
      step = await this.ask("step");
    } catch (error) {
      if (error.name === "AbortError" || this.at !== at) return;
      if (error.status !== 404) throw error;
      this.close();
      fill(this.element, make("p.empty", {}, sentence(error)));
      return;
    }
    if (this.at !== at || step === null) return; // another was chosen meanwhile, or it is open no more
    const seen = JSON.stringify(step);
    if (again && seen === this.seen) return;
    this.seen = seen;
    this.draw(step, again ? this.tasks : null);
  }

  draw(step, before) {
    const kept = before?.place;
    this.close();
    if (step.tasks) {
      this.tasks = new TaskList(step, (view, asked) => this.ask(view, asked));
      this.tasks.keep(kept);
    }
    const fresh = new Set(step.state.filter((each) => each.fresh).map((each) => each.key));
    const more = step.keys - step.state.length;
    fill(this.element,
      make("div.detail-head", {},
        make("h2", {}, `Step ${step.n}`), make("span.detail-title", {}, step.h || "nothing ran"),
        step.s && make("span.chip", { class: step.s === "handled" ? "paused" : step.s }, step.l || step.s),
        step.t && make("span.sub", {}, step.t), usageChip(step.$),
        make("a.button.push", { href: this.address("state", ...(step.c ? [step.c] : [])), title: "The whole state; edit it, or run again from here" }, step.c ? "State, edit, fork" : "State, edit")),
      make("h3", {}, "Changes"), drawChanges(step.d, isOpen(step)), drawWriters(step.b),
      this.tasks && [make("h3", {}, `Tasks (${step.tasks.toLocaleString("en")})`), this.tasks.element],
      drawState(step.keys, () => [
        ...step.state.map(({ key, text, whole }) => drawValue(key, text, { fresh: fresh.has(key), more: whole ? null : (place) => this.readValue(key, place) })),
        ...(more > 0 ? [make("p.sub", {}, `… ${countOf(more, "more key")}`)] : []),
      ], isOpen(step)),
      drawFacts(step));
    this.tasks?.start();
  }

  /** Put the whole value where its beginning stands. */
  async readValue(key, place) {
    try {
      fill(place, colour((await this.ask("value", { key })).text));
    } catch (error) {
      if (error.name !== "AbortError") place.after(make("p.notice.bad", {}, sentence(error)));
    }
  }
}
