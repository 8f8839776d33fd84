// Schedules: runs that begin at the times of a cron expression. Made, paused, deleted.
import { poll, url } from "./api.js";
import { attempt, brief, button, fill, make, when } from "./dom.js";
import { labelled, openForm } from "./start.js";

const SECONDS = 5;
const PAGE = 100;

export async function open(main, { api, signal }) {
  const view = new Schedules(main, api, signal);
  await view.load();
  poll(SECONDS, signal, () => view.load());
  return { keys: { n: ["new schedule", () => attempt(() => view.make())] } };
}

class Schedules {
  graphs; api; signal;

  constructor(main, api, signal) {
    Object.assign(this, { api, signal, seen: "" });
    this.form = make("div");
    this.rows = make("ul.list");
    main.append(
      make("div.line.top", {}, make("h1", {}, "Schedules"), make("span.push"), button("New schedule", () => this.make(), { kind: "main", title: "n" })),
      this.form, this.rows);
  }

  async load() {
    this.graphs ??= await this.names();
    const found = await this.api.post("runs/crons/search", { limit: PAGE }, this.signal);
    const seen = JSON.stringify(found);
    if (seen === this.seen) return;
    this.seen = seen;
    fill(this.rows, found.length ? found.map((cron) => this.row(cron))
      : make("li.empty", {}, "There are no schedules. A schedule starts a run at each time that its cron expression matches."));
  }

  async names() {
    const found = await this.api.post("assistants/search", { limit: 200 }, this.signal);
    return new Map(found.map((each) => [each.assistant_id, each.name || each.graph_id]));
  }

  row(cron) {
    const { cron_id: id, schedule, timezone, enabled, next_run_date: next, thread_id: thread, payload } = cron;
    const path = url`runs/crons/${id}`;
    const act = (action) => async () => { await action(); await this.load(); };
    return make("li.row.schedule", { tabindex: 0, "data-row": id },
      make("code", {}, schedule), make("span", {}, this.graphs.get(cron.assistant_id) ?? "", make("span.sub", {}, ` ${timezone ?? "UTC"}`)),
      make("span.sub.said", {}, thread ? make("a", { href: url`#/thread/${thread}` }, thread) : "a thread for each run",
        payload?.input != null && ` · ${brief(payload.input, 70)}`),
      make("span.right", {},
        enabled ? make("span.sub", {}, "next ", next ? when(next) : "never") : make("span.chip", {}, "paused"),
        button(enabled ? "Pause" : "Resume", act(() => this.api.patch(path, { enabled: !enabled }))),
        button("Delete", act(() => confirm(`Delete the schedule ${schedule}?`) && this.api.delete(path)), { kind: "danger" })));
  }

  make() {
    const [when_, whenField] = labelled("cron expression", { placeholder: "0 9 * * MON-FRI" });
    const [zone, zoneField] = labelled("time zone", { value: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC" });
    const [thread, threadField] = labelled("thread id", { placeholder: "empty: a thread of its own for each run" });
    return openForm(this.form, this.api, "New schedule", [whenField, zoneField, threadField], "Save", async (run) => {
      const path = thread.value.trim() ? url`threads/${thread.value.trim()}/runs/crons` : "runs/crons";
      await this.api.post(path, { ...run, schedule: when_.value.trim(), timezone: zone.value.trim() });
      await this.load();
    });
  }
}
