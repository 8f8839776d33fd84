// Buttons, notices, times and other small parts of the page, beside the elements that it shares with
// reports.

import { fill, make } from "./elements.js";

export { fill, make };

/**
 * A button that is disabled while its action is under way; failures are said to `onFail`.
 * @param {any} label
 * @param {(element: HTMLElement) => any} action
 * @param {{kind?: string, title?: string, onFail?: (text: string, kind: string) => void, disabled?: boolean}} options
 */
export function button(label, action, { kind = "", title = null, onFail = say, disabled = false } = {}) {
  const element = make("button", { type: "button", class: kind, title, disabled }, label);
  element.addEventListener("click", async () => {
    element.disabled = true;
    try {
      await action(element);
    } catch (error) {
      onFail(sentence(error), "bad");
    } finally {
      element.disabled = false;
    }
  });
  return element;
}

/** Redraw an element's rows and keep the focus. */
export function redraw(element, draw) {
  const at = document.activeElement?.closest?.("[data-row]")?.dataset.row;
  draw();
  if (at) [...element.querySelectorAll("[data-row]")].find((each) => each.dataset.row === at)?.focus();
}

/** Tell the reader something for a few seconds, in a corner and to screen readers. */
export function say(text, kind = "") {
  const line = make("p", { class: `toast ${kind}` }, text);
  const close = make("button.plain", { type: "button", "aria-label": "Close", onclick: () => line.remove() }, "×");
  line.append(close);
  document.getElementById("said").append(line);
  setTimeout(() => line.remove(), kind === "bad" ? 20_000 : 5_000);
}

/**
 * Do something that nobody waits for. Failures are said; those of a view that was left are none, and
 * a lost connection is shown by the frame of the page.
 */
export async function attempt(action) {
  try {
    await action();
  } catch (error) {
    if (error.name !== "AbortError" && error.status !== 0) say(sentence(error), "bad");
  }
}

/** An error as a sentence. */
export function sentence(error) {
  const text = String(error?.message ?? error).trim() || "something failed";
  const first = text[0].toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

/** When something was, as people say it; the exact moment is its title. */
export function when(text) {
  if (!text) return make("span");
  const moment = new Date(text);
  return make("time", { datetime: text, title: moment.toLocaleString() }, ago(moment));
}

/** @type {[Intl.RelativeTimeFormatUnit, number][]} */
const UNITS = [["second", 60], ["minute", 60], ["hour", 24], ["day", 30], ["month", 12], ["year", Infinity]];

export function ago(moment, now = Date.now()) {
  let amount = (Number(moment) - now) / 1000;
  const format = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
  for (const [unit, size] of UNITS) {
    if (Math.abs(amount) < size) return format.format(Math.round(amount), unit);
    amount /= size;
  }
  return "";
}

/** How a thread or a run stands, as a coloured word. */
export function chip(status) {
  const shown = { interrupted: "paused", success: "done" }[status] ?? status ?? "unknown";
  return make("span.chip", { class: `is-${status}` }, shown);
}

/** What models have used, [tokens in, tokens out, dollars], as a chip; nothing where none has said. */
export function usageChip(used, why = "") {
  if (!used?.length) return null;
  const [given, made, usd] = used;
  const cost = usd ? ` · ${usd.toLocaleString("en", { style: "currency", currency: "USD", maximumSignificantDigits: 3 })}` : "";
  return make("span.chip.tokens", { title: "Tokens that the model has read and written, and their price if the graph's Budget(prices=) has it" },
    `${why} ${given.toLocaleString("en")} in · ${made.toLocaleString("en")} out${cost}`.trim());
}

/** Whether the end of the page is in sight. */
export const isScrolledDown = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 60;

export const scrollDown = () => scrollTo(0, document.documentElement.scrollHeight);

/** Text of at most so many characters. */
export const cut = (text, most = 90) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** A value on one line. */
export function brief(value, most = 90) {
  const text = typeof value === "string" ? value : JSON.stringify(value) ?? "";
  return cut(text.replace(/\s+/g, " "), most);
}
