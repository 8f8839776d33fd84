// Sessions of the official MCP client with a server, whose address is the first argument.
// Prints one line of JSON: what each step has brought.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const url = process.argv[2];
const found = { asked: [], progress: [] };

async function connect(answers) {
  const capabilities = answers ? { elicitation: {} } : {};
  const client = new Client({ name: "test", version: "1" }, { capabilities });
  if (answers) {
    client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
      found.asked.push([params.message, params.requestedSchema.properties]);
      return { action: "accept", content: answers.shift() };
    });
  }
  await client.connect(new StreamableHTTPClientTransport(new URL(`${url}/mcp`)));
  return client;
}

const call = (client, name, given, options) =>
  client.callTool({ name, arguments: given }, undefined, options);

const client = await connect([{ answer: "Ann" }, { approved: true }]);
found.tools = (await client.listTools()).tools.map((tool) => [tool.name, tool.description]);
found.doubled = (await call(client, "double", { input: 4 })).structuredContent;
const onprogress = ({ progress, message }) => found.progress.push([progress, message]);
found.waited = (await call(client, "flow", { log: ["x"] }, { onprogress })).structuredContent;
found.answered = (await call(client, "flow", { topic: "ask" })).structuredContent;
const messages = [{ role: "user", content: "approve" }];
const approved = (await call(client, "desk", { messages })).structuredContent;
found.approved = approved.messages.map((message) => message.content);

const failed = await call(client, "flow", { topic: "fail" });
found.failed = [failed.isError, failed.content[0].text];
found.missing = await call(client, "none", {}).catch((error) => error.message);

const leaving = new AbortController();
found.left = await call(client, "flow", { topic: "wait" }, {
  signal: leaving.signal,
  onprogress: () => leaving.abort("enough"),
}).catch((error) => `${error.message ?? error}`);
while ((await (await fetch(`${url}/threads/search`, {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ status: "busy" }),
})).json()).length);
await client.close();

const plain = await connect(null);
const asked = (await call(plain, "flow", { topic: "ask" })).structuredContent;
found.question = asked.__interrupt__[0].value;
const answer = { thread_id: asked.thread_id, answer: "Bo" };
found.told = (await call(plain, "answer_question", answer)).structuredContent;
await plain.close();
console.log(JSON.stringify(found));
