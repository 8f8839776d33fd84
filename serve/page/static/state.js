// The state of a thread, now or at a checkpoint: as a tree, edited as JSON, gone on from, forked.
import { url } from "./api.js";
import { attempt, brief, button, fill, make, say, when } from "./dom.js";
import { NEWEST } from "./branches.js";
import { messagesOf } from "./messages.js";
import { namesOfNodes } from "./start.js";
import { tree } from "./values.js";

export async function mount(element, context) {
  const tab = new StateTab(element, context);
  await tab.load();
  tab.editMessage(context.path[1]);
  return {
    changed: () => tab.load(),
    moved: (path) => tab.moveTo(path[0] ?? null).then(() => tab.editMessage(path[1])),
    keys: { e: ["edit the state", () => attempt(() => tab.edit({}))] },
  };
}

class StateTab {
  api; signal; address; thread; begin;

  constructor(element, { threadId, api, signal, path, address, begin, thread }) {
    Object.assign(this, { api, signal, address, begin, thread, checkpoint: path[0] ?? null, seen: "" });
    this.base = url`threads/${threadId}`;
    this.head = make("div.line.state-head");
    this.values = make("section.card.tree", { "aria-label": "Values" });
    this.editor = make("section.card.editor", { hidden: true, "aria-label": "Edit the state" });
    element.append(this.head, this.editor, this.values);
  }

  moveTo(checkpoint) {
    this.checkpoint = checkpoint;
    this.editor.hidden = true;
    return this.load();
  }

  async load() {
    const at = this.checkpoint;
    const end = at === null ? "" : url`/${at}`;
    const state = await this.api.get(`${this.base}/state${end}`, this.signal);
    const seen = JSON.stringify(state);
    if (this.checkpoint !== at || seen === this.seen) return;
    this.seen = seen;
    this.state = state;
    this.draw();
  }

  draw() {
    const { state, checkpoint } = this;
    const step = state.metadata?.step;
    const isPast = checkpoint !== null;
    const title = isPast ? `State at step ${step ?? "?"}` : "State now";
    fill(this.head,
      make("h2", {}, title),
      make("span.sub", {}, step !== undefined && !isPast && `step ${step} · `, when(state.created_at),
        state.next?.length > 0 && ` · next: ${state.next.join(", ")}`),
      make("span.push"),
      isPast && make("a.button", { href: this.address("state") }, "Now"),
      state.checkpoint && button("Edit", () => this.edit({}), { title: "e" }),
      isPast && state.next?.length > 0 && button("Fork from here", () => this.fork(), { kind: "main", title: "Run again from this step, on a branch of its own" }));
    const values = state.values;
    const rows = values !== null && typeof values === "object" && !Array.isArray(values) ? Object.entries(values) : [["", values]];
    const shown = rows.filter(([, value]) => value !== undefined && value !== null || rows.length > 1);
    fill(this.values, shown.length ? shown.map(([key, value]) => this.row(key, value)) : make("p.empty", {}, "The state is empty."));
  }

  row(key, value) {
    const change = key !== "" && this.state.checkpoint &&
      button("edit", () => this.edit({ [key]: value }), { kind: "plain small", title: `Edit ${brief(key)}` });
    return make("div.state-row", {}, tree(key, value, { isOpen: JSON.stringify(value)?.length < 600 }), change);
  }

  /** Edit a message of the state, which its id selects. */
  editMessage(id) {
    const [key, messages] = messagesOf(this.state.values), message = id && messages.find((each) => each.id === id);
    if (message) attempt(() => this.edit({ [key]: [message] }));
  }

  // -- edit --------------------------------------------------------------------------------------------------

  async edit(values) {
    if (!this.state?.checkpoint) return;
    const text = make("textarea.code", { spellcheck: "false", "aria-label": "Update as JSON", value: JSON.stringify(values, null, 2) });
    const node = make("select", { "aria-label": "As node" }, make("option", { value: "" }, "as the node that ran last"));
    const act = (goesOn) => () => this.save(text, node.value, goesOn);
    this.editor.hidden = false;
    fill(this.editor,
      make("h2", {}, this.checkpoint === null ? "Edit the state" : "Edit the state of this step, on a branch of its own"),
      make("p.sub", {}, "An update as a node would return it: what is not named stays, reducers add. ",
        make("code", {}, '{"key": {"__overwrite__": value}}'), " replaces what a reducer holds."),
      text,
      make("div.line", {}, node, button("Save and continue", act(true), { kind: "main" }), button("Save", act(false)),
        button("Close", () => { this.editor.hidden = true; })));
    text.focus();
    const { assistant_id: assistant, graph_id: graph } = this.thread.metadata;
    for (const name of graph ? await namesOfNodes(this.api, assistant ?? graph, this.signal) : []) node.append(make("option", { value: name }, `as ${name}`));
  }

  async save(text, node, goesOn) {
    let values;
    try {
      values = JSON.parse(text.value);
    } catch (error) {
      text.focus();
      throw new Error(`the update must be JSON: ${error.message}`, { cause: error });
    }
    const body = { values };
    if (node) body.as_node = node;
    if (this.checkpoint !== null) body.checkpoint_id = this.checkpoint;
    const old = goesOn && await this.findOld();
    await this.api.post(`${this.base}/state`, body);
    say("The state is saved.");
    this.editor.hidden = true;
    if (goesOn) await this.begin({ input: null });
    await this.showNow(old);
  }

  async fork() {
    const old = await this.findOld();
    await this.begin({ input: null, checkpoint_id: this.checkpoint });
    await this.showNow(old);
  }

  /** The newest checkpoint, before a branch begins at the step that is shown. */
  async findOld() {
    return this.checkpoint !== null && (await this.api.get(`${this.base}/state`, this.signal)).checkpoint?.checkpoint_id;
  }

  /** Show what has become of it; `old` beside the new branch. */
  async showNow(old) {
    if (this.checkpoint === null) await this.load();
    else location.hash = old ? this.address("branches", old, NEWEST) : this.address("state");
  }
}
