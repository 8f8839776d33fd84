// The list of threads: searched, paged, up to date; and the form that starts a new one.
import { poll, url } from "./api.js";
import { attempt, brief, button, chip, fill, make, redraw, when } from "./dom.js";
import { countOf } from "./elements.js";
import { textOf } from "./messages.js";
import { openStart } from "./start.js";

const PAGE = 30;
const SECONDS = 3;
const FIELDS = ["thread_id", "status", "metadata", "updated_at"];
const MOST = 1000; // threads that are kept up to date when they were found by a text
const AGES = { "any time": "", "last hour": 1, "last day": 24, "last week": 168, "last 30 days": 720 }; // hours
const HIDDEN = new Set(["graph_id", "assistant_id", "created_by", "title"]);

export async function open(main, { api, signal }) {
  const list = new ThreadList(main, api, signal);
  await list.load();
  attempt(() => list.offerGraphs());
  poll(SECONDS, signal, () => list.renew());
  return { keys: { n: ["new thread", () => openStart(list.form, api)] } };
}

const titles = new Map(); // first messages, which do not change

/** The title of each thread: `metadata.title`, or the first message; `renew` is called when it was read. */
export function titlesOf(api, threads, signal, renew) {
  const ids = threads.filter(({ thread_id: id, metadata }) => metadata.graph_id && !metadata.title && !titles.has(id)).map((each) => each.thread_id).slice(0, MOST);
  for (const id of ids) titles.set(id, "");
  const asked = { ids, limit: ids.length, select: ["thread_id"], extract: { first: "values.messages[0].content" } };
  if (ids.length) {
    api.post("threads/search", asked, signal).then((found) => {
      for (const { thread_id: id, extracted } of found) titles.set(id, brief(textOf(extracted.first)));
      for (const { thread_id: id, status } of threads) if (status === "busy" && !titles.get(id)) titles.delete(id); // it may still come
      if (ids.some((id) => titles.get(id))) renew();
    }, () => ids.forEach((id) => titles.delete(id)));
  }
  return ({ thread_id: id, metadata }) => brief(metadata.title ?? titles.get(id) ?? "");
}

class ThreadList {
  api; signal;

  constructor(main, api, signal) {
    Object.assign(this, { api, signal, offset: 0, seen: "", text: "", since: null, found: [], searched: null });
    const changed = () => { this.offset = 0; attempt(() => this.load()); };
    this.search = make("input", { type: "search", placeholder: "Search ids, metadata and states", "aria-label": "Search", oninput: later(changed, 250) });
    this.status = make("select.tight", { "aria-label": "Status", onchange: changed },
      make("option", { value: "" }, "any status"),
      ["idle", "busy", "interrupted", "error"].map((each) => make("option", { value: each }, { interrupted: "paused" }[each] ?? each)));
    this.graph = make("select.tight", { "aria-label": "Graph", onchange: changed }, make("option", { value: "" }, "any graph"));
    this.age = make("select.tight", { "aria-label": "Written", onchange: changed },
      Object.entries(AGES).map(([name, hours]) => make("option", { value: `${hours}` }, name)));
    this.form = make("div");
    this.rows = make("ul.list", { "aria-label": "Threads" });
    this.foot = make("div.line.foot");
    main.append(
      make("div.line.top", {}, make("h1", {}, "Threads"), this.search, this.graph, this.status, this.age,
        button("New thread", () => openStart(this.form, api), { kind: "main tight", title: "n" })),
      this.form, this.rows, this.foot);
  }

  /** Whether the server's own search is asked, which knows texts and dates. */
  get isSearch() { return Boolean(this.text || this.since); }

  async offerGraphs() {
    const found = await this.api.post("assistants/search", { metadata: { created_by: "system" }, limit: 1000 }, this.signal);
    this.graph.append(...found.map(({ graph_id: id }) => make("option", { value: id }, id)));
  }

  async load() {
    const asked = { limit: PAGE + 1, offset: this.offset };
    if (this.status.value) asked.status = this.status.value;
    if (this.graph.value) asked.metadata = { graph_id: this.graph.value };
    const text = this.search.value.trim();
    this.since = this.age.value && new Date(Date.now() - Number(this.age.value) * 3_600_000).toISOString();
    const key = JSON.stringify([asked, text, this.age.value]);
    this.wanted = key;
    this.text = text;
    this.searched = null;
    if (this.isSearch) {
      await this.searchFurther();
      return;
    }
    const found = await this.api.post("threads/search", { ...asked, select: FIELDS }, this.signal);
    if (this.wanted === key) this.draw(found); // nothing else was asked for meanwhile
  }

  /** Look for the text in the next states; for the first time in all ids and metadata, too. */
  async searchFurther() {
    const { wanted: key, text, searched } = this;
    const asked = { text, since: this.since || null, status: this.status.value || null, graph_id: this.graph.value || null, further: searched?.further ?? null };
    const found = await this.api.post("page/threads", asked, this.signal);
    if (this.wanted !== key) return;
    this.searched = found;
    this.draw(searched ? [...this.found, ...found.threads] : found.threads);
  }

  /** What has happened meanwhile. Those that were found by a text are not searched for again. */
  async renew() {
    if (!this.isSearch) return this.load();
    const key = this.wanted, before = this.found, ids = before.slice(0, MOST).map((each) => each.thread_id);
    if (!ids.length || !this.searched) return; // a search is under way
    const renewed = await this.api.post("threads/search", { ids, limit: ids.length, select: FIELDS }, this.signal);
    if (key !== this.wanted || before !== this.found) return;
    const byId = new Map(renewed.map((each) => [each.thread_id, each]));
    this.draw(before.map((each, place) => byId.get(each.thread_id) ?? (place < MOST ? null : each)).filter(Boolean));
  }

  draw(found) {
    const seen = this.wanted + JSON.stringify([found, this.searched]);
    if (seen === this.seen) return;
    this.seen = seen;
    this.found = found;
    const rows = this.isSearch ? found : found.slice(0, PAGE);
    const nothing = this.search.value || this.status.value || this.graph.value || this.since ? "No thread fits." : "There are no threads yet. Start one with “New thread”.";
    const titleOf = titlesOf(this.api, rows, this.signal, () => {
      if (this.found !== found || (this.isSearch && !this.searched)) return; // another list is on its way
      this.seen = "";
      this.draw(found);
    });
    redraw(this.rows, () => fill(this.rows, rows.length ? rows.map((each) => row(each, titleOf(each))) : make("li.empty", {}, nothing)));
    if (this.isSearch) fill(this.foot, this.drawSearched());
    else this.drawPages(rows.length, found.length > PAGE);
  }

  /** What was searched, and the way to search further. */
  drawSearched() {
    const { searched: { searched, of, further, has_more: hasMore }, found } = this;
    const said = !this.text ? "" : further
      ? `Searched ids, metadata and errors of all ${countOf(of, "thread")}, and the states of the ${searched.toLocaleString("en")} written last.`
      : `Searched ids, metadata, errors and states of all ${countOf(of, "thread")}.`;
    return [
      make("span.sub", { role: "status" }, `${found.length.toLocaleString("en")} found. ${said}`,
        hasMore && " There are more than these: a longer text or a shorter time finds fewer."),
      further && button("Search further", () => this.searchFurther(), { title: "Look into the states of older threads" }),
    ];
  }

  drawPages(count, hasMore) {
    const turn = (by) => { this.offset = Math.max(0, this.offset + by); return this.load(); };
    fill(this.foot,
      count > 0 && make("span.sub", {}, `${this.offset + 1} to ${this.offset + count}`),
      this.offset > 0 && button("Newer", () => turn(-PAGE)),
      hasMore && button("Older", () => turn(PAGE)));
  }
}

function row({ thread_id: id, status, metadata, updated_at: at }, title) {
  const said = Object.entries(metadata).filter(([key]) => !HIDDEN.has(key)).map(([key, value]) => `${key}: ${brief(value, 40)}`);
  return make("li", {}, make("a.row", { href: url`#/thread/${id}`, "data-row": id },
    make("span.mono.id", {}, id), make("span.graph", {}, metadata.graph_id ?? "—"),
    make("span.sub.said", {}, title && [make("b", {}, title), " "], said.join(" · ")), make("span.right", {}, when(at), chip(status))));
}

function later(action, milliseconds) {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(action, milliseconds); };
}
