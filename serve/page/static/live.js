// Follows a thread: how it stands, and the events of the run that is under way.
import { ApiError, pause, url } from "./api.js";

const SECONDS = 2; // between two looks at a thread on which nothing runs
// Streams of these modes are read from their beginning; others may be as large as all states together.
const SMALL = new Set(["updates", "messages", "messages-tuple", "custom", "tasks"]);

export class ThreadWatch {
  signal; api; threadId; onThread; onSteps; onEvent;

  /**
   * @param onThread called with the thread's record when it has changed, and with null when it is gone
   * @param onEvent called with each event of a run, and with the run
   * @param onSteps called when there may be new steps, at most twice a second
   */
  constructor(api, threadId, signal, { onThread, onEvent, onSteps }) {
    Object.assign(this, { api, threadId, signal, onThread, onEvent, onSteps });
    this.seen = "";
    this.wake = () => {};
    this.following = null;
    this.joined = { run: "", last: null }; // the last event that was seen, of which run
    document.addEventListener("visibilitychange", () => this.wake(), { signal });
  }

  /** Look at once, because something was just begun. */
  look() { this.wake(); }

  async run() {
    while (!this.signal.aborted) {
      try {
        const isBusy = document.hidden && this.seen ? false : await this.readThread();
        if (isBusy && await this.followRun()) continue;
        await this.rest(isBusy ? 0.3 : SECONDS);
      } catch (error) {
        if (error.name === "AbortError" || this.signal.aborted) return;
        if (!(error instanceof ApiError)) throw error;
        await this.rest(SECONDS);
      }
    }
  }

  async readThread() {
    let thread = null;
    try {
      thread = await this.api.get(url`page/threads/${this.threadId}`, this.signal);
    } catch (error) {
      if (error.status !== 404) throw error;
    }
    const seen = JSON.stringify(thread);
    if (seen !== this.seen) {
      this.seen = seen;
      this.onThread(thread);
      this.onSteps();
    }
    return thread?.status === "busy";
  }

  /** Pass on the events of the run that is under way, until it ends; false if there is none. */
  async followRun() {
    const runs = await this.api.get(url`threads/${this.threadId}/runs?limit=20`, this.signal);
    const open = runs.filter((run) => run.status === "running" || run.status === "pending");
    const run = open.find((each) => each.status === "running") ?? open.at(-1);
    if (!run) return false;
    const path = url`threads/${this.threadId}/runs/${run.run_id}/stream`;
    if (this.joined.run !== run.run_id) this.joined = { run: run.run_id, last: firstEvent(run) };
    this.following = run;
    try {
      for await (const event of this.api.events(path, { last: this.joined.last, signal: whileShown(this.signal) })) {
        if (event.id !== undefined) this.joined.last = event.id;
        this.onEvent(event, run);
        if (!event.event.startsWith("messages")) this.tellSteps();
      }
    } catch (error) {
      if (error.name !== "AbortError" || this.signal.aborted) throw error;
      return false; // nobody looks: the stream is joined again when somebody does
    } finally {
      this.following = null;
    }
    this.onSteps();
    return true;
  }

  /** There is something new: said at once, or when half a second is over since it was said last. */
  tellSteps() {
    if (this.telling) return;
    const wait = Math.max(0, (this.told ?? 0) + 500 - Date.now());
    this.telling = setTimeout(() => {
      this.telling = null;
      this.told = Date.now();
      if (!this.signal.aborted) this.onSteps();
    }, wait);
  }

  async rest(seconds) {
    const end = new AbortController();
    const stop = () => end.abort();
    this.wake = stop;
    this.signal.addEventListener("abort", stop, { once: true });
    await pause(seconds, end.signal).catch(() => {});
    this.signal.removeEventListener("abort", stop);
    this.wake = () => {};
  }
}

/** From where on a run is read: a stream of states may be as large as all of them, so not from its beginning. */
function firstEvent(run) {
  const modes = [run.kwargs?.stream_mode ?? "values"].flat();
  return modes.every((mode) => SMALL.has(mode)) ? "-1" : null;
}

/** Ends when a signal does, or when the page is hidden: browsers have six connections for all tabs of a server. */
function whileShown(signal) {
  const end = new AbortController();
  const look = () => { if (document.hidden || signal.aborted) end.abort(); };
  document.addEventListener("visibilitychange", look, { signal: end.signal });
  signal.addEventListener("abort", look, { signal: end.signal });
  look();
  return end.signal;
}
