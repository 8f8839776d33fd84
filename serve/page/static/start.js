// The form that starts a thread: which graph, and its input.
import { attempt, button, fill, make, sentence } from "./dom.js";
import { makeForm } from "./form.js";

/** What a run that is begun here sends: steps, tokens and what nodes say, and no states. */
export const MODES = ["updates", "messages-tuple", "custom"];

/** Show the form above the list. */
export function openStart(main, api) {
  const open = main.querySelector("section.start");
  if (open) { open.querySelector("select")?.focus(); return; }
  const box = make("section.card.start", { "aria-label": "New thread" });
  main.querySelector(".top").after(box);
  fillStart(box, api).catch((error) => fill(box, make("p.notice.bad", { role: "alert" }, sentence(error))));
}

async function fillStart(box, api) {
  const graphs = new GraphInput(api);
  await graphs.load();
  const id = make("input", { placeholder: "made up if left empty", autocomplete: "off", "aria-label": "Thread id" });
  const wrong = make("p.notice.bad", { role: "alert", hidden: true });
  const fail = (text) => { wrong.textContent = text; wrong.hidden = false; };
  const begin = button("Start", async () => {
    wrong.hidden = true;
    const run = graphs.read();
    const thread = await api.post("threads", id.value.trim() ? { thread_id: id.value.trim() } : {});
    await api.post(`threads/${encodeURIComponent(thread.thread_id)}/runs`, { ...run, stream_mode: MODES });
    location.hash = `#/thread/${encodeURIComponent(thread.thread_id)}`;
  }, { kind: "main", onFail: fail });
  fill(box, make("h2", {}, "New thread"), graphs.element,
    make("div.field", {}, make("label", {}, "thread id", make("span.sub", {}, " optional"), id)),
    wrong, make("div.line", {}, begin, button("Close", () => box.remove())));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) begin.click();
  });
  box.querySelector("select, textarea, input")?.focus();
}

/** Show or hide the form that runs a thread's graph with another input. `begin` gets the run's body. */
export async function openRun(box, api, assistant, begin) {
  if (box.childElementCount) { fill(box); return; }
  const graphs = new GraphInput(api, assistant);
  await graphs.load();
  const run = button("Run", async () => {
    await begin(graphs.read());
    fill(box);
  }, { kind: "main" });
  fill(box, make("section.card.start", { "aria-label": "Run" }, make("h2", {}, "Run with another input"), graphs.element,
    make("div.line", {}, run, button("Close", () => fill(box)))));
  box.querySelector("select, textarea, input")?.focus();
}

/** The nodes of an assistant's graph. */
export async function namesOfNodes(api, assistant, signal = undefined) {
  const { nodes } = await api.get(`assistants/${encodeURIComponent(assistant)}/graph`, signal);
  return nodes.map(({ id }) => id).filter((id) => id !== "__start__" && id !== "__end__");
}

/** Which assistant, and forms for the input and the context of its graph, and where it stops. */
export class GraphInput {
  /** @param preferred the assistant that is chosen at first */
  constructor(api, preferred = "") {
    this.api = api;
    this.preferred = preferred;
    this.select = make("select", { "aria-label": "Graph", onchange: () => attempt(() => this.draw()) });
    this.input = make("div.fields");
    this.element = make("div.fields", {}, make("div.field", {}, make("label", {}, "graph", this.select)), this.input);
  }

  /** The body of a run. Throws FieldError where it does not fit. */
  read() {
    const stops = [...this.input.querySelectorAll(".stops input:checked")].map(({ value }) => value);
    return { assistant_id: this.select.value, input: this.form.read(), context: this.context?.read(), interrupt_before: stops.length ? stops : undefined };
  }

  async load() {
    const found = await this.api.post("assistants/search", { limit: 200, sort_by: "name", sort_order: "asc" });
    this.contexts = new Map(found.map(({ assistant_id: id, context }) => [id, context]));
    fill(this.select, found.map(({ assistant_id: id, name, graph_id: graph }) =>
      make("option", { value: id, selected: id === this.preferred }, name === graph || !name ? graph : `${name} (${graph})`)));
    await this.draw();
  }

  async draw() {
    const chosen = this.select.value;
    const [{ input_schema: schema, context_schema: context }, nodes] = await Promise.all([
      this.api.get(`assistants/${encodeURIComponent(chosen)}/schemas`), namesOfNodes(this.api, chosen)]);
    if (chosen !== this.select.value) return; // another was chosen meanwhile
    this.form = makeForm(schema);
    this.context = context?.properties && makeForm({ ...context, default: this.contexts.get(chosen) });
    fill(this.input, this.form.element,
      this.context && make("fieldset", {}, make("legend", {}, "context"), this.context.element),
      make("details.stops", {}, make("summary.sub", {}, "Stop before nodes"),
        nodes.map((value) => make("label", {}, make("input", { type: "checkbox", value }), ` ${value} `))));
  }
}
