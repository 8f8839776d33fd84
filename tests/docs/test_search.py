"""The site is built strictly, and its own search finds the right page among the first three results."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.browser import browsing, needs_chromium
from kit.programs import ROOT

QUERIES = {
    "human-in-the-loop": "how-to/questions",
    "human in the loop": "how-to/questions",
    "approval": "cookbook/approval",
    "persistence": "how-to/checkpointers",
    "checkpointer": "how-to/checkpointers",
    "durable execution": "learn/6-failures",
    "time travel": "how-to/time-travel",
    "replay": "how-to/time-travel",
    "retry": "how-to/retries",
    "map-reduce": "how-to/fan-out",
    "parallel": "how-to/fan-out",
    "DAG": "how-to/ready",
    "multi-agent": "how-to/subgraphs",
    "handoff": "cookbook/multi-agent",
    "agent": "how-to/agents",
    "LLM": "how-to/agents",
    "OpenAI": "how-to/agents",
    "tool calling": "how-to/agents",
    "memory": "how-to/memory",
    "RAG": "cookbook/rag",
    "vector search": "how-to/memory",
    "streaming": "how-to/streaming",
    "token streaming": "how-to/streaming",
    "cron": "how-to/schedules",
    "debounce": "how-to/schedules",
    "idempotency": "how-to/effects",
    "saga": "cookbook/saga",
    "exactly once": "how-to/effects",
    "docker": "deploy/docker",
    "kubernetes": "deploy/docker",
    "systemd": "deploy/one-machine",
    "backup": "deploy/one-machine",
    "FastAPI": "cookbook/fastapi",
    "OpenTelemetry": "how-to/observe",
    "timeout": "how-to/timeouts",
    "pytest": "how-to/testing",
    "LangGraph": "how-to/langgraph",
    "Temporal": "explanation/comparison",
    "task queue": "how-to/workers",
    "pydantic": "reference/types",
    "MCP": "how-to/mcp",
    "GDPR": "explanation/security",
}


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """The search page of the site, opened from the file system; STATEGRAPH_SITE is one that was built just now."""
    pytest.importorskip("sphinx", reason="the site is built where Sphinx is installed (extra: docs)")
    site = Path(os.environ.get("STATEGRAPH_SITE") or tmp_path_factory.mktemp("site"))
    if "STATEGRAPH_SITE" not in os.environ:
        sphinx = [sys.executable, "-P", "-m", "sphinx", "-EqnW", "--keep-going", "-b", "html", "-d", str(site / "cache")]
        subprocess.run([*sphinx, str(ROOT / "docs"), str(site)], check=True, env=os.environ, timeout=600)
    with browsing() as browser:
        browser.open(site / "search.html")
        while not browser.run("Search.hasIndex()"):
            pass
        yield browser


def pages_found(search, query):
    """The pages that a query finds, the best first."""
    found = search.run(
        "document.getElementById('search-results').insertAdjacentHTML('beforeend', '<p id=\"search-progress\">'),"
        f"Search._performSearch(...Search._parseQuery({json.dumps(query)})).map(result => result[0]).reverse()"
    )
    return list(dict.fromkeys(found))


@needs_chromium
def test_a_query_finds_its_page_among_the_first_three(search):
    first = {query: pages_found(search, query)[:3] for query in QUERIES}
    assert {query: found for query, found in first.items() if QUERIES[query] not in found} == {}


@needs_chromium
def test_a_result_has_an_excerpt_without_a_server(search):
    search.run("Search.performSearch('idempotency')")
    excerpts = []
    while not excerpts:
        excerpts = search.texts(".search .context")
    assert any("idempotency" in text.lower() for text in excerpts)
