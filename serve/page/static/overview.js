// What has run lately, what has failed and why, and what is at work: the runs of this server, or the
// workers, the queue and the dead letters of a fleet;
// and shared budgets.
import { poll, url } from "./api.js";
import { brief, button, chip, fill, make, redraw, say, when } from "./dom.js";
import { countOf } from "./elements.js";

const SECONDS = 4;
const SHOWN = 3; // threads of a failure that are named

export async function open(main, { api, signal }) {
  const parts = [make("div"), make("div"), make("div")], seen = [];
  main.append(make("div.line.top", {}, make("h1", {}, "Overview")), ...parts);
  const load = async () => {
    const [recent, queue] = await Promise.all(["overview", "queue"].map((each) => api.get(`page/${each}`, signal)));
    show(0, [recent.minutes, recent.took, queue], () => drawRecent(recent, queue));
    show(1, recent.failures, () => drawFailures(recent.failures, again));
    show(2, queue, () => [draw(queue, deadRow), queue.budgets.length > 0 && table("Budgets", queue.budgets, budgetRow)]);
  };
  /** Draw a part if its data have changed: a button that is being pressed stays where it is. */
  const show = (place, data, drawn) => {
    const text = JSON.stringify(data), part = parts[place];
    if (text === seen[place]) return;
    seen[place] = text;
    redraw(part, () => fill(part, drawn()));
  };
  /** Run what is pending on failed threads once more. */
  const again = async ({ assistant_id: assistant, threads }) => {
    for (const id of threads) {
      await api.post(url`threads/${id}/runs`, { assistant_id: assistant, input: null, multitask_strategy: "reject", stream_mode: ["updates"] });
    }
    say(`${countOf(threads.length, "thread")} tried again.`);
    await load();
  };
  const act = async (method, job, end, done) => {
    const asked = new URLSearchParams({ thread_id: job.thread_id });
    await api.ask(method, `${url`page/dead-letters/${job.run_id}`}${end}?${asked}`);
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

/** The runs that ended lately, minute by minute, and how long the oldest one waits. */
function drawRecent({ minutes, took }, { runs = [], jobs = [] }) {
  const [ended, failed] = [0, 1].map((kind) => minutes.reduce((sum, minute) => sum + minute[kind], 0));
  const most = Math.max(...minutes.map(([count]) => count), 1);
  const waiting = [...runs, ...jobs].filter(({ status }) => status === "pending" || status === "waiting");
  const since = waiting.map((each) => Date.now() - Number(new Date(each.run_at ?? each.created_at)));
  const figure = (name, text) => make("div", {}, make("dt.sub", {}, name), make("dd", {}, text));
  const bars = minutes.map(([count, bad], place) => {
    const parts = [make("i"), make("b")];
    [count - bad, bad].forEach((part, kind) => { parts[kind].style.height = `${(100 * part) / most}%`; });
    return make("span", { title: `${minutes.length - place} min ago: ${countOf(count, "run")}, ${bad} failed` }, parts);
  });
  return make("section.card.recent", { "aria-label": "Recent runs" },
    make("dl", {}, figure("runs per minute", (ended / minutes.length).toFixed(ended < minutes.length ? 2 : 0)), figure("failed", ended ? `${Math.round((100 * failed) / ended)} %` : "—"),
      figure("took, half of them (p50)", lasting(took[0])), figure("took, 99 % (p99)", lasting(took[1])),
      figure("oldest waits", since.length ? lasting(Math.max(...since, 0) / 1000) : "—")),
    make("div.bars", { role: "img", "aria-label": `${countOf(ended, "run")} in the last ${countOf(minutes.length, "minute")}, ${failed} failed` }, bars));
}

function lasting(seconds) {
  if (seconds === undefined) return "—";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 100 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds / 60)} min`;
}

/** Failed threads by their errors. */
function drawFailures(failures, again) {
  if (!failures.length) return null;
  const row = (failure) => make("li.dead-letter", {},
    make("div.row", {}, make("b", {}, failure.error), make("span.graph", {}, failure.graph_id),
      make("span.sub.said", {}, failure.threads.slice(0, SHOWN).map((id) => [threadLink(id), " "]), failure.threads.length > SHOWN && "…"),
      make("span.right", {}, countOf(failure.threads.length, "thread"), button(failure.threads.length > 1 ? "Retry all" : "Retry", () => again(failure), { title: "Run what has failed once more, on each of these threads" }))),
    make("p.notice.bad", {}, failure.message));
  return table("Failures", failures, row);
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

function table(title, rows, row, nothing = "") {
  return make("section.card", {}, make("h2", {}, title, make("span.sub", {}, rows.length ? ` ${rows.length}` : "")),
    rows.length ? make("ul.list.flat", {}, rows.map(row)) : make("p.sub", {}, nothing));
}

const threadLink = (id) => make("a.mono.id", { href: url`#/thread/${id}`, "data-row": id }, id);

const runRow = (run) => make("li.row", {}, threadLink(run.thread_id), make("span.graph", {}, run.graph_id),
  make("span.sub.said", {}, "run ", run.run_id), make("span.right", {}, when(run.created_at), chip(run.status)));

const jobRow = (job) => make("li.row", {}, threadLink(job.thread_id), make("span.graph", {}, job.graph_id),
  make("span.sub.said", {}, job.error ? brief(job.error, 120) : `run ${job.run_id}`, job.attempts > 1 && ` · attempt ${job.attempts}`),
  make("span.right", {}, job.run_at && when(job.run_at), chip(job.status)));

const budgetRow = ({ graph, per, key, unit, spent, limit }) => make("li.row", {}, make("span.id", {}, `${per} ${key}`), make("span.graph", {}, graph),
  make("span.right", {}, make("span.sub", {}, `${spent.toLocaleString("en")} of ${limit.toLocaleString("en")} ${unit}`), spent >= limit && chip("empty")));

const workerRow = (worker) => make("li.row", {}, make("span.mono.id", {}, worker.name), make("span.graph", {}, worker.graph),
  make("span.sub.said", {}, worker.running === 1 ? "1 job" : `${worker.running} jobs`), make("span.right", {}, chip(worker.leaving ? "leaving" : worker.running ? "running" : "idle")));
