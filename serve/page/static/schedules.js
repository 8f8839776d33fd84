// Schedules: runs that begin at the times of a cron expression. Made, paused, deleted.
import { poll } from "./api.js";
import { attempt, brief, button, fill, make, sentence, when } from "./dom.js";
import { GraphInput } from "./start.js";

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
    const path = `runs/crons/${encodeURIComponent(id)}`;
    const act = (action) => async () => { await action(); await this.load(); };
    return make("li.row.schedule", { tabindex: 0, "data-row": id },
      make("code", {}, schedule), make("span", {}, this.graphs.get(cron.assistant_id) ?? "", make("span.sub", {}, ` ${timezone ?? "UTC"}`)),
      make("span.sub.said", {}, thread ? make("a", { href: `#/thread/${encodeURIComponent(thread)}` }, thread) : "a thread for each run",
        payload?.input != null && ` · ${brief(payload.input, 70)}`),
      make("span.right", {},
        enabled ? make("span.sub", {}, "next ", next ? when(next) : "never") : make("span.chip", {}, "paused"),
        button(enabled ? "Pause" : "Resume", act(() => this.api.patch(path, { enabled: !enabled }))),
        button("Delete", act(() => confirm(`Delete the schedule ${schedule}?`) && this.api.delete(path)), { kind: "danger" })));
  }

  async make() {
    if (this.form.childElementCount) return;
    const graphs = new GraphInput(this.api);
    const box = make("section.card", { "aria-label": "New schedule" });
    fill(this.form, box);
    await graphs.load();
    const field = (label, properties) => {
      const input = make("input", { autocomplete: "off", ...properties });
      return [input, make("div.field", {}, make("label", {}, label, input))];
    };
    const [when_, whenField] = field("cron expression", { placeholder: "0 9 * * MON-FRI" });
    const [zone, zoneField] = field("time zone", { value: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC" });
    const [thread, threadField] = field("thread id", { placeholder: "empty: a thread of its own for each run" });
    const wrong = make("p.notice.bad", { role: "alert", hidden: true });
    const fail = (text) => { wrong.textContent = sentence(text); wrong.hidden = false; };
    const save = button("Save", async () => {
      wrong.hidden = true;
      const path = thread.value.trim() ? `threads/${encodeURIComponent(thread.value.trim())}/runs/crons` : "runs/crons";
      await this.api.post(path, { ...graphs.read(), schedule: when_.value.trim(), timezone: zone.value.trim() });
      fill(this.form);
      await this.load();
    }, { kind: "main", onFail: fail });
    fill(box, make("h2", {}, "New schedule"), make("div.columns", {}, whenField, zoneField, threadField), graphs.element, wrong,
      make("div.line", {}, save, button("Close", () => fill(this.form))));
    when_.focus();
  }
}
