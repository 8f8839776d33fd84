// What is at work: the runs of this server, or the workers, the queue and the dead letters of a fleet; and shared budgets.
import { poll } from "./api.js";
import { brief, button, chip, fill, make, say, when } from "./dom.js";
import { countOf } from "./elements.js";

const SECONDS = 3;

export async function open(main, { api, signal }) {
  const body = make("div");
  main.append(make("div.line.top", {}, make("h1", {}, "Queue")), body);
  let seen = "";
  const load = async () => {
    const found = await api.get("page/queue", signal);
    if (JSON.stringify(found) === seen) return;
    seen = JSON.stringify(found);
    const at = document.activeElement?.closest?.("[data-row]")?.dataset.row;
    fill(body, draw(found, deadRow), found.budgets.length > 0 && table("Budgets", found.budgets, budgetRow));
    if (at) [...body.querySelectorAll("[data-row]")].find((each) => each.dataset.row === at)?.focus();
  };
  const act = async (method, job, end, done) => {
    const asked = new URLSearchParams({ thread_id: job.thread_id });
    await api.ask(method, `page/dead-letters/${encodeURIComponent(job.run_id)}${end}?${asked}`);
    say(done);
    await load();
  };
  /** A job that was given up, why, and what can be done about it. */
  const deadRow = (job) => make("li.dead-letter", {},
    make("div.row", {}, threadLink(job.thread_id), make("span.graph", {}, job.graph_id),
      make("span.sub.said", {}, `run ${job.run_id}`),
      make("span.right", {}, make("span.sub", {}, countOf(job.attempts, "attempt")), chip(job.status))),
    job.error && make("p.notice.bad", {}, job.error),
    make("div.line", {},
      button("Retry", () => act("POST", job, "/retry", "The job is tried again."),
        { title: "Let workers try again, as if none had died of it" }),
      button("Drop", () => confirm(`Give up the run ${job.run_id} of ${job.thread_id} for good?`) &&
        act("DELETE", job, "", "The job is dropped."), { kind: "danger", title: "End the run; the thread's next run begins" })));
  await load();
  poll(SECONDS, signal, load);
}

function draw({ fleet, runs, workers, jobs, dead }, deadRow) {
  if (!fleet) {
    return [make("p.notice", {}, "Runs take place in this server, thread by thread. Nothing is queued elsewhere."), table("Runs", runs, runRow, "No run is under way.")];
  }
  return [
    // What needs somebody stands first.
    dead.length > 0 && table("Dead letters", dead, deadRow),
    workers && table("Workers", workers, workerRow, "No worker is there. Start some with “stategraph work”."),
    table("Jobs", jobs, jobRow, "No job waits or runs."),
    dead.length === 0 && table("Dead letters", dead, deadRow, "No job has been given up. One whose workers die again and again is put here, to be retried or dropped."),
  ];
}

function table(title, rows, row, nothing) {
  return make("section.card", {}, make("h2", {}, title, make("span.sub", {}, rows.length ? ` ${rows.length}` : "")),
    rows.length ? make("ul.list.flat", {}, rows.map(row)) : make("p.sub", {}, nothing));
}

const threadLink = (id) => make("a.mono.id", { href: `#/thread/${encodeURIComponent(id)}`, "data-row": id }, id);

const runRow = (run) => make("li.row", {}, threadLink(run.thread_id), make("span.graph", {}, run.graph_id),
  make("span.sub.said", {}, "run ", run.run_id), make("span.right", {}, when(run.created_at), chip(run.status)));

const jobRow = (job) => make("li.row", {}, threadLink(job.thread_id), make("span.graph", {}, job.graph_id),
  make("span.sub.said", {}, job.error ? brief(job.error, 120) : `run ${job.run_id}`, job.attempts > 1 && ` · attempt ${job.attempts}`),
  make("span.right", {}, job.run_at && when(job.run_at), chip(job.status)));

const budgetRow = ({ graph, per, key, unit, spent, limit }) => make("li.row", {}, make("span.id", {}, `${per} ${key}`), make("span.graph", {}, graph),
  make("span.right", {}, make("span.sub", {}, `${spent.toLocaleString("en")} of ${limit.toLocaleString("en")} ${unit}`), spent >= limit && chip("empty")));

const workerRow = (worker) => make("li.row", {}, make("span.mono.id", {}, worker.name), make("span.graph", {}, worker.graph),
  make("span.sub.said", {}, worker.running === 1 ? "1 job" : `${worker.running} jobs`), make("span.right", {}, chip(worker.leaving ? "leaving" : worker.running ? "running" : "idle")));
