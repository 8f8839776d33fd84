// To come: see thread.js for what a tab is given.
import { make } from "./dom.js";

export function mount(element) {
  element.append(make("p.empty", {}, "timeline"));
}
