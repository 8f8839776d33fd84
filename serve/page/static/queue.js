// What is at work: the runs of this server, or the workers, the queue and the dead letters of a fleet.
import { poll } from "./api.js";
import { brief, chip, fill, make, when } from "./dom.js";

const SECONDS = 3;

export async function open(main, { api, signal }) {
  const body = make("div");
  main.append(make("div.line.top", {}, make("h1", {}, "Queue")), body);
  let seen = "";
  const load = async () => {
    const found = await api.get("page/queue", signal);
    if (JSON.stringify(found) === seen) return;
    seen = JSON.stringify(found);
    fill(body, draw(found));
  };
  await load();
  poll(SECONDS, signal, load);
}

function draw({ fleet, runs, workers, jobs, dead }) {
  if (!fleet) {
    return [make("p.notice", {}, "Runs take place in this server, thread by thread. Nothing is queued elsewhere."), table("Runs", runs, runRow, "No run is under way.")];
  }
  return [workers && table("Workers", workers, workerRow, "No worker is there. Start some with “stategraph work”."),
    table("Jobs", jobs, jobRow, "No job waits or runs."),
    table("Dead letters", dead, jobRow, "No job has been given up. One whose workers die again and again is put here, until “stategraph queue” retries or cancels it.")];
}

function table(title, rows, row, nothing) {
  return make("section.card", {}, make("h2", {}, title, make("span.sub", {}, rows.length ? ` ${rows.length}` : "")),
    rows.length ? make("ul.list.flat", {}, rows.map(row)) : make("p.sub", {}, nothing));
}

const threadLink = (id) => make("a.mono.id", { href: `#/thread/${encodeURIComponent(id)}`, "data-row": id }, id);

const runRow = (run) => make("li.row", {}, threadLink(run.thread_id), make("span", {}, run.graph_id),
  make("span.sub.said", {}, "run ", run.run_id), make("span.right", {}, when(run.created_at), chip(run.status)));

const jobRow = (job) => make("li.row", {}, threadLink(job.thread_id), make("span", {}, job.graph_id),
  make("span.sub.said", {}, job.error ? brief(job.error, 120) : `run ${job.run_id}`, job.attempts > 1 && ` · attempt ${job.attempts}`),
  make("span.right", {}, job.run_at && when(job.run_at), chip(job.status)));

const workerRow = (worker) => make("li.row", {}, make("span.mono.id", {}, worker.name), make("span", {}, worker.graph),
  make("span.sub.said", {}, worker.running === 1 ? "1 job" : `${worker.running} jobs`), make("span.right", {}, chip(worker.leaving ? "leaving" : worker.running ? "running" : "idle")));
