// Drawings of a graph and of a timeline react to what is chosen: a node fades what is not about it,
// a step lights the nodes that ran in it, a run marks how each node stands.

/** Whether a node is another one, or lies inside its graph. */
export const isWithin = (id, outer) => id === outer || id.startsWith(`${outer}:`);

/** Fade all that is not about a node; null for none. In a graph what holds the node stays, too. */
export function fadeOthers(parts, node, inGraph) {
  for (const part of parts) {
    const id = part.dataset.node;
    const kept = node === null || isWithin(id, node) || (inGraph(part) && isWithin(node, id));
    part.classList.toggle("faded", !kept);
  }
}

/** Light the nodes that ran. */
export function lightNodes(parts, ran) {
  const ids = new Set(ran);
  for (const part of parts) part.classList.toggle("ran", ids.has(part.dataset.node));
}

/** Light the column of a step in a timeline; -1 for none. */
export function lightColumns(columns, place) {
  for (const column of columns) column.classList.toggle("on", place >= +column.dataset.step && place <= +column.dataset.last);
}

/** Let the nodes of a graph be chosen by mouse and keys. */
export function makeChoosable(picture, choose) {
  picture.addEventListener("click", (event) => {
    const part = event.target.closest("[data-node]");
    if (part) choose(part.dataset.node, event);
  });
  picture.addEventListener("keydown", (event) => {
    const part = event.target.closest("[data-node]");
    if (!part || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    choose(part.dataset.node, event);
  });
  for (const part of picture.querySelectorAll(".node, .cluster")) {
    part.setAttribute("tabindex", "0");
    part.setAttribute("role", "button");
    part.setAttribute("aria-label", `show only the steps of ${part.dataset.node.replaceAll(":", " \u203a ")}`);
  }
}
