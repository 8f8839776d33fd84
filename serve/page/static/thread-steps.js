// The steps of a thread as far as they were looked at, by their places on the line to its newest
// checkpoint, or to another one.
import { ApiError, pause, url } from "./api.js";

const PIECE = 100; // steps that are asked for at once
const MOST = 500; // steps that the server tells at once
const CALM = 60; // milliseconds without a move of the list before missing steps are asked for

const SHARE = 3; // a view rests so much longer than it takes to be read

/**
 * The action, to be called whenever it may be due: never twice at a time, and once more after a call
 * that came while it was under way. What takes the server long is done less often. A server that
 * does not answer is passed over: the next call tries again.
 */
export function oneAtATime(signal, action) {
  let isBusy = false, isDue = false;
  return async () => {
    isDue = true;
    if (isBusy) return;
    isBusy = true;
    try {
      while (isDue) {
        isDue = false;
        const began = performance.now();
        await action();
        await pause(Math.min(SHARE * (performance.now() - began) / 1000, 1), signal);
      }
    } catch (error) {
      if (error.name !== "AbortError" && !(error instanceof ApiError)) throw error;
    } finally {
      isBusy = false;
    }
  };
}

/** The address of one of the views of a thread (serve/page/views.py). */
export function viewPath(threadId, view, asked = {}) {
  const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== undefined && value !== ""));
  return `${url`page/threads/${threadId}/${view}`}${query.size ? `?${query}` : ""}`;
}

export class ThreadSteps {
  head; open; count; runs; isWhole; tip; remarks; api; threadId; signal; nested; piece; newest;

  /**
   * @param tip the checkpoint to which the line leads; "" for the newest, whichever that is
   * @param nested tell of the tasks of nested graphs, too
   * @param piece so many steps are read at first
   * @param newest only the newest are ever looked at: a server that knows no others is not asked for them
   */
  constructor(api, threadId, signal, { tip = "", nested = false, piece = PIECE, newest = false } = {}) {
    Object.assign(this, { api, threadId, signal, tip, piece, newest, nested: nested ? "1" : "", isWhole: false, count: 0, runs: [], open: null, head: "", remarks: [] });
    this.steps = new Map();
    this.asked = new Set();
    this.timer = 0;
    /** Called with the first and last place of steps that have come. */
    this.onSteps = (_first, _last) => {};
  }

  ask(view, asked) { return this.api.get(viewPath(this.threadId, view, asked), this.signal); }

  askSteps(asked) { return this.ask("steps", { tip: this.tip, nested: this.nested, ...asked }); }

  /**
   * Read the newest steps. Of a long thread that the server has not read yet it tells no others at
   * first, and how many they are is an estimate: `isWhole` is false then, until `refresh`.
   */
  async load(newest = !this.tip) {
    const found = await this.askSteps({ count: this.piece, newest: newest ? "1" : "" });
    this.steps.clear();
    this.asked.clear();
    this.take(found);
  }

  /** Read what is new; true if something is different. */
  async refresh() {
    const seen = JSON.stringify([this.head, this.count, this.open, this.isWhole]);
    if (this.newest) await this.load();
    else if (!this.isWhole) await this.load(false);
    else await this.readNew();
    return seen !== JSON.stringify([this.head, this.count, this.open, this.isWhole]);
  }

  async readNew() {
    const last = this.count && this.steps.get(this.count - 1)?.c;
    const found = await this.askSteps({ first: Math.max(this.count - 1, 0), count: MOST });
    if (this.count && found.steps[0]?.c !== last) await this.load(false); // another branch is the newest now
    else this.take(found);
  }

  take(found) {
    Object.assign(this, { count: found.count, open: found.open, head: found.head, remarks: found.remarks, runs: found.runs, isWhole: found.whole });
    found.steps.forEach((step, at) => this.steps.set(found.first + at, step));
  }

  /** How many rows a list of them has: the step that has made no checkpoint yet is one, too. */
  get rows() { return this.count + (this.open ? 1 : 0); }

  /** A step; undefined if it was not read yet. */
  at(place) { return place === this.count ? this.open ?? undefined : this.steps.get(place); }

  /** What the server calls the step at a place. */
  nameOf(place) { return place === this.count ? "open" : this.steps.get(place)?.c; }

  /** These places are looked at: ask for what is missing, once the list stands still. */
  want(first, last) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(first, Math.min(last, this.count - 1)), CALM);
  }

  async fetch(first, last) {
    if (!this.isWhole) return; // what is known of the places is an estimate
    for (let from = first - (first % PIECE); from <= last; from += PIECE) {
      const to = Math.min(from + PIECE, this.count);
      if (this.asked.has(from) || this.isKnown(from, to)) continue;
      this.asked.add(from);
      try {
        const found = await this.askSteps({ first: from, count: PIECE });
        found.steps.forEach((step, at) => this.steps.set(found.first + at, step));
        this.onSteps(from, to - 1);
      } catch (error) {
        if (error.name === "AbortError") return;
      } finally {
        this.asked.delete(from);
      }
    }
  }

  isKnown(from, to) {
    for (let place = from; place < to; place += 1) if (!this.steps.has(place)) return false;
    return true;
  }

  /** The place of the step that made a checkpoint; -1 if it is not on this line. */
  async find(at) {
    if (at === "open") return this.open ? this.count : this.count - 1;
    const known = this.placeOf(at);
    if (known >= 0) return known;
    if (!this.isWhole) await this.load(false);
    try {
      return (await this.ask("find", { tip: this.tip, at })).place;
    } catch (error) {
      if (error.status === 404) return -1;
      throw error;
    }
  }

  /** The place of a step that was read; -1 if it was not. */
  placeOf(at) {
    for (const [place, step] of this.steps) if (step.c === at) return place;
    return at === "open" && this.open ? this.count : -1;
  }

  /** The number of the run to which the step at a place belongs, from 1; 0 where none is known. */
  runOf(place) { return this.runs.findLastIndex((first) => first <= place) + 1; }

  /** The place of the first step with at least this number. */
  async findNumber(number) { return (await this.ask("find", { tip: this.tip, number })).place; }
}

/** How many tasks stand how, of a step or of several: `{done: 3, failed: 1}`. */
export function countStates(step) {
  const found = {};
  for (const counts of Object.values(step.u ?? {})) {
    for (const [state, count] of Object.entries(counts)) found[state] = (found[state] ?? 0) + count;
  }
  return found;
}
