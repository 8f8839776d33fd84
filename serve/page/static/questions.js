// The open questions of a thread, each with a form for its answer.
import { button, fill, make, when } from "./dom.js";
import { countOf } from "./elements.js";
import { makeForm } from "./form.js";
import { tree } from "./values.js";

/** The open questions in a thread's state: `{id, node, value, schema}`. */
export function questionsOf(state) {
  return (state.tasks ?? []).flatMap((task) => (task.interrupts ?? []).map((each) =>
    ({ id: each.id, node: task.name, value: each.value, schema: each.response_schema })));
}

/**
 * Cards for the questions of a thread. `show(state)` brings them up to date and keeps what was
 * typed; `answer({id: value, ...})` is called with the answers.
 */
export class Questions {
  constructor(answer) {
    this.answer = answer;
    this.cards = new Map();
    this.element = make("details.questions", { open: true, hidden: true });
  }

  show(state) {
    const open = questionsOf(state);
    const before = this.cards;
    this.cards = new Map(open.map((question) => [question.id, before.get(question.id) ?? this.card(question, state.created_at)]));
    if ([...this.cards.keys()].join() !== [...before.keys()].join()) this.draw();
  }

  draw() {
    const cards = [...this.cards.values()];
    // Yes and No are said by a button each, and not together with others.
    const all = cards.length > 1 && cards.every((card) => card.read) &&
      button(`Answer all ${cards.length}`, () => this.send([...this.cards]), { kind: "main" });
    this.element.hidden = !cards.length;
    fill(this.element, make("summary", {}, countOf(cards.length, "open question")), cards.map((card) => card.element), all);
  }

  card({ id, node, value, schema }, since) {
    const frame = (...parts) => make("article.card.asks", { "aria-label": `Question of ${node}` },
      make("p.sub", {}, make("b", {}, node), " asks · ", when(since)), words(value), parts);
    if (isYesOrNo(schema)) {
      const say = (label, answer, kind) => button(label, () => this.send([[id, { read: () => answer }]]), { kind });
      return { element: frame(make("div.line", {}, say("Yes", true, "main"), say("No", false, ""))) };
    }
    const form = makeForm(schema);
    const send = button("Answer", () => this.send([[id, this.cards.get(id)]]), { kind: "main" });
    const element = frame(form.element, send);
    element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send.click();
    });
    return { element, read: form.read };
  }

  /** Read all forms first: nothing is sent while one of them does not fit. */
  async send(cards) {
    const answers = Object.fromEntries(cards.map(([id, card]) => [id, card.read() ?? null]));
    await this.answer(answers);
  }
}

/** Whether a schema is that of a truth value without a usual one. */
const isYesOrNo = (schema) => schema?.type === "boolean" && schema.default === undefined;

/** What is asked: a text as it is, an object with its main words first. */
function words(value) {
  if (typeof value === "string") return make("p.asked", {}, value);
  const main = ["question", "message", "text", "description"].find((key) => typeof value?.[key] === "string");
  if (!main) return tree("", value, { isOpen: true });
  const { [main]: text, ...rest } = value;
  return [make("p.asked", {}, text), ...Object.entries(rest).map(([key, each]) => tree(key, each))];
}
