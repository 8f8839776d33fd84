// The steps of a thread as far as they were looked at, by their places on the line to its newest
// checkpoint, or to another one.
const PIECE = 100; // steps that are asked for at once
const MOST = 500; // steps that the server tells at once
const CALM = 60; // milliseconds without a move of the list before missing steps are asked for

/** The address of one of the views of a thread (serve/views.py). */
export function viewPath(threadId, view, asked = {}) {
  const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== undefined && value !== ""));
  return `page/threads/${encodeURIComponent(threadId)}/${view}${query.size ? `?${query}` : ""}`;
}

export class ThreadSteps {
  /**
   * @param tip the checkpoint to which the line leads; "" for the newest, whichever that is
   * @param nested tell of the tasks of nested graphs, too
   * @param piece so many steps are read at first
   */
  constructor(api, threadId, signal, { tip = "", nested = false, piece = PIECE } = {}) {
    Object.assign(this, { api, threadId, signal, tip, piece, nested: nested ? "1" : "", count: 0, open: null, head: "", remarks: [] });
    this.steps = new Map();
    this.asked = new Set();
    this.timer = 0;
    /** Called with the first and last place of steps that have come. */
    this.onSteps = () => {};
  }

  ask(view, asked) { return this.api.get(viewPath(this.threadId, view, asked), this.signal); }

  askSteps(asked) { return this.ask("steps", { tip: this.tip, nested: this.nested, ...asked }); }

  /** Read the newest steps. */
  async load() {
    this.steps.clear();
    this.asked.clear();
    this.take(await this.askSteps({ count: this.piece }));
  }

  /** Read what is new; true if something is different. */
  async refresh() {
    const before = this.count && this.steps.get(this.count - 1)?.c;
    const seen = JSON.stringify([this.head, this.count, this.open]);
    const found = await this.askSteps({ first: Math.max(this.count - 1, 0), count: MOST });
    if (this.count && found.steps[0]?.c !== before) await this.load(); // another branch is the newest now
    else this.take(found);
    return seen !== JSON.stringify([this.head, this.count, this.open]);
  }

  take(found) {
    Object.assign(this, { count: found.count, open: found.open, head: found.head, remarks: found.remarks });
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
    for (const [place, step] of this.steps) if (step.c === at) return place;
    try {
      return (await this.ask("find", { tip: this.tip, at })).place;
    } catch (error) {
      if (error.status === 404) return -1;
      throw error;
    }
  }

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
