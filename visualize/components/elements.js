// Makes elements. Texts are set as text, never as HTML, so nothing that comes from a thread can
// become markup.

/**
 * An element. `make("a.name#id", {title, onclick, "aria-label": ...}, child, [children], "text")`.
 * Properties whose value is null, undefined or false are left out; `on...` are listeners;
 * null and false among the children are left out, too.
 * @returns {HTMLElement & Record<string, any>}
 */
export function make(kind, properties, ...children) {
  const [, tag, rest] = /^([a-z0-9-]+)(.*)$/.exec(kind);
  const element = document.createElement(tag);
  for (const [, sign, name] of rest.matchAll(/([.#])([\w-]+)/g)) {
    if (sign === "#") element.id = name;
    else element.classList.add(name);
  }
  for (const [name, value] of Object.entries(properties ?? {})) setProperty(element, name, value);
  element.append(...children.flat(Infinity).filter(isShown));
  return element;
}

const isShown = (child) => child !== null && child !== undefined && child !== false;

function setProperty(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "class") element.classList.add(...value.split(/\s+/).filter(Boolean));
  else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
  else element.setAttribute(name, value === true ? "" : value);
}

/** Replace what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(isShown));
  return element;
}

/** A count with its noun: "1 step", "1,000 steps". */
export const countOf = (count, noun, plural = `${noun}s`) => `${count.toLocaleString("en")} ${count === 1 ? noun : plural}`;
