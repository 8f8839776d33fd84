// A session of the official AG-UI client with a server, whose address is the first argument.
// Prints one line of JSON: what each step has brought.
import { HttpAgent } from "@ag-ui/client";

const url = process.argv[2];
const found = {};
const said = (agent) => agent.messages.map((message) => [message.role, message.content ?? null]);

async function run(agent, text, options = {}, onEvent = () => {}) {
  if (text) agent.addMessage({ id: `user-${agent.messages.length}`, role: "user", content: text });
  const kinds = [];
  const subscriber = {
    onEvent({ event }) {
      kinds.push(event.type);
      onEvent(event);
    },
  };
  await agent.runAgent(options, subscriber).catch((error) => kinds.push(`${error.message}`));
  return kinds;
}

const agent = new HttpAgent({ url: `${url}/ag-ui/desk`, threadId: "chat" });
found.chat = await run(agent, "weather");
found.said = said(agent);
found.calls = agent.messages.flatMap((message) => message.toolCalls ?? []).map((call) => call.function);
found.state = agent.state;
await run(agent, "hi");
found.again = said(agent).length;

await run(agent, "approve");
found.asked = agent.pendingInterrupts.map(({ id, metadata, ...rest }) => rest);
const [question] = agent.pendingInterrupts;
await run(agent, null, {
  resume: [{ interruptId: question.id, status: "resolved", payload: { approved: true } }],
});
found.answered = said(agent).at(-1);
found.open = agent.pendingInterrupts.length;

const tools = [{ name: "locate", description: "where the user is", parameters: { type: "object" } }];
await run(agent, "locate", { tools });
const toolCallId = agent.messages.at(-1).toolCalls[0].id;
agent.addMessage({ id: "place", role: "tool", toolCallId, content: "Rome" });
await run(agent, null, { tools });
found.located = said(agent).at(-1);
found.last = agent.state;

const failing = new HttpAgent({ url: `${url}/ag-ui/desk` });
found.failed = (await run(failing, "fail")).slice(-2);

const leaving = new HttpAgent({ url: `${url}/ag-ui/desk`, threadId: "left" });
found.left = await run(leaving, "wait", {}, (event) => {
  if (event.type === "CUSTOM") leaving.abortRun();
});
found.back = (await run(leaving, "hi"), said(leaving).at(-1));

const missing = new HttpAgent({ url: `${url}/ag-ui/none` });
found.missing = await run(missing, "hi");

const held = await (await fetch(`${url}/threads/chat/state`)).json();
found.stored = { ids: held.values.messages.map((message) => message.id), log: held.values.log };
found.held = agent.messages.map((message) => message.id);
console.log(JSON.stringify(found));
