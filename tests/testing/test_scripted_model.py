"""A scripted model returns what its script contains, and fails when script and calls do not fit."""

import asyncio
import sys

import pytest

from stategraph.testing import CheckFailed, ScriptedModel, tool_call


def test_a_script_that_is_over_shows_what_was_asked():
    model = ScriptedModel(["One.", "Two."])
    model.invoke([])
    list(model.stream([]))
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "And now?"}]
    wanted = (
        "the model was asked 3 times, but its script is over; the last time with message 2, user: 'And now?'"
    )
    with pytest.raises(CheckFailed) as failed:
        model.invoke(said)
    assert str(failed.value) == wanted
    with pytest.raises(CheckFailed, match="with no message"):
        asyncio.run(ScriptedModel([]).ainvoke([]))


def test_an_unused_response_is_found():
    model = ScriptedModel(["One.", "Two."])
    model.invoke([])
    with pytest.raises(CheckFailed, match="asked only 1 times; its next answer would be 'Two.'"):
        model.check_used_up()
    assert model.invoke([])["content"] == "Two."
    model.check_used_up()


def test_a_response_is_streamed_by_word():
    line = {"content": "Let me see.", "tool_calls": [tool_call("height", name="Etna")]}

    async def read():
        return [part async for part in ScriptedModel([line]).astream([])]

    for parts in (list(ScriptedModel([line]).stream([])), asyncio.run(read())):
        assert [part["content"] for part in parts if part["content"]] == ["Let", " me", " see."]
        pieces = [part["tool_calls"][0]["function"]["arguments"] for part in parts if "tool_calls" in part]
        assert "".join(pieces) == '{"name": "Etna"}'


def test_without_langchain_an_error_says_what_is_missing(monkeypatch):
    monkeypatch.delitem(sys.modules, "stategraph.compat.langchain.scripted", raising=False)
    for name in [each for each in sys.modules if each.partition(".")[0] == "langchain_core"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langchain_core", None)
    with pytest.raises(ImportError, match="langchain_core"):
        ScriptedModel([]).as_langchain()
