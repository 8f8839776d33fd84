// The steps of a report: shown by pages, filtered, opened, and marked in the graph and the timeline.
// Data comes as JSON from the page itself. Texts are set as text; only `d`, the changes, is HTML, escaped when made.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const steps = data.steps, PAGE = 50;
  const byId = (id) => document.getElementById(id);
  const list = byId("steps"), search = byId("search"), filter = byId("filter");
  let node = null, page = 0, shown = [], open = -1;

  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  // -- which steps, and which page of them ------------------------------------------------------------------

  const within = (id, outer) => id === outer || id.startsWith(outer + ":");
  const plain = (html) => (html || "").replace(/<[^>]*>/g, " ")
    .replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&quot;/g, '"').replace(/&#x27;/g, "'").replace(/&amp;/g, "&");

  function choose() {
    const words = search.value.trim().toLowerCase();
    shown = [];
    steps.forEach((step, place) => {
      if (node !== null && !(step.w || []).some((id) => within(id, node))) return;
      if (words && !(step.n + " " + step.h + " " + plain(step.d)).toLowerCase().includes(words)) return;
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
    const many = (count) => count.toLocaleString("en") + (count === 1 ? " step" : " steps");
    byId("count").textContent = shown.length === steps.length ? many(steps.length)
      : shown.length.toLocaleString("en") + " of " + many(steps.length);
    byId("page").textContent = "page " + (page + 1) + " of " + pages;
    for (const id of ["newer", "older", "page"]) byId(id).hidden = pages === 1;
    byId("older").disabled = page === 0;
    byId("newer").disabled = page === pages - 1;
    mark();
  }

  // -- one step -----------------------------------------------------------------------------------------------

  function row(place) {
    const step = steps[place], item = make("li"), head = make("button", "head"), name = make("span", "h", step.h || "nothing ran");
    item.dataset.place = place;
    head.setAttribute("aria-expanded", "false");
    if (step.s) name.append(" ", make("span", "chip " + (step.s === "handled" ? "paused" : step.s), step.l || step.s));
    const keys = Object.keys(step.v || {}).filter(Boolean).concat(step.x || []);
    if (keys.length) name.append(make("small", "", keys.slice(0, 6).join(", ") + (keys.length > 6 ? ", …" : "")));
    head.append(make("span", "n", step.n), name);
    if (step.f) head.append(make("span", "f", step.f + (step.f === 1 ? " branch" : " branches")));
    if (step.t) head.append(make("span", "t", step.t));
    head.onclick = () => toggle(place);
    item.append(head);
    if (place === open) expand(item, step, place);
    return item;
  }

  function expand(item, step, place) {
    const body = make("div", "body"), changes = make("div", "diff");
    item.classList.add("on");
    item.firstChild.setAttribute("aria-expanded", "true");
    changes.innerHTML = step.d || "<p><i>the state did not change</i></p>";
    body.append(make("h3", "", "Changes"), changes);
    const who = Object.entries(step.b || {});
    if (who.length) body.append(make("p", "sub", who.map(([key, names]) => names + " wrote " + key).join(" · ")));
    if (step.k) body.append(make("h3", "", "Tasks"), table(step.k));
    body.append(state(place));
    if (step.f) body.append(make("p", "sub", step.f + (step.f === 1 ? " other branch leaves" : " other branches leave") + " here: see the end of the page."));
    const facts = [step.c ? "checkpoint " + step.c : "no checkpoint yet", step.a ? new Date(step.a).toLocaleString() : "", step.m || ""];
    body.append(make("p", "chk", facts.filter(Boolean).join(" · ")));
    item.append(body);
  }

  function table(rows) {
    const found = make("table", "tasks"), head = found.createTHead().insertRow();
    for (const title of ["task", "", "took", "input", "result"]) head.append(make("th", "", title));
    const body = found.createTBody();
    for (const [name, standing, ...texts] of rows) {
      const line = body.insertRow();
      line.insertCell().textContent = name;
      line.insertCell().append(make("span", standing, standing));
      for (const text of texts) line.insertCell().textContent = text;
      if (standing === "failed") line.className = "bad";
    }
    return found;
  }

  function state(place) {
    const whole = make("details", "state"), values = new Map();
    for (const step of steps.slice(0, place + 1)) {
      for (const key of step.x || []) values.delete(key);
      for (const [key, number] of Object.entries(step.v || {})) values.set(key, number);
    }
    whole.append(make("summary", "", "State after this step (" + values.size + (values.size === 1 ? " key)" : " keys)")));
    whole.ontoggle = () => {
      if (whole.childElementCount > 1) return;
      for (const [key, number] of values) whole.append(value(key, data.values[number], key in (steps[place].v || {})));
    };
    return whole;
  }

  function value(key, text, fresh) {
    const name = make("b", "", key || "value");
    if (text.length <= 110 && !text.includes("\n")) {
      const line = make("p", fresh ? "new" : "");
      line.append(name, text);
      return line;
    }
    const big = make("details", fresh ? "new" : ""), summary = make("summary");
    summary.append(name, text.replace(/\s+/g, " ").slice(0, 90) + "…");
    big.append(summary, make("pre", "", text));
    return big;
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
    } catch (refused) { /* some browsers keep files from it */ }
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
  const bands = [...document.querySelectorAll("#time .step")];

  function light() {
    for (const part of pictured) {
      const id = part.dataset.node, kept = node === null || within(id, node) || (within(node, id) && part.closest("#graph"));
      part.classList.toggle("faded", !kept);
    }
  }

  function mark() {
    const ran = new Set(open < 0 ? [] : steps[open].w || []);
    for (const part of document.querySelectorAll("#graph [data-node]")) part.classList.toggle("ran", ran.has(part.dataset.node));
    for (const band of bands) band.classList.toggle("on", open >= +band.dataset.step && open <= +band.dataset.last);
  }

  function pick(id) {
    const known = steps.some((step) => (step.w || []).some((ran) => within(ran, id)));
    node = node === id || !known ? null : id;
    choose();
  }

  for (const picture of document.querySelectorAll("#graph, #time")) {
    picture.addEventListener("click", (event) => {
      const part = event.target.closest("[data-node]"), band = event.target.closest("[data-step]");
      if (picture.id === "time" && band) go(+band.dataset.step);
      else if (part) pick(part.dataset.node);
    });
    picture.addEventListener("keydown", (event) => {
      const part = event.target.closest("[data-node]");
      if (part && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); pick(part.dataset.node); }
    });
  }
  for (const part of document.querySelectorAll("#graph .node, #graph .cluster")) {
    part.setAttribute("tabindex", "0");
    part.setAttribute("role", "button");
    part.setAttribute("aria-label", "show only the steps of " + part.dataset.node.replaceAll(":", " \u203a "));
  }

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
})();
