// The inbox: all threads that wait for an answer, each answered where it stands.
import { ApiError, poll, url } from "./api.js";
import { button, fill, make, say, sentence } from "./dom.js";
import { Questions, questionsOf } from "./questions.js";

const SECONDS = 4;
const PAGE = 20;
const FIELDS = ["thread_id", "metadata", "updated_at"];

export async function open(main, { api, signal }) {
  const inbox = new Inbox(main, api, signal);
  await inbox.load();
  poll(SECONDS, signal, () => inbox.load());
}

class Inbox {
  api; most; signal; entries; nothing;

  constructor(main, api, signal) {
    Object.assign(this, { api, signal, most: PAGE, entries: new Map() });
    this.count = make("span.sub");
    this.list = make("ul.entries");
    this.foot = make("div.line.foot");
    main.append(make("div.line.top", {}, make("h1", {}, "Inbox"), this.count), this.list, this.foot);
  }

  /** Read the states of threads that are new or have changed; forms that are being filled stay. */
  async load() {
    const find = (status) => this.api.post("threads/search", { status, limit: this.most + 1, select: FIELDS }, this.signal);
    // An answer that did not fit failed its run, and the question is still open.
    const found = (await Promise.all(["interrupted", "error"].map(find))).flat();
    const shown = found.sort((one, other) => (one.updated_at < other.updated_at ? 1 : -1)).slice(0, this.most);
    const entries = await Promise.all(shown.map((thread) => this.entry(thread)));
    // Those not found stay known: a thread comes back with its next question, and with what was typed.
    for (const entry of entries) this.entries.set(entry.thread.thread_id, entry);
    this.draw(entries, found.length > this.most);
  }

  async entry(thread) {
    const id = thread.thread_id;
    const known = this.entries.get(id);
    if (known?.thread.updated_at === thread.updated_at) return known;
    let state = { tasks: [] };
    try {
      state = await this.api.get(url`threads/${id}/state`, this.signal);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status === 0) throw error; // 404: deleted meanwhile
    }
    const entry = known ?? this.card(thread);
    entry.thread = thread;
    entry.asks = questionsOf(state).length > 0;
    entry.questions.show(state);
    return entry;
  }

  card(thread) {
    const id = thread.thread_id;
    const questions = new Questions((answers) => this.answer(id, answers));
    const element = make("li.inbox-entry", {},
      make("div.line.who", {},
        make("a.mono", { href: url`#/thread/${id}`, "data-row": id }, id),
        make("span.sub", {}, thread.metadata.graph_id ?? "")),
      questions.element);
    return { thread, questions, element };
  }

  async answer(id, answers) {
    const { thread } = this.entries.get(id);
    const run = await this.api.post(url`threads/${id}/runs`,
      { assistant_id: thread.metadata.assistant_id ?? thread.metadata.graph_id, command: { resume: answers }, stream_mode: ["updates"] });
    say("The answer is delivered.");
    this.follow(id, run.run_id);
    await this.load();
  }

  /** An answer that the graph refuses is told to whoever gave it. */
  async follow(id, runId) {
    try {
      for await (const { event, data } of this.api.events(url`threads/${id}/runs/${runId}/stream`, { signal: this.signal })) {
        if (event === "error") say(sentence(`${id}: ${data.message ?? data.error}`), "bad");
      }
      await this.load();
    } catch { /* the next look shows how it stands */ }
  }

  draw(entries, hasMore) {
    const asking = entries.filter((entry) => entry.asks);
    const elements = asking.map((entry) => entry.element);
    this.count.textContent = asking.length === 1 ? "1 thread asks" : `${asking.length}${hasMore ? "+" : ""} threads ask`;
    if (!elements.length) elements.push((this.nothing ??= make("li.empty", {}, "Nobody asks. Questions of all threads appear here.")));
    // A form that is being filled must not lose the focus: only what differs is moved.
    const same = elements.length === this.list.children.length && elements.every((each, place) => this.list.children[place] === each);
    if (!same) place(this.list, elements);
    fill(this.foot, hasMore && button("More", () => { this.most += PAGE; return this.load(); }));
  }
}

/** Bring the children of an element into this order, moving as few as possible. */
function place(parent, elements) {
  const wanted = new Set(elements);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  elements.forEach((each, at) => { if (parent.children[at] !== each) parent.insertBefore(each, parent.children[at] ?? null); });
}
