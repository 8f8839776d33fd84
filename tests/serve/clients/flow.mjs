// A session of the official JavaScript client with a server, whose address is the first argument.
// Prints one line of JSON: what each step has brought.
import { Client } from "@langchain/langgraph-sdk";

const client = new Client({ apiUrl: process.argv[2] });
const found = {};

async function read(stream) {
  const parts = [];
  for await (const part of stream) parts.push([part.event, part.data]);
  return parts.filter(([event]) => event !== "metadata");
}

const { thread_id: thread } = await client.threads.create({ metadata: { user: "ann" } });
found.waited = await client.runs.wait(thread, "flow", { input: { log: ["x"] } });
found.streamed = await read(
  client.runs.stream(thread, "flow", { input: { log: ["y"] }, streamMode: ["updates", "custom"] }),
);
const steps = await client.threads.getHistory(thread, { limit: 2 });
found.history = steps.map((step) => step.next);
await client.threads.updateState(thread, { values: { log: ["edited"] }, asNode: "a" });
found.edited = (await client.threads.getState(thread)).next;
found.goneOn = (await client.runs.wait(thread, "flow", { input: null })).log.at(-1);

const { thread_id: other } = await client.threads.create();
const asked = await client.runs.wait(other, "flow", { input: { topic: "ask" } });
found.asked = asked.__interrupt__[0].value;
found.status = (await client.threads.get(other)).status;
found.resumed = (await client.runs.wait(other, "flow", { command: { resume: "Ann" } })).log;

const run = await client.runs.create(thread, "flow", { input: { log: [] }, streamMode: "updates" });
found.joined = await read(client.runs.joinStream(thread, run.run_id, { lastEventId: "-1" }));
found.failed = await read(
  client.runs.stream(null, "flow", { input: { topic: "fail" }, streamMode: "updates" }),
);
found.searched = (await client.threads.search({ metadata: { user: "ann" } })).length;
found.assistants = (await client.assistants.search()).map((each) => each.name);
await client.store.putItem(["notes"], "n", { text: "hi" });
found.stored = (await client.store.getItem(["notes"], "n")).value;
await client.threads.delete(other);
found.gone = await client.threads.get(other).catch((error) => error.status);

console.log(JSON.stringify(found));
