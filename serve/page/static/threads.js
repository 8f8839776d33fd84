// The list of threads: searched, paged, up to date; and the form that starts a new one.
import { poll } from "./api.js";
import { attempt, brief, button, chip, fill, make, when } from "./dom.js";
import { openStart } from "./start.js";

const PAGE = 30;
const SECONDS = 3;
const FIELDS = ["thread_id", "status", "metadata", "updated_at"];
const HIDDEN = new Set(["graph_id", "assistant_id", "created_by"]);

export async function open(main, { api, signal }) {
  const list = new ThreadList(main, api, signal);
  await list.load();
  poll(SECONDS, signal, () => list.renew());
  return { keys: { n: ["new thread", () => openStart(main, api)] } };
}

class ThreadList {
  constructor(main, api, signal) {
    Object.assign(this, { api, signal, offset: 0, seen: "", text: "", found: [] });
    const changed = () => { this.offset = 0; attempt(() => this.load()); };
    this.search = make("input", { type: "search", placeholder: "Search ids, metadata and states", "aria-label": "Search", oninput: later(changed, 250) });
    this.status = make("select.tight", { "aria-label": "Status", onchange: changed },
      make("option", { value: "" }, "any status"),
      ["idle", "busy", "interrupted", "error"].map((each) => make("option", { value: each }, { interrupted: "paused" }[each] ?? each)));
    this.rows = make("ul.list");
    this.foot = make("div.line.foot");
    main.append(
      make("div.line.top", {}, make("h1", {}, "Threads"), this.search, this.status,
        button("New thread", () => openStart(main, api), { kind: "main tight", title: "n" })),
      this.rows, this.foot);
  }

  async load() {
    const asked = { limit: PAGE + 1, offset: this.offset };
    if (this.status.value) asked.status = this.status.value;
    const text = this.search.value.trim();
    const key = JSON.stringify([asked, text]);
    this.wanted = key;
    this.text = text;
    const found = text
      ? await this.api.post("page/threads", { ...asked, text }, this.signal)
      : await this.api.post("threads/search", { ...asked, select: FIELDS }, this.signal);
    if (this.wanted !== key) return; // something else was asked for meanwhile
    this.draw(found);
  }

  /** What has happened meanwhile. Those that were found by a text are not searched for again. */
  async renew() {
    if (!this.text || !this.found.length) return this.load();
    const key = this.wanted, ids = this.found.map((each) => each.thread_id);
    const renewed = await this.api.post("threads/search", { ids, limit: ids.length, select: FIELDS }, this.signal);
    const byId = new Map(renewed.map((each) => [each.thread_id, each]));
    if (key === this.wanted) this.draw(this.found.filter((each) => byId.has(each.thread_id)).map((each) => byId.get(each.thread_id)));
  }

  draw(found) {
    const seen = this.wanted + JSON.stringify(found);
    if (seen === this.seen) return;
    this.seen = seen;
    this.found = found;
    const at = document.activeElement?.closest?.("[data-row]")?.dataset.row;
    const rows = found.slice(0, PAGE);
    const nothing = this.search.value || this.status.value ? "No thread fits." : "There are no threads yet. Start one with “New thread”.";
    fill(this.rows, rows.length ? rows.map(row) : make("li.empty", {}, nothing));
    const turn = (by) => { this.offset = Math.max(0, this.offset + by); return this.load(); };
    fill(this.foot,
      rows.length > 0 && make("span.sub", {}, `${this.offset + 1} to ${this.offset + rows.length}`),
      this.offset > 0 && button("Newer", () => turn(-PAGE)),
      found.length > PAGE && button("Older", () => turn(PAGE)));
    if (at) [...this.rows.querySelectorAll("[data-row]")].find((each) => each.dataset.row === at)?.focus();
  }
}

function row({ thread_id: id, status, metadata, updated_at: at }) {
  const said = Object.entries(metadata).filter(([key]) => !HIDDEN.has(key)).map(([key, value]) => `${key}: ${brief(value, 40)}`);
  return make("li", {}, make("a.row", { href: `#/thread/${encodeURIComponent(id)}`, "data-row": id },
    make("span.mono.id", {}, id), make("span.graph", {}, metadata.graph_id ?? "—"),
    make("span.sub.said", {}, said.join(" · ")), make("span.right", {}, when(at), chip(status))));
}

function later(action, milliseconds) {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(action, milliseconds); };
}
