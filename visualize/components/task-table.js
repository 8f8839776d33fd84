// The tasks of a step: who, how it stands, how long it took, what it got, what became of it.
import { make } from "./elements.js";

const TASK_COLUMNS = ["task", "", "took", "input", "result"];

/** A table of tasks. Rows come from `list_task_rows`: [name, state, times, input, result, note]. */
export function drawTasks(rows) {
  return make("table.tasks", {},
    make("thead", {}, make("tr", {}, TASK_COLUMNS.map((title) => make("th", {}, title)))),
    make("tbody", {}, rows.map((row) => drawTask(row))));
}

/** The row of one task. */
function drawTask([name, state, ...texts]) {
  return make("tr", { class: state === "failed" ? "bad" : "" },
    make("td", {}, name), make("td", {}, make("span", { class: state }, state)),
    texts.map((text) => make("td", {}, text)));
}
