// The frame of the page: which view is shown, the bar above it, the keyboard, lost connections.
//
// A view is a module with `open(main, context)`; it may return
//   keys    what its keys do (keyboard.js)
//   moved   called with the new `path` when only that changes; true if the view has seen to it
//   close   called when it is left
// The context has
//   api     the server (api.js)
//   path    the parts of the address behind "#/", decoded
//   signal  an AbortSignal that ends with the view: give it to requests and to `poll`
import { Api } from "./api.js";
import { ago, fill, make, sentence } from "./dom.js";
import { listen, showHelp } from "./keyboard.js";

const VIEWS = {
  "": { title: "Threads", load: () => import("./threads.js") },
  inbox: { title: "Inbox", load: () => import("./inbox.js") },
  thread: { load: () => import("./thread.js") },
  schedules: { title: "Schedules", load: () => import("./schedules.js") },
  store: { title: "Store", load: () => import("./store.js") },
  overview: { title: "Overview", load: () => import("./overview.js") },
};

const byId = (id) => document.getElementById(id);
const api = new Api(undefined, showReach);
let current = null;

/** The parts of an address as `#/thread/ID/steps`. */
export const readHash = (hash) => hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);

async function show() {
  const [name = "", ...rest] = readHash(location.hash);
  const view = VIEWS[name];
  // Another tab of the same thread is the view's own business: it keeps what it has.
  if (current?.name === name && current.view?.moved?.(rest)) return;
  current?.end.abort();
  current?.view?.close?.();
  const end = new AbortController();
  const mine = (current = { name, end, view: null });
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = view?.title ? `${view.title} · stategraph` : "stategraph";
  const main = fill(byId("main"));
  try {
    if (!view) throw new Error("there is no such page: choose one above");
    const module = await view.load();
    if (current !== mine) return;
    mine.view = (await module.open(main, { api, path: rest, signal: end.signal })) ?? null;
  } catch (error) {
    if (error.name !== "AbortError" && current === mine) {
      main.append(make("p.notice.bad", { role: "alert" }, sentence(error)), error.status === 401 ? drawLogin() : "");
    }
  }
}

/** Asks for a token, which the browser keeps until the tab is closed. */
function drawLogin() {
  const token = make("input", { type: "password", autocomplete: "current-password", "aria-label": "Token", placeholder: "Token" });
  const send = (event) => { event.preventDefault(); api.logIn(token.value.trim()); show(); };
  return make("form.line", { onsubmit: send }, token, make("button.main", {}, "Log in"));
}

function showReach(isThere) {
  const line = byId("lost");
  if (line.hidden === isThere) return;
  line.hidden = isThere;
  line.textContent = isThere ? "" : "The server cannot be reached. Trying again…";
}

function drawBar() {
  const links = Object.entries(VIEWS).filter(([, view]) => view.title).map(([name, view]) =>
    make("a", { href: `#/${name}`, "data-view": name }, view.title));
  const theme = make("button.plain#theme", { type: "button", title: "Dark or light", "aria-label": "Dark or light", onclick: turnTheme }, "◐");
  const help = make("button.plain", { type: "button", title: "Keys (?)", "aria-label": "Keys", onclick: showHelp }, "?");
  fill(byId("bar"), make("a.brand", { href: "#/" }, "stategraph"), make("nav", { "aria-label": "Pages" }, links), theme, help);
}

function turnTheme() {
  const root = document.documentElement;
  const isDark = getComputedStyle(root).colorScheme.includes("dark");
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("stategraph-theme", root.dataset.theme); } catch { /* not allowed: for now only */ }
}

function readTheme() {
  try {
    const theme = localStorage.getItem("stategraph-theme");
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  } catch { /* not allowed: the system's */ }
}

/** "3 minutes ago" does not stay true. */
function renewTimes() {
  for (const each of document.querySelectorAll("main time")) {
    const text = ago(new Date(each.dateTime));
    if (each.textContent !== text) each.textContent = text;
  }
}

/** The address names the view that is shown: a place in it must not replace that. */
function skipToContent(event) {
  event.preventDefault();
  byId("main").focus();
}

readTheme();
drawBar();
document.querySelector(".skip").addEventListener("click", skipToContent);
setInterval(renewTimes, 10_000);
listen(() => current?.view?.keys ?? {});
addEventListener("hashchange", show);
show();
