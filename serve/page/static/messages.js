// Messages by their shape: dicts with `role`, and those of LangChain with `type`; and their pieces.

const ROLES = { human: "user", ai: "assistant", humanmessagechunk: "user", aimessagechunk: "assistant", function: "tool", toolmessagechunk: "tool" };

export const isMessage = (value) =>
  value !== null && typeof value === "object" && "content" in value && typeof (value.role ?? value.type) === "string";

/** Who speaks: "user", "assistant", "tool", "system", or what the message says. */
export function roleOf(message) {
  const said = String(message.role ?? message.type ?? "").toLowerCase();
  return ROLES[said] ?? said;
}

/** The text of a message's content, which may be a list of parts. */
export function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return content == null ? "" : JSON.stringify(content);
  return content.map((part) => (typeof part === "string" ? part : part?.text ?? `[${part?.type ?? "part"}]`)).join("");
}

/** The key of a state that holds messages, and the messages. */
export function messagesOf(values) {
  const isList = (value) => Array.isArray(value) && value.length > 0 && value.every(isMessage);
  if (values === null || typeof values !== "object") return ["messages", []];
  const found = isList(values.messages) ? "messages" : Object.keys(values).find((key) => isList(values[key]));
  return found === undefined ? ["messages", []] : [found, values[found]];
}

/** Puts the pieces of messages together, until the state holds the whole. */
export class MessageStream {
  constructor() { this.growing = new Map(); }

  /** A piece of a message, or a whole one. */
  add(piece, metadata = {}, run = {}) {
    const id = piece.id ?? `${run.run_id} ${metadata.langgraph_step} ${metadata.langgraph_node} ${metadata.langgraph_checkpoint_ns ?? ""}`;
    const before = this.growing.get(id);
    // Dicts with a `role` come piece by piece under one id, though the server adds a `type` to them.
    const isWhole = piece.role === undefined && piece.type !== undefined && !/chunk$/i.test(piece.type);
    if (!before || isWhole) {
      this.growing.set(id, { ...piece, content: textOf(piece.content) });
      return;
    }
    before.content += textOf(piece.content);
    if (piece.tool_calls?.length) before.tool_calls = piece.tool_calls;
  }

  /** Forget those that are in the state now. */
  settle(messages) {
    const known = new Set(messages.map((message) => message.id));
    const texts = new Set(messages.map((message) => textOf(message.content)));
    for (const [id, message] of this.growing) {
      if (known.has(message.id) || texts.has(message.content)) this.growing.delete(id);
    }
  }

  clear() { this.growing.clear(); }

  messages() { return [...this.growing.values()].filter((message) => message.content || message.tool_calls?.length); }
}
