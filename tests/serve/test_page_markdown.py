"""Messages in Markdown on the server's page: what is drawn, and what hostile texts cannot do. In a real browser."""

from __future__ import annotations

import json
import re

import pytest
from kit.browser import DRIVES_CHROMIUM, Browser, browsing
from paged import HOSTILE, Reader, Speech, make_chat
from serving import serving

from stategraph.serve import create_app

pytestmark = DRIVES_CHROMIUM


@pytest.fixture(scope="module")
def browser():
    """A page of the server, with its policy, that draws texts."""
    with serving(create_app({"chat": make_chat(Speech())})) as url, browsing() as browser:
        reader = Reader(browser, url)
        reader.go("")
        browser.run("import('/page/markdown.js').then(found => { window.draw = found.drawMarkdown; })")
        yield browser
        assert browser.said == []  # no script ran, and no policy had to forbid one
        assert all(each.startswith((url, "data:,", "about:")) for each in browser.asked_for)
        reader.leave()


def draw(browser: Browser, text):
    """The HTML of what is drawn for a text, in the page's own document."""
    script = f"(() => {{ document.querySelector('main').replaceChildren(...draw({json.dumps(text)})); return document.querySelector('main').innerHTML }})()"
    return re.sub(r"(?<=>)\n|\n(?=</code>)", "", browser.run(script))  # without the ends of lines between elements


LINK = 'target="_blank" rel="noopener noreferrer nofollow"'


def link(href, words):
    return f'<a href="{href}" title="{href}" {LINK}>{words}</a>'


@pytest.mark.parametrize(("text", "html"), [
    ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
    ("# Title\n### Third ###", "<h3>Title</h3><h5>Third</h5>"),
    ("*i* _i_ **b** __b__ ***both*** ~~gone~~", "<p><em>i</em> <em>i</em> <strong>b</strong> <strong>b</strong> <em><strong>both</strong></em> <s>gone</s></p>"),
    ("a **b *c* d** e", "<p>a <strong>b <em>c</em> d</strong> e</p>"),
    ("snake_case_name 2 * 3 * 4 **open", "<p>snake_case_name 2 * 3 * 4 **open</p>"),
    ("\\*no\\* \\`no\\` \\a", "<p>*no* `no` \\a</p>"),
    ("`x*y*` ``a ` b`` `open", "<p><code>x*y*</code> <code>a ` b</code> `open</p>"),
    ("\\``a`", "<p>`<code>a</code></p>"),
    ("```python\nif a < b:\n\n    *go*\n```\nafter", '<pre data-language="python"><code>if a &lt; b:\n\n    *go*</code></pre><p>after</p>'),
    ("~~~~\n```\n~~~~", "<pre><code>```</code></pre>"),
    ("```\nstill coming", "<pre><code>still coming</code></pre>"),
    ("- a\n- b\n  - c\n\n  d\n- e", "<ul><li><p>a</p></li><li><p>b</p><ul><li>c</li></ul><p>d</p></li><li><p>e</p></li></ul>"),
    ("3. a\n4. b\n   - c", '<ol start="3"><li>a</li><li>b\n<ul><li>c</li></ul></li></ol>'),
    ("* a\n\n* b\n\ntext", "<ul><li><p>a</p></li><li><p>b</p></li></ul><p>text</p>"),
    ("- [ ] open\n- [x] done", "<ul><li>☐ open</li><li>☑ done</li></ul>"),
    ("words\n- item", "<p>words</p><ul><li>item</li></ul>"),
    ("> said\n> - item\n\nnot said", "<blockquote><p>said</p><ul><li>item</li></ul></blockquote><p>not said</p>"),
    ("a\n\n---\n\n* * *", "<p>a</p><hr><hr>"),
    ("| a | b |\n|---|:-:|\n| *1* | x \\| y |\n| 2 |", '<div class="table"><table><thead><tr><th>a</th><th class="center">b</th></tr></thead>'
     '<tbody><tr><td><em>1</em></td><td class="center">x | y</td></tr><tr><td>2</td><td class="center"></td></tr></tbody></table></div>'),
    ("a | b\nno table", "<p>a | b<br>no table</p>"),
    ("[the **page**](https://a.org/b_(c) \"title\").", f"<p>{link('https://a.org/b_(c)', 'the <strong>page</strong>')}.</p>"),
    ("see https://a.org/b_c_d?e=1, <http://b.org/> (https://c.org)", f"<p>see {link('https://a.org/b_c_d?e=1', 'https://a.org/b_c_d?e=1')}, "
     f"{link('http://b.org/', 'http://b.org/')} ({link('https://c.org/', 'https://c.org')})</p>"),
    ("![chart](https://a.org/c.png)", f"<p>{link('https://a.org/c.png', 'image: chart')}</p>"),
    ("**[a](https://a.org)**", f"<p><strong>{link('https://a.org/', 'a')}</strong></p>"),
    ("[a [b](https://b.org) c](https://a.org)", f"<p>[a {link('https://b.org/', 'b')} c]({link('https://a.org/', 'https://a.org')})</p>"),
])  # fmt: skip
def test_markdown_is_drawn(browser, text, html):
    assert draw(browser, text) == html


@pytest.mark.parametrize("target", [
    "javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\tscript:alert(1)", "data:text/html,<script>1</script>", "vbscript:x", "file:///etc/passwd",
    "//evil.org", "/threads", "threads", "?a", "#/queue", "mailto:a@b.org", "blob:https://a.org/x", "https://user:secret@evil.org", "https://bank.org@evil.org",
    "https:evil.org", "https://", "http://[", "&#106;avascript:alert(1)", "\x01javascript:alert(1)", "<javascript:alert(1)>", "view-source:https://a.org",
])  # fmt: skip
def test_links_lead_to_addresses_of_the_web_only(browser, target):
    for text in (f"[words]({target})", f"![words]({target})", f"<{target}>", target):
        draw(browser, text)
        hrefs = browser.run("[...document.querySelectorAll('main a')].map(each => each.href)")
        assert [each for each in hrefs if not each.startswith("https://a.org")] == [], text


@pytest.mark.parametrize("text", [
    HOSTILE, f"```{HOSTILE}\n{HOSTILE}", f"`{HOSTILE}`", f"# {HOSTILE}", f"- {HOSTILE}", f"> {HOSTILE}", f"|{HOSTILE}|b|\n|-|-|\n|{HOSTILE}|c|",
    f"[{HOSTILE}](https://a.org)", f"[a](https://a.org/{HOSTILE})", f'[a](https://a.org "{HOSTILE}")', f"https://a.org/{HOSTILE}", f"**{HOSTILE}**",
    "<iframe srcdoc='<script>window.hacked=1</script>'></iframe>", "<svg onload=window.hacked=1>", "[a](https://a.org\" onclick=\"window.hacked=1)",
    "```\" onmouseover=\"window.hacked=1\ncode\n```", "<base href=//evil.org>", "<form action=//evil.org><button>x", "<style>*{display:none}</style>",
])  # fmt: skip
def test_html_in_a_text_stays_text(browser, text):
    draw(browser, text)
    kinds = browser.run("[...new Set([...document.querySelectorAll('main *')].map(each => each.localName))]")
    known = {"p", "br", "h3", "ul", "li", "blockquote", "pre", "code", "strong", "a", "div", "table", "thead", "tbody", "tr", "th", "td", "span"}
    assert set(kinds) <= known
    given = browser.run("[...document.querySelectorAll('main *')].flatMap(each => each.getAttributeNames())")
    assert set(given) <= {"href", "title", "target", "rel", "class", "data-language", "start"}
    assert browser.run("window.hacked") is None


def test_link_texts_that_look_like_an_address_do_not_hide_the_target(browser):
    draw(browser, "[https://bank.org](https://evil.org/x) [bank.org](https://evil.org) [](https://evil.org) [bank](https://evil.org) [evil.org](https://evil.org)")
    shown = browser.run("document.querySelector('main').innerText")
    assert shown == "https://bank.org (evil.org) bank.org (evil.org) (evil.org) bank evil.org"


SIZE = 50_000
ATTACKS = [
    "> " * (SIZE // 2), ">" * SIZE, "- " * (SIZE // 2), "1. " * (SIZE // 3), "\n".join("  " * n + "- a" for n in range(300)),
    "\n".join("> " * n + "a" for n in range(300)), "*" * SIZE, "*a " * (SIZE // 3), "**a *b " * (SIZE // 7), "a* " * (SIZE // 3), "*a_ " * (SIZE // 4),
    "_a*b~~c" * (SIZE // 7), "*a**b" * (SIZE // 5), "[" * SIZE, "]" * SIZE, "[a](" * (SIZE // 4), "[](" * (SIZE // 3), "![" * (SIZE // 2),
    "[a](https://a.org " * (SIZE // 18), "[" * (SIZE // 2) + "](https://a.org)" * 3000, "(" * SIZE, "`" * SIZE, "".join("`" * n + " " for n in range(1, 310)),
    "`a``" * (SIZE // 4), "\\`" * (SIZE // 2), "\\" * SIZE, "<" * SIZE, "<http://" * (SIZE // 8), "http://" * (SIZE // 7), "http://a" + ")" * SIZE,
    "http://a(" + ").," * (SIZE // 3), "https://a.org/*_" * (SIZE // 16), "h" * SIZE, "# " + " #" * (SIZE // 2), "-" * SIZE, "- \t" * (SIZE // 3) + "a",
    " " * SIZE + "a", "\t" * SIZE + "-", "|" * SIZE + "\n" + "|-" * (SIZE // 2), "|a" * 40 + "\n" + "|-" * 40 + ("\n" + "|" * 40) * (SIZE // 90),
    "a|\n-|\n" + "|\n" * (SIZE // 2), "- a\n\n" * (SIZE // 5), "-\n" * (SIZE // 2), "```\n" * (SIZE // 4), "~~~ " * (SIZE // 4), "\n" * SIZE, "a\n" * (SIZE // 2),
    "- a\n" + " \n" * (SIZE // 2) + "b", "&#x3c;" * (SIZE // 6), "[x] " * (SIZE // 4), "*[a](https://a.org)" * (SIZE // 19), "\u202e*a*" * (SIZE // 4), "😀*" * (SIZE // 4),
]  # fmt: skip


def test_no_text_takes_long_or_nests_deep(browser):
    """Of 50,000 characters each: what costs their square takes longer than the browser may take to answer."""
    for text in ATTACKS:
        text = text[:SIZE]
        deepest = browser.run(
            f"(() => {{ const box = document.createElement('div'); box.append(...draw({json.dumps(text)})); let deepest = 0;"
            "for (const each of box.querySelectorAll('*')) { let depth = 0; for (let up = each; up !== box; up = up.parentElement) depth += 1;"
            "deepest = Math.max(deepest, depth); } return deepest; })()"
        )
        assert deepest <= 40, text[:30]


def test_a_longer_text_is_shown_as_it_is(browser):
    text = "*a* " * 30_000
    assert draw(browser, text) == f'<p class="plain">{text}</p>'
