// To come.
import { make } from "./dom.js";
export function open(main) { main.append(make("h1", {}, "queue")); }
