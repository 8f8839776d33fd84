// One thread: its head, what it asks, and the tabs that show it.
//
// A tab is a module with `mount(element, context)`; it may return
//   changed(thread)   called when the thread may have new steps, at most twice a second
//   event(event, run) called with each event of the run that is under way
//   moved(path)       called when only the part of the address behind the tab's name changes
//   keys              what its keys do (keyboard.js)
//   close()           called when the tab is left
// The context has
//   threadId, api, signal   the signal ends with the tab
//   thread                  the thread's record when the tab was opened: status, metadata.graph_id, ...
//   path                    the parts of the address behind the tab's name, decoded
//   address(tab, ...path)   the address of a tab of this thread, as "#/thread/ID/state/CHECKPOINT"
//   hasMessages             whether the graph's state has messages
//   questions               the element of what the thread asks: a tab may take it to where it is read
//   said()                  what nodes have said, as custom events, in the run that is under way
//   begin(body)             begin a run of the thread's graph: {input}, {command}, {checkpoint_id}, ...
import { url } from "./api.js";
import { attempt, button, chip, fill, isScrolledDown, make, say, scrollDown, sentence, when } from "./dom.js";
import { ThreadWatch } from "./live.js";
import { Questions } from "./questions.js";
import { MODES, openForm } from "./start.js";
import { viewPath } from "./thread-steps.js";
import { titlesOf } from "./threads.js";

/** @type {Record<string, [string, () => Promise<any>]>} */
const TABS = {
  chat: ["Chat", () => import("./chat.js")],
  steps: ["Steps", () => import("./steps.js")],
  graph: ["Graph", () => import("./graph.js")],
  timeline: ["Timeline", () => import("./timeline.js")],
  branches: ["Branches", () => import("./branches.js")],
  state: ["State", () => import("./state.js")],
};
const MOST_SAID = 200; // custom events that are kept
const OF_RUNS = ["steps", "graph", "timeline", "branches"]; // there is nothing in them before the first run

export async function open(main, { api, path, signal }) {
  const view = new ThreadView(main, api, path[0] ?? "", signal);
  await view.start(path.slice(1));
  return view;
}

class ThreadView {
  threadId; api; signal;

  constructor(main, api, threadId, signal) {
    Object.assign(this, { api, threadId, signal, thread: null, tab: null, said: [] });
    this.base = url`threads/${threadId}`;
    this.head = make("header.thread-head");
    this.error = make("div");
    this.form = make("div");
    this.questions = new Questions((answers) => this.begin({ command: { resume: answers } }));
    this.bar = make("nav.tabs", { "aria-label": "Views of the thread" });
    this.body = make("section.tab-body");
    main.append(this.head, this.error, this.form, this.questions.element, this.bar, this.body);
    this.watch = new ThreadWatch(api, threadId, signal, {
      onThread: (thread) => this.show(thread),
      onEvent: (event, run) => {
        if (event.event === "metadata") this.said = [];
        if (/^custom($|\|)/.test(event.event) && this.said.push(event.data) > MOST_SAID) this.said.shift();
        this.tab?.shown?.event?.(event, run);
      },
      onSteps: () => attempt(() => this.tab?.shown?.changed?.(this.thread)),
    });
  }

  /** The keys of the view: those of the tab, and one for each tab. */
  get keys() {
    const tabs = Object.entries(TABS).map(([name, [title]], place) =>
      [`${place + 1}`, [title.toLowerCase(), () => { location.hash = this.address(name); }]]);
    return { ...Object.fromEntries(tabs), ...this.tab?.shown?.keys };
  }

  async start(path) {
    if (!this.threadId) throw new Error("the address names no thread");
    await this.watch.readThread();
    if (this.thread === null) return;
    this.hasMessages = await this.findMessages();
    // Of an address that names no tab: the first that has something to show.
    this.first = this.hasMessages ? "chat" : this.thread.metadata.graph_id ? "steps" : "state";
    this.moved([this.threadId, ...path]);
    this.watch.run();
  }

  address(tab, ...path) {
    return `#/${["thread", this.threadId, tab, ...path].map(encodeURIComponent).join("/")}`;
  }

  /** The address has changed: another tab, or another place in it. */
  moved([threadId, name = "", ...path]) {
    if (threadId !== this.threadId) return false;
    if (!this.thread) return true;
    const wanted = name in TABS ? name : this.first;
    if (this.tab?.name === wanted && this.tab.shown?.moved) attempt(() => this.tab.shown.moved(path));
    else this.openTab(wanted, path);
    return true;
  }

  async findMessages() {
    const { assistant_id: assistant } = this.thread.metadata;
    if (!assistant) return false;
    const schemas = await this.api.get(url`assistants/${assistant}/schemas`, this.signal).catch(() => ({}));
    return Boolean(schemas.state_schema?.properties?.messages);
  }

  async openTab(name, path) {
    this.closeTab();
    const end = new AbortController();
    const tab = (this.tab = { name, end, shown: null });
    this.drawTabs();
    const element = make("div", { class: `tab-${name}`, "aria-busy": "true" });
    fill(this.body, element);
    try {
      const module = await TABS[name][1]();
      if (this.tab !== tab) return;
      if (OF_RUNS.includes(name) && !this.thread.metadata.graph_id) {
        element.append(make("p.empty", {}, "Nothing has run on this thread yet."));
        tab.shown = {};
      } else {
        tab.shown = (await module.mount(element, this.context(path, end.signal))) ?? {};
      }
    } catch (error) {
      if (error.name !== "AbortError" && this.tab === tab) {
        element.append(make("p.notice.bad", { role: "alert" }, sentence(error)));
      }
    } finally {
      element.removeAttribute("aria-busy");
    }
  }

  context(path, signal) {
    const { threadId, api, thread, hasMessages } = this;
    const address = (tab, ...more) => this.address(tab, ...more);
    const questions = this.questions.element;
    return { threadId, api, thread, hasMessages, path, signal, address, questions, said: () => this.said, begin: (body) => this.begin(body) };
  }

  closeTab() {
    this.tab?.end.abort();
    this.tab?.shown?.close?.();
    this.tab = null;
    if (this.bar.previousSibling !== this.questions.element) this.bar.before(this.questions.element);
  }

  close() { this.closeTab(); }

  drawTabs() {
    fill(this.bar, Object.entries(TABS).map(([name, [title]]) =>
      make("a", { href: this.address(name), "aria-current": name === this.tab?.name && "page" }, title)));
    this.bar.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  // -- the head ----------------------------------------------------------------------------------------------

  show(thread) {
    this.thread = thread;
    if (thread === null) {
      this.closeTab();
      fill(this.bar);
      fill(this.body);
      fill(this.head, make("p.notice.bad", { role: "alert" }, `There is no thread “${this.threadId}”. `, make("a", { href: "#/" }, "All threads")));
      return;
    }
    const { status, metadata, updated_at: at, error } = thread;
    const title = titlesOf(this.api, [thread], this.signal, () => this.thread && this.show(this.thread))(thread);
    document.title = `${title || this.threadId} · stategraph`;
    fill(this.head,
      make("div.title-line", {}, make("h1", {}, title || this.threadId), chip(status),
        make("span.sub", {}, title && `${this.threadId} · `, metadata.graph_id ?? "nothing has run yet", " · ", when(at))),
      make("div.actions", {}, this.buttons(thread)));
    fill(this.error, error && status === "error" && make("p.notice.bad", {}, make("b", {}, error.error), ` ${error.message}`));
    attempt(() => this.showQuestions());
  }

  /** What the thread asks: above the tabs, in the chat behind the newest message. */
  async showQuestions() {
    const asked = this.thread;
    const state = asked.status === "interrupted" ? await this.api.get(`${this.base}/state`, this.signal) : { tasks: [] };
    if (this.thread !== asked) return;
    const isAtEnd = this.tab?.name === "chat" && isScrolledDown();
    this.questions.show(state);
    if (isAtEnd) scrollDown();
  }

  buttons({ status, metadata }) {
    const isBusy = status === "busy";
    return [
      isBusy && button("Cancel", () => this.cancel(), { title: "Stop the run now; what it has stored stays" }),
      !isBusy && status !== "idle" && metadata.graph_id &&
        button("Continue", () => this.begin({ input: null }), { title: "Run what is pending once more, without an answer" }),
      button("Run", () => openForm(this.form, this.api, "Run with another input", [], "Run", (body) => this.begin(body), metadata.assistant_id), { title: "Run with another input" }),
      metadata.graph_id &&
        button("Report", () => this.save(viewPath(this.threadId, "report"), "html"), { title: "Save the steps as one HTML page that needs no server" }),
      metadata.graph_id && !isBusy &&
        button("Save as test", () => this.save(viewPath(this.threadId, "test"), "zip"), { title: "Save a pytest file that replays the thread, with its recording" }),
      metadata.graph_id && !isBusy &&
        button("Export", () => this.save(`${this.base}/export`, "json"), { title: "Save the thread with its whole history as a file that another server can import" }),
      !isBusy && button("Copy", () => this.copy(), { title: "A new thread with the same history" }),
      !isBusy && button("Delete", () => this.remove(), { kind: "danger", title: "Delete the thread with its history" }),
    ];
  }

  /** Begin a run. Its events come in by `event`. */
  async begin(body) {
    const assistant = body.assistant_id ?? this.thread.metadata.assistant_id ?? this.thread.metadata.graph_id;
    if (!assistant) throw new Error("no graph has run on this thread yet: choose one with “Run”");
    const run = await this.api.post(`${this.base}/runs`, { assistant_id: assistant, stream_mode: MODES, ...body });
    this.watch.look();
    return run;
  }

  async cancel() {
    await this.api.post("runs/cancel", { thread_id: this.threadId, status: "all" });
    this.watch.look();
  }

  /** Save what the server sends as a file. */
  async save(path, kind) {
    const response = await this.api.fetch("GET", path, undefined, {}, this.signal);
    const file = URL.createObjectURL(await response.blob());
    make("a", { href: file, download: `${this.threadId}.${kind}` }).click();
    URL.revokeObjectURL(file);
  }

  async copy() {
    const made = await this.api.post(`${this.base}/copy`);
    location.hash = url`#/thread/${made.thread_id}`;
    say("This is the copy.");
  }

  async remove() {
    if (!confirm(`Delete the thread ${this.threadId} with its whole history?`)) return;
    const { name } = this.tab;
    this.closeTab(); // it would ask for what is there no more
    try {
      await this.api.delete(this.base);
    } catch (error) {
      this.openTab(name, []);
      throw error;
    }
    location.hash = "#/";
  }
}
