// One step of a thread, as its line in a list and as what opens below or beside that: what it
// changed, its tasks, the state after it. Reports and the server's page show steps with it.
// What the letters of a step mean is told in visualize/render/step_data.py.
import { countOf, make } from "./elements.js";

/** The line of a step. `keys` are those of the state that it changed. */
export function drawHead(step, keys, properties = {}) {
  const name = make("span.h", {}, step.h || "nothing ran");
  if (step.s) name.append(" ", make("span.chip", { class: step.s === "handled" ? "paused" : step.s }, step.l || step.s));
  if (step.r) name.append(" ", make("span.chip", { title: "A run began with this input" }, `run ${step.r}`));
  if (keys.length) name.append(make("small", {}, keys.slice(0, 6).join(", ") + (keys.length > 6 ? ", …" : "")));
  return make("button.head", { type: "button", ...properties },
    make("span.n", {}, `${step.n}`), name,
    step.f && make("span.f", {}, countOf(step.f, "branch", "branches")),
    step.t && make("span.t", {}, step.t));
}

/** Whether a step has not ended: it is running, or stopped before its end. */
export const isOpen = (step) => !step.c;

/** What a step changed. Rows come from `describe_changes`. */
export function drawChanges(rows, isOpen = false) {
  const nothing = isOpen ? "the state has not changed yet" : "the state did not change";
  if (!rows?.length) return make("div.diff", {}, make("p", {}, make("i", {}, nothing)));
  return make("div.diff", {}, rows.map(drawChange));
}

function drawChange([kind, where, ...texts]) {
  if (kind === "more") return make("p", {}, make("i", {}, `… ${texts[0]} more change${texts[0] === "1" ? "" : "s"}`));
  const name = make("b", {}, where);
  if (kind === "lines") {
    const lines = texts[1].map((line) => [make({ "+ ": "ins", "- ": "del" }[line.slice(0, 2)] ?? "span", {}, line), "\n"]);
    return [make("p", {}, name, " ", make("i", {}, texts[0])), make("pre", {}, lines)];
  }
  const gone = kind !== "added" && [" ", make("del", {}, texts[0])];
  const come = kind !== "removed" && [" ", make("ins", {}, texts.at(-1))];
  return make("p", {}, name, gone, come);
}

/** The words of changes, for a search. */
export function wordsOf(rows) {
  return (rows ?? []).map(([, ...texts]) => texts.flat().join(" ")).join(" ");
}

/** Who wrote which key, where there are several. */
export function drawWriters(who) {
  const parts = Object.entries(who ?? {}).map(([key, names]) => `${names} wrote ${key}`);
  return parts.length ? make("p.sub", {}, parts.join(" · ")) : null;
}

/** Where a step is kept, and when it was stored. */
export function drawFacts(step) {
  const facts = [isOpen(step) ? "its checkpoint is stored when the step ends" : `checkpoint ${step.c}`, step.a ? new Date(step.a).toLocaleString() : "", step.m || ""];
  return make("p.chk", {}, facts.filter(Boolean).join(" · "));
}
