// Keys: those of every page, those of the view that is shown, and the list of them all.
import { make } from "./dom.js";

const EVERYWHERE = {
  "g t": ["threads", () => { location.hash = "#/"; }],
  "g i": ["inbox", () => { location.hash = "#/inbox"; }],
  "g s": ["schedules", () => { location.hash = "#/schedules"; }],
  "g d": ["store", () => { location.hash = "#/store"; }],
  "g o": ["overview", () => { location.hash = "#/overview"; }],
  "/": ["search", () => { document.querySelector("main input[type=search]")?.focus(); }],
  "?": ["this list", () => showHelp()],
};
let keysOfView = () => ({});
const all = () => ({ ...EVERYWHERE, ...MOVES, ...keysOfView() });
const MOVES = { j: ["next row", () => moveSelection(1)], k: ["row before", () => moveSelection(-1)] };

/** Act on keys. `keys` gives those of the view, `{key: [meaning, action]}`; "g x" is one key after another. */
export function listen(keys) {
  let before = "";
  keysOfView = keys;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const field = event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable]");
    if (field) {
      if (event.key === "Escape") field.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    const found = all();
    const action = found[`${before} ${event.key}`] ?? found[event.key];
    before = event.key;
    if (!action) return;
    before = "";
    event.preventDefault();
    action[1]();
  });
}

/** Move the focus to the next row of the list that is shown, or to the one before. */
export function moveSelection(step) {
  const rows = [...document.querySelectorAll("main [data-row]")].filter((row) => row.offsetParent !== null);
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement?.closest("[data-row]"));
  const next = at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1);
  rows[next].focus();
  rows[next].scrollIntoView({ block: "nearest" });
}

/** Show the list of all keys. */
export function showHelp() {
  const rows = Object.entries({ ...all(), Enter: ["open the row"], Esc: ["leave a field"] }).map(([key, [meaning]]) => [
    make("dt", {}, key.split(" ").map((each) => make("kbd", {}, each))),
    make("dd", {}, meaning),
  ]);
  const dialog = make("dialog.keys", { "aria-label": "Keys", onclose: () => dialog.remove() },
    make("h2", {}, "Keys"), make("dl", {}, rows),
    make("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Close"));
  document.body.append(dialog);
  dialog.showModal();
}
