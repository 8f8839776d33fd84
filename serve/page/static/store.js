// The store: its namespaces, and the items of the one that is chosen. The address names that: store/users/ann.
import { button, fill, make, when } from "./dom.js";
import { countOf } from "./elements.js";
import { tree } from "./values.js";

const MOST = 1000; // namespaces that are listed
const PAGE = 100; // items that are read at once

export async function open(main, { api, path, signal }) {
  const items = make("ul.list"), foot = make("div.line.foot");
  const { namespaces } = await api.post("store/namespaces", { limit: MOST }, signal);
  const address = (each) => `#/${["store", ...each].map(encodeURIComponent).join("/")}`;
  main.append(make("div.line.top", {}, make("h1", {}, "Store"), make("span.sub", {}, countOf(namespaces.length, "namespace"))),
    make("nav.line.top", { "aria-label": "Namespaces" }, namespaces.map((each) =>
      make("a.button.mono", { href: address(each), "data-row": true, "aria-current": each.join() === path.join() && "page" }, each.join(" / ")))),
    items, foot);
  const found = [];
  const load = async () => {
    const more = (await api.post("store/items/search", { namespace_prefix: path, limit: PAGE, offset: found.length }, signal)).items;
    found.push(...more);
    fill(items, found.length ? found.map((each) => draw(each)) : make("li.empty", {}, "The store is empty. Nodes write to it with runtime.store."));
    fill(foot, more.length === PAGE && button("More", load));
  };
  const draw = ({ namespace, key, value, updated_at: at }) => make("li.item", {},
    make("div.line", {}, make("b.mono", {}, key), make("span.sub", {}, namespace.join(" / "), " · ", when(at)), make("span.push"),
      button("Delete", async () => {
        if (!confirm(`Delete the item ${key} of ${namespace.join(" / ")}?`)) return;
        await api.ask("DELETE", "store/items", { namespace, key });
        found.length = 0;
        await load();
      }, { kind: "danger small" })),
    tree("", value, { isOpen: true }));
  await load();
}
