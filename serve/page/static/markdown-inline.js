// The words of a text in Markdown, as nodes: code, bold, italic, struck out, links.
//
// One pass from left to right. What is open at a place is a stack of few frames, so a text that
// opens and never closes costs no more than another. Links lead to http and https only.
import { make } from "./elements.js";

const DEEPEST = 12; // marks and brackets that are open at once; more are text
const LONGEST_LINK = 2_000; // characters of an address
const ELEMENTS = { "*": "em", _: "em", "**": "strong", __: "strong", "~~": "del" };
const MOST_FAILURES = 100; // parentheses that were no address; then no more are read
const SPECIAL = /[\\`*_~[\]!<]|https?:\/\//g;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const BARE = /https?:\/\/[^\s<>`]+/y;

/** The nodes of a text. */
export function drawInline(text) {
  return new Inline(text).read();
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.frames = [{ mark: "", nodes: [] }];
    this.failures = 0;
    this.runs = null; // of backticks: the places of those of a length
  }

  read() {
    const { text } = this;
    while (this.at < text.length) {
      SPECIAL.lastIndex = this.at;
      const next = SPECIAL.exec(text)?.index ?? text.length;
      if (next > this.at) this.add(text.slice(this.at, next));
      this.at = next;
      if (next < text.length) this.readSpecial(text[next]);
    }
    while (this.frames.length > 1) this.abandon();
    return this.frames[0].nodes;
  }

  readSpecial(sign) {
    if (sign === "\\") this.readEscape();
    else if (sign === "`") this.readCode();
    else if (sign === "*" || sign === "_" || sign === "~") this.readMarks(sign);
    else if (sign === "[" || (sign === "!" && this.text[this.at + 1] === "[")) this.openBracket(sign);
    else if (sign === "]") this.closeBracket();
    else if (sign === "<" || sign === "h") this.readAddress(sign);
    else this.take(1);
  }

  add(node) {
    const { nodes } = this.frames.at(-1);
    if (typeof node === "string" && typeof nodes.at(-1) === "string") nodes[nodes.length - 1] += node;
    else nodes.push(node);
  }

  /** So many characters as they are. */
  take(count) {
    this.add(this.text.slice(this.at, this.at + count));
    this.at += count;
  }

  readEscape() {
    const next = this.text[this.at + 1] ?? "";
    if (!/[!-/:-@[-`{-~]/.test(next)) return this.take(1);
    this.at += 1;
    return this.take(1);
  }

  // -- code ---------------------------------------------------------------------------------------------------

  /** Code between two runs of backticks of one length. */
  readCode() {
    const { text, at } = this;
    this.runs ??= findRuns(text);
    const length = lengthOfRun(text, at);
    const places = this.runs.get(length) ?? []; // none where an escape has cut the run
    while (places.length && places.at(-1) <= at) places.pop(); // the next is the last
    if (!places.length) return this.take(length);
    const end = places.at(-1);
    const code = text.slice(at + length, end);
    const isPadded = code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "";
    this.add(make("code", {}, isPadded ? code.slice(1, -1) : code));
    this.at = end + length;
    return undefined;
  }

  // -- bold, italic, struck out -------------------------------------------------------------------------------

  readMarks(sign) {
    const { text, at } = this;
    const length = lengthOfRun(text, at);
    if (length > 3 || (sign === "~" && length !== 2)) return this.take(length);
    const { canOpen, canClose } = sides(text, at, length);
    let left = length;
    this.at += length;
    while (left > 0) {
      const place = canClose ? this.frames.findLastIndex(({ mark }) => mark[0] === sign && mark.length <= left) : -1;
      if (place > 0) left -= this.close(place);
      else if (canOpen && this.frames.length <= DEEPEST) left -= this.open(left >= 2 ? sign + sign : sign);
      else {
        this.add(sign.repeat(left));
        left = 0;
      }
    }
    return undefined;
  }

  open(mark) {
    this.frames.push({ mark, nodes: [] });
    return mark.length;
  }

  /** End a frame, with an element around what is in it; those opened behind it are text. */
  close(place) {
    while (this.frames.length - 1 > place) this.abandon();
    const { mark, nodes, hasLink } = this.frames.pop();
    this.frames.at(-1).hasLink ||= hasLink;
    if (nodes.length) this.add(make(ELEMENTS[mark], {}, nodes));
    else this.add(mark + mark);
    return mark.length;
  }

  /** The innermost frame is none: its mark is text. */
  abandon() {
    const { mark, nodes, hasLink } = this.frames.pop();
    const outer = this.frames.at(-1);
    outer.hasLink ||= hasLink;
    this.add(mark);
    for (const node of nodes) this.add(node);
  }

  // -- links --------------------------------------------------------------------------------------------------

  openBracket(sign) {
    const mark = sign === "!" ? "![" : "[";
    if (this.frames.length > DEEPEST) return this.take(mark.length);
    this.at += this.open(mark);
    return undefined;
  }

  closeBracket() {
    const place = this.frames.findLastIndex(({ mark }) => mark.endsWith("["));
    if (place < 1) return this.take(1);
    while (this.frames.length - 1 > place) this.abandon();
    const { mark, nodes, hasLink } = this.frames.at(-1);
    const found = this.failures < MOST_FAILURES ? readTarget(this.text, this.at + 1) : null;
    const address = found && readUrl(found.target);
    if (!address || hasLink) {
      this.failures += 1;
      this.abandon();
      return this.take(1);
    }
    this.frames.pop();
    // No image is loaded from elsewhere: it would tell that server who reads.
    const shown = mark === "![" ? ["image: ", ...(nodes.length ? nodes : [address.host])] : nodes;
    this.link(address, shown);
    this.at = found.end;
    return undefined;
  }

  /** An address that stands in the text. */
  readAddress(sign) {
    const { text, at, frames } = this;
    BARE.lastIndex = at + (sign === "<" ? 1 : 0);
    const isWord = sign === "h" && /\w/.test(text[at - 1] ?? " ");
    const isInLink = frames.some(({ mark }) => mark === "[");
    const found = isWord || isInLink || !text.startsWith("http", BARE.lastIndex) ? null : BARE.exec(text);
    if (!found) return this.take(1);
    const isBracketed = sign === "<" && text[BARE.lastIndex] === ">";
    if (sign === "<" && !isBracketed) return this.take(1);
    const written = isBracketed ? found[0] : trimAddress(found[0].slice(0, LONGEST_LINK));
    const address = readUrl(written);
    if (!address) return this.take(written.length || 1);
    this.link(address, [written]);
    this.at += written.length + (isBracketed ? 2 : 0);
    return undefined;
  }

  /** A link. Words that look like an address must not hide where it leads. */
  link(address, nodes) {
    const element = make("a", { href: address.href, title: address.href, target: "_blank", rel: "noopener noreferrer nofollow" }, nodes);
    const words = element.textContent;
    const isHidden = !words.trim() || (/:\/\/|\w\.\w/.test(words) && !words.toLowerCase().includes(address.host));
    this.add(element);
    if (isHidden) this.add(make("span.sub", {}, ` (${address.host})`));
    this.frames.at(-1).hasLink = true;
  }
}

/** Whether marks can open, and close: by what stands before and behind them, as CommonMark has it. */
function sides(text, at, length) {
  const before = text[at - 1] ?? " ", behind = text[at + length] ?? " ";
  const isSpace = [before, behind].map((each) => /\s/.test(each));
  const isMark = [before, behind].map((each) => PUNCTUATION.test(each));
  const left = !isSpace[1] && (!isMark[1] || isSpace[0] || isMark[0]);
  const right = !isSpace[0] && (!isMark[0] || isSpace[1] || isMark[1]);
  if (text[at] !== "_") return { canOpen: left, canClose: right };
  return { canOpen: left && (!right || isMark[0]), canClose: right && (!left || isMark[1]) };
}

function lengthOfRun(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

/** The places of all runs of backticks by their length, the last first. */
function findRuns(text) {
  const runs = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!runs.has(run.length)) runs.set(run.length, []);
    runs.get(run.length).push(index);
  }
  for (const places of runs.values()) places.reverse();
  return runs;
}

/** What stands in the parentheses behind a link's words: an address, perhaps a title. */
function readTarget(text, at) {
  if (text[at] !== "(") return null;
  const most = Math.min(text.length, at + LONGEST_LINK);
  let end = at + 1, open = 0;
  for (; end < most; end += 1) {
    const sign = text[end];
    if (/\s/.test(sign) || (sign === ")" && open === 0)) break;
    if (sign === "(") open += 1;
    if (sign === ")") open -= 1;
  }
  const target = text.slice(at + 1, end).replace(/^<(.*)>$/s, "$1");
  const title = /^(?:[ \n]{1,3}(?:"[^"]{0,300}"|'[^']{0,300}'))?[ \n]{0,3}\)/.exec(text.slice(end, end + 400));
  return title && { target, end: end + title[0].length };
}

/** An address of the web, whole and without a name to log in; else null. */
function readUrl(text) {
  if (text.length > LONGEST_LINK || !/^https?:\/\//i.test(text)) return null;
  const address = tryUrl(text);
  const isPlain = address && /^https?:$/.test(address.protocol) && !address.username && !address.password;
  return isPlain ? address : null;
}

function tryUrl(text) {
  try { return new URL(text); } catch { return null; }
}

/** Without the marks of the sentence around it. */
function trimAddress(text) {
  const hasOpened = text.includes("(");
  let end = text.length;
  while (end > 0) {
    const last = text[end - 1];
    const isOutside = last === ")" && !hasOpened;
    if (!isOutside && !/[.,;:!?"'*_~\]|]/.test(last)) break;
    end -= 1;
  }
  return text.slice(0, end);
}
