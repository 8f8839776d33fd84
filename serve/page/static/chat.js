// The messages of a thread as a chat: tool calls folded, tokens as they come, a box to send.
import { url } from "./api.js";
import { brief, button, fill, isScrolledDown, make, scrollDown, usageChip } from "./dom.js";
import { drawMarkdown } from "./markdown.js";
import { MessageStream, isMessage, messagesOf, roleOf, textOf } from "./messages.js";
import { viewPath } from "./thread-steps.js";
import { tree } from "./values.js";

const SHOWN = 200; // the newest messages; older ones on demand
const RESTS = 3; // times as long as it took to draw what is coming

export async function mount(element, context) {
  const chat = new Chat(element, context);
  await chat.load();
  return {
    changed: () => chat.load(),
    event: (event, run) => chat.event(event, run),
    keys: { c: ["write a message", () => chat.input.focus()] },
  };
}

class Chat {
  threadId; begin; loads; api; signal; hasMessages; most; address;

  constructor(element, { threadId, api, signal, begin, hasMessages, questions, address }) {
    Object.assign(this, { threadId, api, signal, begin, hasMessages, address, key: "messages", most: SHOWN, shown: new Map(), loads: 0 });
    this.path = url`threads/${threadId}/state`;
    this.stream = new MessageStream();
    this.list = make("div.messages", { role: "log", "aria-label": "Messages" });
    this.live = make("div.messages.live", { "aria-live": "off" });
    this.input = make("textarea", { rows: 1, placeholder: "Write a message", "aria-label": "Message" });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.sendButton.click();
    });
    this.sendButton = button("Send", () => this.send(), { kind: "main", title: "Enter; Shift+Enter begins a line" });
    this.box = make("div.send", { hidden: !hasMessages }, this.input, this.sendButton);
    element.append(this.list, this.live, questions, this.box);
  }

  async send() {
    const content = this.input.value.trim();
    if (!content) return;
    await this.begin({ input: { [this.key]: [{ role: "user", content }] } });
    this.input.value = "";
    this.input.focus();
  }

  /** Go to the state of the step that wrote a message, to edit it there and to run again from there. */
  async edit(message, last = undefined) {
    const asked = { key: this.key, text: `'${message.id}'`, last }; // as it is written: a text may hold the bare id
    const { steps, next } = await this.api.get(viewPath(this.threadId, "became", asked), this.signal);
    if (steps.length) location.hash = this.address("state", steps[0].c, message.id);
    else if (next) await this.edit(message, next);
    else throw new Error("the step that wrote the message was not found");
  }

  async load() {
    const mine = ++this.loads;
    const state = await this.api.get(this.path, this.signal);
    if (mine !== this.loads) return; // a later look has been begun
    const [key, messages] = messagesOf(state.values);
    this.key = key;
    const used = await this.readUsage(messages);
    if (mine !== this.loads) return;
    const isAtEnd = mine === 1 || isScrolledDown();
    this.draw(messages, used);
    this.stream.settle(messages);
    this.drawLive();
    this.box.hidden = !this.hasMessages && !messages.length;
    if (isAtEnd) scrollDown();
  }

  /** What each of the messages has used, and all of them, with prices. */
  async readUsage(messages) {
    const nothing = { each: [], all: [] };
    if (!messages.some(({ usage, usage_metadata: told }) => usage ?? told)) return nothing;
    return this.api.get(viewPath(this.threadId, "usage", { key: this.key }), this.signal).catch(() => nothing);
  }

  draw(messages, used) {
    const from = Math.max(0, messages.length - this.most);
    const drawn = new Map();
    const elements = messages.slice(from).map((message, place) => {
      const own = used.each[from + place], key = JSON.stringify([message.id ?? from + place, message, own]);
      const element = this.shown.get(key) ?? bubble(message, own, () => this.edit(message));
      drawn.set(key, element);
      return element;
    });
    this.shown = drawn;
    const more = from > 0 && button(`${from} older`, () => { this.most += SHOWN; return this.load(); }, { kind: "small" });
    const nothing = !messages.length && make("p.empty", {}, this.hasMessages ? "No messages yet." : "This graph has no messages. Another tab shows what the thread holds.");
    fill(this.list, more, nothing, elements, messages.length > 1 && usageChip(used.all, "together"));
  }

  event({ event, data }, run) {
    if (event === "error") this.stream.clear();
    if (!/^messages($|\|)/.test(event) || !Array.isArray(data) || !isMessage(data[0])) return;
    this.stream.add(data[0], data[1], run);
    this.isStale = true;
    this.drawing ??= requestAnimationFrame(() => this.drawNow());
  }

  /** Draw what has come. A long message is drawn less often: the reader needs the page, too. */
  drawNow() {
    const began = performance.now(), isAtEnd = isScrolledDown();
    this.isStale = false;
    this.drawLive();
    if (isAtEnd) scrollDown();
    setTimeout(() => {
      this.drawing = this.isStale ? requestAnimationFrame(() => this.drawNow()) : null;
    }, RESTS * (performance.now() - began));
  }

  drawLive() {
    fill(this.live, this.stream.messages().map((message) => bubble(message, [])));
  }
}

/** A message; one that is still coming cannot be edited. */
function bubble(message, used, edit = null) {
  const role = roleOf(message), text = textOf(message.content);
  const calls = message.tool_calls ?? [];
  const change = edit && message.id && button("edit", edit, { kind: "plain edit", title: "Edit the message, and run again from there" });
  const who = [role, message.name].filter(Boolean).join(" · ");
  const body = role === "tool"
    ? make("details.tool", {}, make("summary", {}, make("b", {}, who), " ", brief(text)), tree("", valueOf(text), { isOpen: true }))
    : [make("p.who", {}, who, usageChip(used)), text && make("div.text.markdown", {}, drawMarkdown(text))];
  return make("article", { class: `message from-${role in ROLES ? role : "other"}`, "data-live": !edit }, body, calls.map(callOf), change);
}

const ROLES = { user: 1, assistant: 1, tool: 1, system: 1 };

function callOf(call) {
  const name = call.function?.name ?? call.name ?? "tool";
  const given = valueOf(call.function?.arguments ?? call.args ?? {});
  return make("details.tool", {}, make("summary", {}, make("b", {}, name), ` ${brief(given)}`), tree("", given, { isOpen: true }));
}

/** What a tool was given or has said, read from JSON if it is that. */
function valueOf(given) {
  try { return typeof given === "string" ? JSON.parse(given) : given; } catch { return given; }
}
