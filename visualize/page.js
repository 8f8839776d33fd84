"use strict";
(() => {
  const main = document.getElementById("view"), svg = main.querySelector("svg");
  const whole = svg.viewBox.baseVal, wide = whole.width, high = whole.height;
  let x, y, scale;
  main.classList.add("alive");
  svg.setAttribute("preserveAspectRatio", "xMinYMin meet");
  const show = () => svg.setAttribute("viewBox",
    [x, y, main.clientWidth / scale, main.clientHeight / scale].join(" "));
  const fit = () => {
    scale = Math.min(1.5, main.clientWidth / wide, main.clientHeight / high);
    x = (wide - main.clientWidth / scale) / 2;
    y = (high - main.clientHeight / scale) / 2;
    show();
  };
  const zoom = (by, px = main.clientWidth / 2, py = main.clientHeight / 2) => {
    const next = Math.min(8, Math.max(0.05, scale * by));
    x += px / scale - px / next;
    y += py / scale - py / next;
    scale = next;
    show();
  };
  const place = e => {
    const box = main.getBoundingClientRect();
    return [e.clientX - box.left, e.clientY - box.top];
  };
  const fingers = new Map();
  main.addEventListener("wheel", e => {
    e.preventDefault();
    zoom(Math.exp(-e.deltaY * (e.deltaMode ? 0.05 : 0.0015)), ...place(e));
  }, {passive: false});
  main.addEventListener("pointerdown", e => {
    fingers.set(e.pointerId, place(e));
    main.setPointerCapture(e.pointerId);
  });
  main.addEventListener("pointermove", e => {
    if (!fingers.has(e.pointerId)) return light(e.target);
    const old = fingers.get(e.pointerId), now = place(e);
    const other = [...fingers].filter(([id]) => id !== e.pointerId).map(([, at]) => at)[0];
    fingers.set(e.pointerId, now);
    if (other) {
      const far = at => Math.hypot(at[0] - other[0], at[1] - other[1]) || 1;
      zoom(far(now) / far(old), other[0], other[1]);
    } else {
      x -= (now[0] - old[0]) / scale;
      y -= (now[1] - old[1]) / scale;
      show();
    }
  });
  for (const over of /** @type {const} */ (["pointerup", "pointercancel"]))
    main.addEventListener(over, e => fingers.delete(e.pointerId));
  main.addEventListener("dblclick", fit);
  addEventListener("resize", fit);
  addEventListener("keydown", e => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const step = 60 / scale;
    const keys = {
      "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), "0": fit,
      ArrowLeft: () => { x -= step; show(); }, ArrowRight: () => { x += step; show(); },
      ArrowUp: () => { y -= step; show(); }, ArrowDown: () => { y += step; show(); },
    };
    if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
  });
  document.getElementById("in").onclick = () => zoom(1.25);
  document.getElementById("out").onclick = () => zoom(0.8);
  document.getElementById("fit").onclick = fit;
  const theme = document.getElementById("theme"), root = document.documentElement;
  if (theme) theme.onclick = () => {
    const system = matchMedia("(prefers-color-scheme:dark)").matches ? "dark" : "light";
    const dark = (root.dataset.theme || system) === "dark";
    root.dataset.theme = dark ? "light" : "dark";
  };
  // What is pointed at keeps its colour, with the edges and nodes beside it; the rest fades.
  const edges = [...svg.querySelectorAll(".edge")];
  const light = target => {
    const part = target.closest && target.closest(".node,.edge,.bar,.row");
    svg.classList.toggle("asked", Boolean(part));
    const ends = new Set(part ? [part.dataset.node] : []), lit = new Set([part]);
    if (part) for (const edge of edges)
      if (edge === part || [edge.dataset.source, edge.dataset.target].includes(part.dataset.node)) {
        lit.add(edge);
        ends.add(edge.dataset.source).add(edge.dataset.target);
      }
    for (const one of svg.querySelectorAll(".node,.edge,.bar,.row"))
      one.classList.toggle("lit", lit.has(one) || ends.has(one.dataset.node));
  };
  main.addEventListener("pointerleave", () => light(main));
  for (const node of svg.querySelectorAll(".node")) {
    node.setAttribute("tabindex", "0");
    node.addEventListener("focus", () => light(node));
    node.addEventListener("blur", () => light(main));
  }
  fit();
  if (scale < 1 && svg.querySelector(".bar")) {  // a long timeline begins at its left, in full size
    scale = 1;
    x = 0;
    y = (high - main.clientHeight) / 2;
    show();
  }
})();
