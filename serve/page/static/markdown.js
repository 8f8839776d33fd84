// Texts in Markdown, as elements. markdown-it reads them (CommonMark, tables, addresses; HTML stays
// text), and DOMPurify lets pass only what is listed here. The texts come from anybody.
import { make } from "./elements.js";
import MarkdownIt from "./markdown-it.js";
import "./purify.js";

const LONGEST = 50_000; // characters; longer texts are shown as they are
const DEEPEST = 20; // lists and quotes in each other
const PASSED = {
  ALLOWED_TAGS: "p br hr h3 h4 h5 h6 ul ol li blockquote pre code em strong s a table thead tbody tr th td #text".split(" "),
  ALLOWED_ATTR: ["href", "class", "start", "data-language"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const markdown = new MarkdownIt({ breaks: true, linkify: true, maxNesting: DEEPEST });
const { escapeHtml } = markdown.utils;
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
markdown.validateLink = (text) => readUrl(text) !== null;
markdown.normalizeLinkText = (text) => text;
// No image is loaded from elsewhere: it would tell that server who reads.
markdown.renderer.rules.image = (tokens, at) =>
  `<a href="${escapeHtml(String(tokens[at].attrGet("src")))}">image: ${escapeHtml(tokens[at].content)}</a>`;
markdown.renderer.rules.fence = (tokens, at) => {
  const language = tokens[at].info.trim().split(/\s/)[0].slice(0, 30);
  return `<pre${language && ` data-language="${escapeHtml(language)}"`}><code>${escapeHtml(tokens[at].content)}</code></pre>`;
};
markdown.core.ruler.push("page", ({ tokens }) => {
  for (const token of tokens) {
    // Below the headings of the page itself.
    token.tag = token.tag.replace(/^h(\d)$/, (_, level) => `h${Math.min(Number(level) + 2, 6)}`);
    const style = String(token.attrGet("style") ?? ""); // text-align of a cell; the page's policy forbids styles in HTML
    if (style) token.attrs = [["class", style.split(":")[1]]];
  }
});

/** The elements of a text. */
export function drawMarkdown(text) {
  if (text.length > LONGEST) return [make("p.plain", {}, text)];
  const drawn = globalThis.DOMPurify.sanitize(markdown.render(text), PASSED);
  for (const link of drawn.querySelectorAll("a")) settleLink(link);
  for (const { firstChild } of drawn.querySelectorAll("li")) {
    if (firstChild?.nodeType === Node.TEXT_NODE) firstChild.data = firstChild.data.replace(/^\[ \] /, "☐ ").replace(/^\[x\] /i, "☑ ");
  }
  for (const table of drawn.querySelectorAll("table")) {
    const box = make("div.table");
    table.replaceWith(box);
    box.append(table);
  }
  return [...drawn.children]; // without the ends of lines between them
}

/** A link opens a tab of its own. Words that look like an address must not hide where it leads. */
function settleLink(link) {
  // Of an address with a name to log in, markdown-it links what stands before the host.
  if (/^[^\s/]*@/.test(link.nextSibling?.data)) return link.replaceWith(...link.childNodes);
  const { href, host } = readUrl(link.getAttribute("href"));
  for (const [name, value] of Object.entries({ href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" })) link.setAttribute(name, value);
  const words = link.textContent;
  if (!words.trim() || (/:\/\/|\w\.\w/.test(words) && !words.toLowerCase().includes(host))) link.after(make("span.sub", {}, ` (${host})`));
  return undefined;
}

/** An address of the web, whole and without a name to log in; else null. */
function readUrl(text) {
  const address = /^https?:\/\//i.test(text) && URL.canParse(text) ? new URL(text) : null;
  return address?.username || address?.password ? null : address;
}
