// The form that starts a thread: which graph, and its input.
import { url } from "./api.js";
import { attempt, button, fill, make, sentence } from "./dom.js";
import { makeForm } from "./form.js";

/** What a run that is begun here sends: steps, tokens and what nodes say, and no states. */
export const MODES = ["updates", "messages-tuple", "custom"];

/** A text field with its label, as [field, element]. */
export function labelled(label, properties) {
  const input = make("input", { autocomplete: "off", ...properties });
  return [input, make("div.field", {}, make("label", {}, label, input))];
}

/**
 * Show the form of a run of a graph; if it is open already, go to it. `act` gets the body of the run.
 * @param {Element[]} fields stand beside the input
 */
export async function openForm(box, api, title, fields, label, act, preferred = "") {
  if (!box.childElementCount) {
    const graphs = new GraphInput(api, preferred), close = () => fill(box);
    const wrong = make("p.notice.bad", { role: "alert", hidden: true });
    const fail = (text) => { wrong.textContent = text; wrong.hidden = false; };
    const begin = button(label, async () => {
      wrong.hidden = true;
      await act(graphs.read());
      close();
    }, { kind: "main", onFail: fail });
    const card = make("section.card.start", { "aria-label": title });
    fill(box, card);
    await graphs.load().catch((error) => fail(sentence(error)));
    fill(card, make("h2", {}, title), graphs.element, make("div.columns", {}, fields), wrong,
      make("div.line", {}, begin, button("Close", close)));
    card.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) begin.click();
    });
  }
  box.querySelector("select, textarea, input")?.focus();
}

/** Show the form of a new thread. */
export function openStart(box, api) {
  const [id, idField] = labelled("thread id", { "aria-label": "Thread id", placeholder: "made up if left empty" });
  return openForm(box, api, "New thread", [idField], "Start", async (run) => {
    const thread = await api.post("threads", id.value.trim() ? { thread_id: id.value.trim() } : {});
    await api.post(url`threads/${thread.thread_id}/runs`, { ...run, stream_mode: MODES });
    location.hash = url`#/thread/${thread.thread_id}`;
  });
}

/** The nodes of an assistant's graph. */
export async function namesOfNodes(api, assistant, signal = undefined) {
  const { nodes } = await api.get(url`assistants/${assistant}/graph`, signal);
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
      this.api.get(url`assistants/${chosen}/schemas`), namesOfNodes(this.api, chosen)]);
    if (chosen !== this.select.value) return; // another was chosen meanwhile
    this.form = makeForm(schema);
    this.context = context?.properties && makeForm({ ...context, default: this.contexts.get(chosen) });
    fill(this.input, this.form.element,
      this.context && make("fieldset", {}, make("legend", {}, "context"), this.context.element),
      make("details.stops", {}, make("summary.sub", {}, "Stop before nodes"),
        nodes.map((value) => make("label", {}, make("input", { type: "checkbox", value }), ` ${value} `))));
  }
}
