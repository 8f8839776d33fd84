// The server's HTTP API, as its official clients speak it: JSON requests, and streams of events that
// are joined again where they broke off. All addresses are relative to the page, so that an app
// mounted below a path works.

/** A request that the server has refused, or that did not reach it (`status` 0). */
export class ApiError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** An address: url`threads/${id}/runs`, in which each value is one part, whatever it holds. */
export const url = (parts, ...values) => String.raw({ raw: parts }, ...values.map(encodeURIComponent));

const TOKEN = "stategraph-token";
const RETRY_SECONDS = [0.5, 1, 2, 4, 8, 15];
// The server says every 15 seconds that it lives: after so long without a word the connection is dead.
const SILENCE_SECONDS = 45;

export class Api {
  /** @param {(isThere: boolean) => void} onReach told whether the server could be reached */
  constructor(base = new URL(".", document.baseURI), onReach = () => {}) {
    this.base = base;
    this.onReach = onReach;
    try { this.token = sessionStorage.getItem(TOKEN); } catch { /* not allowed: nobody has logged in */ }
  }

  /** The header that says who asks: of those who have logged in with a token. */
  get credentials() { return this.token ? { Authorization: `Bearer ${this.token}` } : {}; }

  /** Keep a token, without what no header can have, such as spaces that were copied with it. */
  logIn(token) {
    this.token = token.replace(/[^!-~]/g, "");
    try { sessionStorage.setItem(TOKEN, this.token); } catch { /* not allowed: until the page is loaded again */ }
  }

  get(path, signal) { return this.ask("GET", path, undefined, signal); }
  post(path, body = {}, signal) { return this.ask("POST", path, body, signal); }
  patch(path, body) { return this.ask("PATCH", path, body); }
  delete(path) { return this.ask("DELETE", path); }

  /** The answer to a request, read from JSON. Throws ApiError; AbortError if `signal` says so. */
  async ask(method, path, body, signal) {
    const response = await this.fetch(method, path, body, {}, signal);
    if (response.status === 204) return null;
    return response.json();
  }

  /** @returns {Promise<Response>} */
  async fetch(method, path, body, headers, signal) {
    /** @type {RequestInit & {headers: object}} */
    const init = { method, headers: { ...this.credentials, ...headers }, signal, credentials: "same-origin" };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
      init.headers["Content-Type"] = "application/json";
    }
    let response;
    try {
      response = await fetch(new URL(path.replace(/^\//, ""), this.base), init);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      this.onReach(false);
      throw new ApiError(0, "the server cannot be reached");
    }
    this.onReach(true);
    if (response.ok) return response;
    let detail = `${response.status} ${response.statusText}`;
    try {
      detail = (await response.json()).detail ?? detail;
    } catch { /* no JSON: the status says it */ }
    if (response.status === 401) detail = "you are not logged in here: log in with a token, or as your site says, and load the page again";
    throw new ApiError(response.status, detail);
  }

  /**
   * A drawing, as an SVG element of this document. It is parsed as XML by the browser's loader, in
   * which no script runs; texts are never turned into markup here.
   */
  svg(path) {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open("GET", new URL(path.replace(/^\//, ""), this.base));
      for (const [name, value] of Object.entries(this.credentials)) request.setRequestHeader(name, value);
      request.responseType = "document";
      request.overrideMimeType("image/svg+xml");
      request.onload = () => {
        const root = request.responseXML?.documentElement;
        if (request.status === 200 && root?.localName === "svg") resolve(document.importNode(root, true));
        else reject(new ApiError(request.status, `there is no drawing (${request.status})`));
      };
      request.onerror = () => reject(new ApiError(0, "the server cannot be reached"));
      request.send();
    });
  }

  /**
   * The events of a stream, `{id, event, data}`, until it ends. When the connection breaks, it is
   * joined again behind the last event seen. `last` "-1" begins with the first that is kept, null
   * with the next.
   * @param {string} path
   * @param {{last?: string | null, signal?: AbortSignal}} options
   */
  async *events(path, { last = "-1", signal } = {}) {
    let failures = 0;
    while (true) {
      try {
        const seen = last === null ? {} : { "Last-Event-ID": last };
        const response = await this.fetch("GET", path, undefined, seen, signal);
        for await (const event of readEvents(response.body)) {
          if (event.id !== undefined) last = event.id;
          failures = 0;
          yield event;
        }
        return;
      } catch (error) {
        const isGone = error.name === "AbortError" || (error instanceof ApiError && error.status !== 0);
        if (isGone) throw error;
        this.onReach(false);
        await pause(RETRY_SECONDS[Math.min(failures++, RETRY_SECONDS.length - 1)], signal);
      }
    }
  }
}

/** Server-sent events from a body, with their data read from JSON. */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await withinSilence(reader.read());
      if (done) return;
      rest += value;
      const frames = rest.split(/\r?\n\r?\n/);
      rest = frames.pop();
      for (const frame of frames) {
        const event = readFrame(frame);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function withinSilence(reading) {
  const end = new AbortController();
  const silence = pause(SILENCE_SECONDS, end.signal).then(() => { throw new Error("the stream is silent"); });
  silence.catch(() => {});
  try {
    return await Promise.race([reading, silence]);
  } finally {
    end.abort();
  }
}

function readFrame(frame) {
  const event = { event: "message" }, data = [];
  for (const line of frame.split(/\r?\n/)) {
    const [, name, text] = /^(\w*): ?(.*)$/s.exec(line) ?? [];
    if (name === "data") data.push(text);
    else if (name === "event" || name === "id") event[name] = text;
  }
  if (!data.length) return null; // a heartbeat
  event.data = JSON.parse(data.join("\n"));
  return event;
}

/**
 * So many seconds; ends early, with an AbortError, if the signal says so.
 * @returns {Promise<void>}
 */
export function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => { clearTimeout(timer); reject(new DOMException("stopped", "AbortError")); };
    const timer = setTimeout(() => { signal?.removeEventListener("abort", stop); resolve(); }, seconds * 1000);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}

/**
 * Do something again and again while the page is looked at, until `signal` ends it. Failures are
 * passed over: `onReach` has said so, and the next round tries again.
 */
export async function poll(seconds, signal, action) {
  while (!signal.aborted) {
    try {
      if (!document.hidden) await action();
      await pause(seconds, signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      await pause(seconds, signal).catch(() => {});
    }
  }
}
