// Values of a state: short ones on a line, long ones to unfold.
import { countOf, make } from "./elements.js";

const ONE_LINE = 110;
const LONGEST = 20_000; // characters; longer texts have no colours
const TOKENS = /(?<string>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")|(?<number>(?<![\w.])-?\d[\d_.]*(?:e[+-]?\d+)?\b)|(?<constant>\b(?:True|False|None)\b)/g;

/** A value's text with its strings, numbers and constants coloured. Plain words have no colours. */
export function colour(text) {
  const parts = [];
  let end = 0;
  const isValue = /^([[{(]|[\w.]+\(|-?[\d.]+$|True$|False$|None$)/.test(text) && text.length <= LONGEST;
  for (const { 0: token, index, groups } of isValue ? text.matchAll(TOKENS) : []) {
    parts.push(text.slice(end, index), make("span", { class: `is-${Object.keys(groups).find((kind) => groups[kind])}-value` }, token));
    end = index + token.length;
  }
  return [...parts, text.slice(end)];
}

/**
 * A value below its name. `fresh`: the step has changed it. `more`: called with the text's element
 * when a value is unfolded that is longer than what is here.
 */
export function drawValue(name, text, { fresh = false, more = null } = {}) {
  const label = make("b", {}, name || "value"), kind = fresh ? "new" : "";
  if (text.length <= ONE_LINE && !text.includes("\n") && !more) return make("p", { class: kind }, label, colour(text));
  const whole = make("pre", {}, colour(text));
  const line = `${text.replace(/\s+/g, " ").slice(0, 90)}${text.length > 90 ? "…" : ""}`;
  const box = make("details", { class: kind }, make("summary", {}, label, line), whole);
  if (more) box.addEventListener("toggle", () => more(whole), { once: true });
  return box;
}

/** The state after a step, or so far if that is open, made when it is unfolded. `draw` gives its values. */
export function drawState(count, draw, isOpen = false) {
  const title = isOpen ? "State so far" : "State after this step";
  const box = make("details.state", {}, make("summary", {}, `${title} (${countOf(count, "key")})`));
  box.addEventListener("toggle", () => {
    if (box.childElementCount === 1) box.append(...draw());
  });
  return box;
}
