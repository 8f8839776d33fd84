// Values as a tree that opens where it is clicked. What is folded is not drawn, so a state of any size opens at once.
import { brief, button, make } from "./dom.js";

const MOST = 200; // children that are shown at once
const LONG = 120; // characters on one line

/** A value under its name. `isOpen` unfolds the first level. */
export function tree(name, value, { isOpen = false } = {}) {
  if (typeof value === "string") return textOf(name, value, isOpen);
  if (value === null || typeof value !== "object") return leaf(name, JSON.stringify(value) ?? "undefined", typeof value === "number" ? "number" : "constant");
  const size = Array.isArray(value) ? value.length : Object.keys(value).length;
  if (!size) return leaf(name, Array.isArray(value) ? "[]" : "{}", "nothing");
  const whole = JSON.stringify(value);
  const count = Array.isArray(value) ? `[${size}]` : `{${size}}`;
  const branch = make("details.value", { open: isOpen },
    make("summary", {}, label(name), make("span.count", {}, count), " ", make("span.glance", {}, brief(whole, LONG))));
  const draw = () => {
    if (!branch.open || branch.childElementCount > 1) return;
    branch.append(...children(Object.entries(value)));
  };
  branch.addEventListener("toggle", draw);
  draw();
  return branch;
}

function* children(entries, start = 0) {
  for (const [key, each] of entries.slice(start, start + MOST)) yield tree(key, each);
  const left = entries.length - start - MOST;
  if (left <= 0) return;
  const more = button(`${left.toLocaleString("en")} more`, () => more.replaceWith(...children(entries, start + MOST)), { kind: "small" });
  yield more;
}

function textOf(name, text, isOpen) {
  if (text.length <= LONG && !text.includes("\n")) return leaf(name, text, "string");
  return make("details.value", { open: isOpen },
    make("summary", {}, label(name), make("span.glance", {}, brief(text, LONG))), make("pre", {}, text));
}

const label = (name) => name !== "" && make("b", {}, name);
const leaf = (name, text, kind) => make("p.value", {}, label(name), make("span", { class: `is-${kind}-value` }, text));
