// Calls each public method of the official JavaScript client. Prints one line of JSON: the methods
// that the client has, and what became of each call: "works", or the text of the refusal.
import { Client } from "@langchain/langgraph-sdk";

const client = new Client({ apiUrl: process.argv[2], callerOptions: { maxRetries: 0 } });

async function makeScene() {
  const { thread_id: thread } = await client.threads.create({ metadata: { m: 1 } });
  await client.runs.wait(thread, "flow", { input: { log: ["x"] } });
  const [{ run_id: run }] = await client.runs.list(thread);
  const { checkpoint: at } = await client.threads.getState(thread);
  const { assistant_id: assistant } = await client.assistants.create({ graphId: "flow" });
  const { cron_id: cron } = await client.crons.create("flow", { schedule: "0 7 * * *" });
  await client.store.putItem(["notes"], "k", { a: 1 });
  return { thread, run, at, assistant, cron };
}

async function read(stream) {
  for await (const part of stream) if (part.event === "error") throw new Error(part.data.message);
}

async function begin(stream) {
  for await (const _ of stream) return;
}

const { assistants, threads, runs, crons, store } = client;
const page = { limit: 5, offset: 0 };
const sorted = { ...page, sortBy: "created_at", sortOrder: "asc" };
const body = { input: { log: [] }, metadata: { m: 1 }, config: { tags: ["t"] }, context: {} };
const stops = { interruptBefore: ["b"], interruptAfter: ["b"], durability: "sync" };
const streams = { streamMode: ["values"], streamSubgraphs: true, streamResumable: true };
const run = { ...body, ...stops, multitaskStrategy: "enqueue", ifNotExists: "create" };
const plan = { schedule: "0 7 * * *", timezone: "UTC", enabled: true };

const calls = {
  "assistants.get": (s) => assistants.get(s.assistant),
  "assistants.getGraph": (s) => assistants.getGraph(s.assistant, { xray: true }),
  "assistants.getSchemas": (s) => assistants.getSchemas(s.assistant),
  "assistants.getSubgraphs": (s) => assistants.getSubgraphs(s.assistant, { recurse: true }),
  "assistants.create": () =>
    assistants.create({
      graphId: "flow", config: { tags: ["t"] }, context: { a: 1 }, metadata: { m: 1 },
      assistantId: "a", ifExists: "raise", name: "n", description: "d",
    }),
  "assistants.update": (s) =>
    assistants.update(s.assistant, { graphId: "flow", config: {}, metadata: { m: 2 }, name: "n" }),
  "assistants.delete": (s) => assistants.delete(s.assistant),
  "assistants.search": async () => {
    await assistants.search({ graphId: "flow", metadata: {}, select: ["name"], ...sorted });
    await assistants.search({ includePagination: true });
  },
  "assistants.count": () => assistants.count({ metadata: {}, graphId: "flow" }),
  "assistants.getVersions": (s) => assistants.getVersions(s.assistant, { metadata: {}, ...page }),
  "assistants.setLatest": (s) => assistants.setLatest(s.assistant, 1),
  "threads.get": (s) => threads.get(s.thread),
  "threads.create": () =>
    threads.create({
      metadata: {}, threadId: "t", ifExists: "raise", graphId: "flow",
      supersteps: [{ updates: [{ values: { log: ["x"] }, asNode: "__input__" }] }],
    }),
  "threads.copy": (s) => threads.copy(s.thread),
  "threads.update": (s) => threads.update(s.thread, { metadata: { n: 1 } }),
  "threads.delete": (s) => threads.delete(s.thread),
  "threads.search": (s) =>
    threads.search({ metadata: { m: 1 }, ids: [s.thread], status: "idle", values: {}, ...sorted }),
  "threads.count": () => threads.count({ metadata: { m: 1 }, values: {}, status: "idle" }),
  "threads.getState": async (s) => {
    await threads.getState(s.thread, undefined, { subgraphs: true });
    await threads.getState(s.thread, s.at);
    await threads.getState(s.thread, s.at.checkpoint_id);
  },
  "threads.updateState": (s) =>
    threads.updateState(s.thread, { values: { log: ["y"] }, asNode: "b", checkpoint: s.at }),
  "threads.patchState": (s) => threads.patchState(s.thread, { n: 1 }),
  "threads.getHistory": (s) =>
    threads.getHistory(s.thread, { limit: 1, metadata: {}, checkpoint: s.at }),
  "threads.joinStream": (s) =>
    begin(threads.joinStream(s.thread, { lastEventId: "-1", streamMode: ["run_modes"] })),
  "runs.stream": async (s) => {
    await read(runs.stream(s.thread, "flow", { ...run, ...streams, onDisconnect: "cancel" }));
    await read(runs.stream(null, "flow", { input: { log: [] } }));
  },
  "runs.create": async (s) => {
    await runs.create(s.thread, "flow", { ...run, ...streams, checkpointId: s.at.checkpoint_id });
    await runs.create(s.thread, "flow", { command: { goto: "b" }, afterSeconds: 9 });
  },
  "runs.createBatch": () => runs.createBatch([{ assistantId: "flow" }]),
  "runs.wait": (s) => runs.wait(s.thread, "flow", { ...run, checkpoint: s.at, raiseError: true }),
  "runs.list": (s) => runs.list(s.thread, { status: "success", select: ["run_id"], ...page }),
  "runs.get": (s) => runs.get(s.thread, s.run),
  "runs.cancel": (s) => runs.cancel(s.thread, s.run, true, "interrupt"),
  "runs.join": (s) => runs.join(s.thread, s.run),
  "runs.joinStream": async (s) => {
    await read(runs.joinStream(s.thread, s.run, { lastEventId: "-1", streamMode: "values" }));
    await read(runs.joinStream(null, s.run, { cancelOnDisconnect: true }));
  },
  "runs.delete": (s) => runs.delete(s.thread, s.run),
  "crons.createForThread": (s) =>
    crons.createForThread(s.thread, "flow", { ...plan, ...body, ...stops, ...streams }),
  "crons.create": () =>
    crons.create("flow", { ...plan, ...body, ...stops, ...streams, onRunCompleted: "keep" }),
  "crons.update": (s) => crons.update(s.cron, { ...plan, ...body, endTime: "2090-01-01T00:00:00Z" }),
  "crons.delete": (s) => crons.delete(s.cron),
  "crons.search": () => crons.search({ enabled: true, metadata: {}, select: ["cron_id"], ...sorted }),
  "crons.count": (s) => crons.count({ assistantId: "flow", threadId: s.thread, metadata: {} }),
  "store.putItem": () => store.putItem(["notes"], "k", { a: 2 }, { index: false, ttl: 60 }),
  "store.getItem": () => store.getItem(["notes"], "k", { refreshTtl: true }),
  "store.deleteItem": () => store.deleteItem(["notes"], "k"),
  "store.searchItems": () =>
    store.searchItems(["notes"], { filter: { a: 1 }, refreshTtl: false, ...page }),
  "store.listNamespaces": () =>
    store.listNamespaces({ prefix: ["notes"], suffix: ["notes"], maxDepth: 1, ...page }),

  // What is refused, by parameter.
  "assistants.delete deleteThreads": (s) => assistants.delete(s.assistant, { deleteThreads: true }),
  "threads.create ttl": () => threads.create({ ttl: 5 }),
  "threads.update ttl": (s) => threads.update(s.thread, { ttl: 5 }),
  "runs.create webhook": (s) => runs.create(s.thread, "flow", { webhook: "http://x" }),
  "runs.create streamMode": (s) => runs.create(s.thread, "flow", { streamMode: "nope" }),
};

// What a client shares with the base of all clients is no method of the API.
const base = Object.getPrototypeOf(Object.getPrototypeOf(client.threads));
const methods = Object.entries(client)
  .filter(([name, value]) => value instanceof base.constructor && !name.startsWith("~"))
  .flatMap(([name, value]) =>
    Object.getOwnPropertyNames(Object.getPrototypeOf(value))
      .filter((method) => method !== "constructor")
      .map((method) => `${name}.${method}`),
  );

const results = {};
for (const [name, call] of Object.entries(calls)) {
  const scene = await makeScene();
  try {
    await call(scene);
    results[name] = "works";
  } catch (error) {
    results[name] = `refused: ${error.message}`;
  }
}
console.log(JSON.stringify({ methods, results }));
process.exit(0);
