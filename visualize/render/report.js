// The steps of a report: shown by pages, filtered, opened, and marked in the graph and the timeline.
// Data comes as JSON from the page itself. Texts are set as text.
import { countOf, make } from "../components/elements.js";
import { fadeOthers, isWithin, lightColumns, lightNodes, makeChoosable } from "../components/picture.js";
import { drawChanges, drawFacts, drawHead, drawWriters, isOpen, wordsOf } from "../components/step-view.js";
import { drawTasks } from "../components/task-table.js";
import { drawState, drawValue } from "../components/value-view.js";

const data = JSON.parse(document.getElementById("data").textContent);
const steps = data.steps, PAGE = 50;
/** @type {(id: string) => any} */
const byId = (id) => document.getElementById(id);
const list = byId("steps"), search = byId("search"), filter = byId("filter");
let node = null, page = 0, shown = [], open = -1;

// -- which steps, and which page of them ------------------------------------------------------------------

function choose() {
  const words = search.value.trim().toLowerCase();
  shown = [];
  steps.forEach((step, place) => {
    if (node !== null && !(step.w || []).some((id) => isWithin(id, node))) return;
    if (words && !(step.n + " " + step.h + " " + wordsOf(step.d)).toLowerCase().includes(words)) return;
    shown.push(place);
  });
  page = 0;
  filter.hidden = node === null;
  filter.textContent = node === null ? "" : "only " + node.replaceAll(":", " \u203a ") + " ✕";
  light();
  draw();
}

function draw() {
  const pages = Math.max(1, Math.ceil(shown.length / PAGE));
  page = Math.min(Math.max(page, 0), pages - 1);
  list.replaceChildren(...shown.slice(page * PAGE, page * PAGE + PAGE).map(row));
  const all = countOf(steps.length, "step");
  byId("count").textContent = shown.length === steps.length ? all : `${shown.length.toLocaleString("en")} of ${all}`;
  byId("page").textContent = "page " + (page + 1) + " of " + pages;
  for (const id of ["newer", "older", "page"]) byId(id).hidden = pages === 1;
  byId("older").disabled = page === 0;
  byId("newer").disabled = page === pages - 1;
  mark();
}

// -- one step -----------------------------------------------------------------------------------------------

const keysOf = (step) => Object.keys(step.v || {}).filter(Boolean).concat(step.x || []);

function row(place) {
  const step = steps[place];
  const head = drawHead(step, keysOf(step), { "aria-expanded": "false", onclick: () => toggle(place) });
  const item = make("li", { "data-place": place }, head);
  if (place === open) expand(item, step, place);
  return item;
}

function expand(item, step, place) {
  item.classList.add("on");
  item.firstChild.setAttribute("aria-expanded", "true");
  item.append(make("div.body", {},
    make("h3", {}, "Changes"), drawChanges(step.d, isOpen(step)), drawWriters(step.b),
    step.k && [make("h3", {}, "Tasks"), drawTasks(step.k)],
    state(place),
    step.f && make("p.sub", {}, `${step.f} other ${step.f === 1 ? "branch leaves" : "branches leave"} here: see the end of the page.`),
    drawFacts(step)));
}

function state(place) {
  const values = new Map(), fresh = steps[place].v || {};
  for (const step of steps.slice(0, place + 1)) {
    for (const key of step.x || []) values.delete(key);
    for (const [key, number] of Object.entries(step.v || {})) values.set(key, number);
  }
  return drawState(values.size, () =>
    [...values].map(([key, number]) => drawValue(key, data.values[number], { fresh: key in fresh })), isOpen(steps[place]));
}

function toggle(place) {
  const same = open === place;
  for (const item of list.querySelectorAll("li.on")) {
    item.classList.remove("on");
    item.firstChild.setAttribute("aria-expanded", "false");
    item.lastChild.remove();
  }
  open = same ? -1 : place;
  const item = list.querySelector(`li[data-place="${open}"]`);
  if (item) expand(item, steps[open], open);
  try {
    history.replaceState(null, "", open < 0 ? location.pathname : "#step-" + steps[open].n);
  } catch { /* some browsers keep files from it */ }
  mark();
}

function go(place) {
  if (!shown.includes(place)) { node = null; search.value = ""; choose(); }
  page = Math.floor(shown.indexOf(place) / PAGE);
  if (open === place) open = -1;
  draw();
  toggle(place);
  const item = list.querySelector(`li[data-place="${place}"]`);
  item.firstChild.focus({ preventScroll: true });
  item.scrollIntoView({ block: "nearest" });
}

// -- the pictures --------------------------------------------------------------------------------------------

const pictured = [...document.querySelectorAll("#graph [data-node], #time [data-node]")];
const graphParts = pictured.filter((part) => part.closest("#graph"));
const columns = [...document.querySelectorAll("#time .step")];

function light() {
  fadeOthers(pictured, node, (part) => part.closest("#graph"));
}

function mark() {
  lightNodes(graphParts, open < 0 ? [] : steps[open].w || []);
  lightColumns(columns, open);
}

function pick(id) {
  const known = steps.some((step) => (step.w || []).some((ran) => isWithin(ran, id)));
  node = node === id || !known ? null : id;
  choose();
}

makeChoosable(byId("graph"), pick);
makeChoosable(byId("time"), (id, event) => {
  const column = event.target.closest("[data-step]");
  if (column) go(+column.dataset.step);
  else pick(id);
});
byId("time").addEventListener("click", (event) => {
  const column = event.target.closest("[data-step]");
  if (column && !event.target.closest("[data-node]")) go(+column.dataset.step);
});

// -- keys and buttons ----------------------------------------------------------------------------------------

byId("older").onclick = () => { page -= 1; draw(); };
byId("newer").onclick = () => { page += 1; draw(); };
filter.onclick = () => { node = null; choose(); };
search.oninput = choose;
for (const link of document.querySelectorAll("[data-go]")) link.onclick = () => go(+link.dataset.go);

function move(by) {
  const heads = [...list.querySelectorAll(".head")], at = heads.indexOf(document.activeElement);
  const next = heads[at < 0 ? (by > 0 ? 0 : heads.length - 1) : at + by];
  if (next) next.focus();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target === search;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") { node = null; search.value = ""; choose(); search.blur(); }
  else if (typing) return;
  else if (event.key === "/") { event.preventDefault(); search.focus(); }
  else if (event.key === "j" || (event.key === "ArrowDown" && list.contains(event.target))) { event.preventDefault(); move(1); }
  else if (event.key === "k" || (event.key === "ArrowUp" && list.contains(event.target))) { event.preventDefault(); move(-1); }
  else if (event.key === "[" && !byId("older").disabled) byId("older").click();
  else if (event.key === "]" && !byId("newer").disabled) byId("newer").click();
});

choose();
const wanted = steps.findIndex((step) => location.hash === "#step-" + step.n);
if (wanted >= 0) go(wanted);
