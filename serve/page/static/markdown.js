// The blocks of a text in Markdown, as elements: paragraphs, headings, lists, quotes, code, tables.
//
// What people and models write in chats, not all of CommonMark: no HTML, no references, no code by
// indentation, and line breaks stay. Texts come from anybody, so no text becomes markup, and every
// rule reads a line once for each level of nesting, of which there are few.
import { make } from "./elements.js";
import { drawInline } from "./markdown-inline.js";

const LONGEST = 50_000; // characters; longer texts are shown as they are
const DEEPEST = 8; // lists and quotes in each other; deeper ones are shown as text
const WIDEST = 40; // columns of a table

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const BLANK = /^\s*$/;

/** The elements of a text. */
export function drawMarkdown(text) {
  if (text.length > LONGEST) return [make("p", {}, text)];
  return drawBlocks(text.replaceAll("\r\n", "\n").split("\n"), 0);
}

function drawBlocks(lines, depth) {
  if (depth > DEEPEST) return [make("p", {}, lines.join("\n"))];
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (BLANK.test(lines[at])) {
      at += 1;
      continue;
    }
    const read = READERS.find(({ begins }) => begins(lines, at))?.read ?? readParagraph;
    const [block, next] = read(lines, at, depth);
    blocks.push(block);
    at = next;
  }
  return blocks;
}

// -- one reader for each kind of block: where it begins; its element, and where it ends ------------------------

const READERS = [
  { begins: (lines, at) => FENCE.test(lines[at]), read: readCode },
  { begins: (lines, at) => HEADING.test(lines[at]), read: readHeading },
  { begins: (lines, at) => isRule(lines[at]), read: (_, at) => [make("hr"), at + 1] },
  { begins: (lines, at) => QUOTE.test(lines[at]), read: readQuote },
  { begins: (lines, at) => ITEM.test(lines[at]), read: readList },
  { begins: beginsTable, read: readTable },
];

const begins = (lines, at) => READERS.some((reader) => reader.begins(lines, at));
const isRule = (line) => RULE.test(line);

function readParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !BLANK.test(lines[end]) && !begins(lines, end)) end += 1;
  return [make("p", {}, drawInline(lines.slice(at, end).join("\n"))), end];
}

function readHeading(lines, at) {
  const [, marks, text = ""] = HEADING.exec(lines[at]);
  // Below the headings of the page itself.
  return [make(`h${Math.min(marks.length + 2, 6)}`, {}, drawInline(text.trim())), at + 1];
}

/** Code behind a fence, until one as long; of a message that is still coming, until its end. */
function readCode(lines, at) {
  const [, fence, info] = FENCE.exec(lines[at]);
  const ends = (line) => {
    const found = FENCE.exec(line);
    return found !== null && found[1].startsWith(fence) && found[2].trim() === "";
  };
  let end = at + 1;
  while (end < lines.length && !ends(lines[end])) end += 1;
  const language = info.trim().split(" ")[0].slice(0, 30);
  const code = make("pre", { "data-language": language || null }, make("code", {}, lines.slice(at + 1, end).join("\n")));
  return [code, end + 1];
}

function readQuote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [make("blockquote", {}, drawBlocks(inner, depth + 1)), end];
}

function readList(lines, at, depth) {
  const [, , first] = ITEM.exec(lines[at]);
  const isOrdered = first.length > 1, indent = indentOf(lines[at]);
  const items = [];
  let next = at;
  while (next < lines.length) {
    const found = ITEM.exec(lines[next]);
    const isNext = found && found[2].length > 1 === isOrdered && indentOf(lines[next]) <= indent + 1 && !isRule(lines[next]);
    if (!isNext) break;
    const end = endOfItem(lines, next);
    items.push(drawItem(lines.slice(next, end), found, depth));
    next = end;
    while (next < lines.length && BLANK.test(lines[next]) && next + 1 < lines.length) next += 1;
  }
  const start = Number.parseInt(first, 10);
  return [make(isOrdered ? "ol" : "ul", { start: isOrdered && start !== 1 && start }, items), next];
}

/** Behind an item: what is indented below it belongs to it, and lines that go on with its words. */
function endOfItem(lines, at) {
  const inside = indentOf(lines[at]) + 2;
  let end = at + 1, blanks = 0;
  for (let next = end; next < lines.length; next += 1) {
    if (BLANK.test(lines[next])) {
      blanks += 1;
      continue;
    }
    const isInside = indentOf(lines[next]) >= inside;
    if (!isInside && (blanks > 0 || begins(lines, next))) break;
    blanks = 0;
    end = next + 1;
  }
  return end;
}

function drawItem([line, ...rest], [marker], depth) {
  const width = marker.length;
  const inner = [line.slice(width), ...rest.map((each) => each.slice(Math.min(indentOf(each), width)))];
  const box = /^\[([ xX])\] /.exec(inner[0]);
  if (box) inner[0] = (box[1] === " " ? "☐ " : "☑ ") + inner[0].slice(4);
  const [first, ...others] = drawBlocks(inner, depth + 1);
  // The words of an item need no paragraph of their own.
  return make("li", {}, first?.localName === "p" ? [...first.childNodes] : first, others);
}

const indentOf = (line) => line.length - line.trimStart().length;

// -- tables ------------------------------------------------------------------------------------------------

function beginsTable(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !lines[at + 1].includes("-")) return false;
  const marks = cellsOf(lines[at + 1]);
  return marks.length === cellsOf(lines[at]).length && marks.length <= WIDEST && marks.every((each) => /^:?-+:?$/.test(each));
}

function readTable(lines, at) {
  const sides = cellsOf(lines[at + 1]).map(sideOf);
  const row = (line, kind) => {
    const cells = cellsOf(line);
    return make("tr", {}, sides.map((side, place) => make(kind, { class: side }, drawInline(cells[place] ?? ""))));
  };
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && !BLANK.test(lines[end])) end += 1;
  const table = make("table", {}, make("thead", {}, row(lines[at], "th")), make("tbody", {}, lines.slice(at + 2, end).map((line) => row(line, "td"))));
  return [make("div.table", {}, table), end];
}

function sideOf(mark) {
  if (!mark.endsWith(":")) return null;
  return mark.startsWith(":") ? "center" : "right";
}

/** The cells of a row; `\|` is no border. */
function cellsOf(line) {
  const cells = [""];
  const inner = line.trim();
  for (let at = 0; at < inner.length; at += 1) {
    const isEscaped = inner[at] === "\\" && inner[at + 1] === "|";
    if (isEscaped) at += 1;
    if (inner[at] === "|" && !isEscaped) cells.push("");
    else cells[cells.length - 1] += inner[at];
  }
  if (inner.startsWith("|")) cells.shift();
  if (cells.length > 1 && cells.at(-1).trim() === "") cells.pop();
  return cells.map((cell) => cell.trim());
}
